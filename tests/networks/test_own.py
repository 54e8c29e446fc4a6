"""Networks of the user's own: built with, trained, saved, loaded, and never taken for another's."""

import pytest
import torch
from torch import nn

import gpin
from gpin.inference import METHODS
from gpin.networks import Dense

SHAPE, D = (1, 6, 6), 2
SEVERAL = {"me": {}, "rme": {}, "gp": {"shared_trunk": False}}
"""Methods and options that need several trunks."""


class MyTrunk(nn.Module):
    """36 pixels → 7 features; it notes nothing about how many."""

    def __init__(self, act=torch.tanh):
        super().__init__()
        self.linear, self.act = nn.Linear(36, 7), act

    def forward(self, x):
        return self.act(self.linear(x.flatten(1)))


class MyDecoder(nn.Module):
    def __init__(self, outputs=1, flat=False, fixed=None):
        super().__init__()
        self.linear = nn.Linear(D, outputs * 36)
        self.shape = (-1,) if flat else SHAPE if outputs == 1 else (outputs, *SHAPE)
        if fixed is not None:
            nn.init.constant_(self.linear.weight, fixed)
            nn.init.zeros_(self.linear.bias)
            self.requires_grad_(False)

    def forward(self, z):
        return self.linear(z).reshape(len(z), *self.shape)


@pytest.fixture
def x():
    return torch.rand(40, *SHAPE)


@pytest.mark.parametrize(
    ("method", "options"), [*((name, {}) for name in METHODS), ("gp", {"shared_trunk": False})], ids=str
)
def test_every_method_takes_them_and_they_come_back_from_a_file(method, options, x, tmp_path):
    build = {"method": method, "latent_dim": D, "seed": 0, **options}
    vae = gpin.build(SHAPE, encoder=MyTrunk, decoder=MyDecoder, **build)
    history = gpin.fit(vae, x, x[:8], epochs=3, batch_size=16, progress=False)
    assert torch.isfinite(torch.tensor(history.validation)).all()
    assert sum(isinstance(module, MyTrunk) for module in vae.modules()) >= 1
    assert vae.reconstruct(x).shape == x.shape
    assert vae.log_likelihood(x[:3], 5, "refined").values.isfinite().all()
    vae.save(tmp_path)
    again = gpin.load(tmp_path, encoder=MyTrunk, decoder=MyDecoder)
    assert again.config == vae.config
    assert (again.config.encoder, again.config.decoder) == ("MyTrunk", "MyDecoder")
    with torch.no_grad():
        torch.manual_seed(0)
        expected = vae.elbo(x).value
        torch.manual_seed(0)
        assert torch.equal(again.elbo(x).value, expected)


def test_modules_become_part_of_the_model_and_may_be_filled_again(x, tmp_path):
    trunk, decoder = MyTrunk(), MyDecoder(flat=True)
    vae = gpin.build(SHAPE, "vae", D, encoder=trunk, decoder=decoder)
    assert trunk in list(vae.modules())
    assert vae.inference.head.in_features == 7
    assert torch.equal(vae.decoder(torch.ones(2, 3, D)), decoder(torch.ones(6, D)).reshape(2, 3, *SHAPE))
    vae.save(tmp_path)
    again = gpin.load(tmp_path, encoder=MyTrunk(), decoder=MyDecoder(flat=True))
    assert torch.equal(again.encode(x).mean, vae.encode(x).mean)


def test_one_of_them_alone_goes_with_the_architecture_of_the_other(x):
    vae = gpin.build(SHAPE, "vae", D, encoder=MyTrunk, architecture={"width": 5})
    assert vae.decoder[0].out_features == 5
    vae = gpin.build(SHAPE, "vae", D, decoder=MyDecoder, architecture={"width": 5})
    assert vae.inference.trunk.out_features == 5
    assert vae.reconstruct(x).shape == x.shape
    assert (vae.config.encoder, vae.config.decoder) == (None, "MyDecoder")


def test_a_decoder_gives_all_outputs_that_the_likelihood_takes(x):
    vae = gpin.build(SHAPE, "vae", D, decoder=MyDecoder(outputs=2), likelihood="heteroscedastic")
    gpin.fit(vae, x, x[:8], epochs=1, progress=False)
    assert vae.reconstruct(x).shape == x.shape


def test_a_model_of_gpins_networks_says_nothing_of_others(tmp_path):
    vae = gpin.build(SHAPE, "vae", D)
    assert not {"encoder", "decoder"} & set(vae.config.model_dump())
    assert not vae.config.own


def test_trying_a_network_leaves_it_as_it_was():
    norm = nn.BatchNorm1d(36)
    trunk = nn.Sequential(nn.Flatten(), norm, nn.Dropout(), nn.LazyLinear(3))
    norm.eval()
    decoder = MyDecoder()
    state = torch.get_rng_state()
    vae = gpin.build(SHAPE, "vae", D, encoder=trunk, decoder=decoder, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert norm.num_batches_tracked == 0
    assert (norm.training, trunk.training) == (False, True)
    assert vae.inference.trunk.out_features == 3


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        *((name, {"encoder": MyTrunk(), **options}, "needs several encoders") for name, options in SEVERAL.items()),
        ("me", {"encoder": (lambda one: lambda: one)(MyTrunk())}, "the same one twice"),
        ("vae", {"encoder": 5}, "encoder must be a torch.nn.Module or a function that returns one, got int"),
        ("vae", {"decoder": lambda: 5}, "the decoder function must return a torch.nn.Module, got int"),
        ("vae", {"encoder": nn.Identity()}, r"features of shape \(batch, features\), got \(2, 1, 6, 6\)"),
        ("vae", {"encoder": nn.Linear(5, 3)}, r"the encoder fails for a batch of shape \(2, 1, 6, 6\): "),
        ("vae", {"decoder": nn.Linear(D, 35)}, r"an output of shape \(batch, 1, 6, 6\), .*got \(2, 35\)"),
        ("vae", {"decoder": MyDecoder(), "likelihood": "heteroscedastic"}, r"\(batch, 2, 1, 6, 6\)"),
        ("vae", {"decoder": nn.LSTM(D, 36)}, "the decoder must return a tensor, got tuple"),
        (
            "vae",
            {"encoder": MyTrunk, "decoder": MyDecoder, "architecture": "dense"},
            "architecture has no effect if encoder and decoder",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(method, arguments, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        gpin.build(SHAPE, method, D, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs its own encoder MyTrunk: .*encoder="),
        ({"encoder": MyTrunk}, "needs its own decoder MyDecoder: .*decoder="),
        ({"encoder": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 7)), "decoder": MyDecoder}, "got Sequential"),
        ({"encoder": MyTrunk, "decoder": lambda: MyDecoder(outputs=2)}, "the decoder must return"),
        ({"encoder": lambda: Small(), "decoder": MyDecoder}, "does not fit the model"),
        ({"into": gpin.build(SHAPE, "vae", D), "encoder": MyTrunk}, "leave out encoder and decoder"),
    ],
)
def test_a_model_is_not_loaded_with_other_networks(arguments, said, tmp_path):
    gpin.build(SHAPE, "vae", D, encoder=MyTrunk, decoder=MyDecoder).save(tmp_path)
    with pytest.raises(gpin.InputError, match=said) as caught:
        gpin.load(tmp_path, **arguments)
    assert "\n" not in str(caught.value)


class Small(MyTrunk):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 5)


Small.__name__ = "MyTrunk"


def test_a_model_of_gpins_networks_is_not_loaded_with_others(tmp_path):
    gpin.build(SHAPE, "vae", D).save(tmp_path)
    with pytest.raises(gpin.InputError, match="was built with gpin's own encoder: load it without encoder="):
        gpin.load(tmp_path, encoder=MyTrunk)


# Runs in a folder --------------------------------------------------------------------------------------


def trained(folder, x, likelihood=None, **networks):
    vae = gpin.build(
        SHAPE, "vae", D, likelihood=likelihood or {"variance": "fixed", "initial_variance": 0.1}, **networks
    )
    gpin.fit(vae, x, x[:8], epochs=2, folder=folder, progress=False)
    return vae


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_the_same_model_resumes_whatever_its_first_weights(x, tmp_path):
    first = trained(tmp_path, x, encoder=MyTrunk, decoder=MyDecoder(fixed=0.3))
    again = trained(tmp_path, x, encoder=MyTrunk, decoder=MyDecoder(fixed=0.3))
    assert same(first, again)


@pytest.mark.parametrize(
    "change",
    [
        {"decoder": lambda: MyDecoder(fixed=0.4)},
        {"encoder": lambda: MyTrunk(torch.relu)},
        {"likelihood": {"variance": "fixed", "initial_variance": 0.2}},
        {"likelihood": {"variance": "fixed", "initial_variance": 0.1, "min_variance": 1e-3}},
    ],
    ids=["decoder", "encoder", "variance", "floor"],
)
def test_another_model_of_the_same_shapes_is_refused(x, change, tmp_path):
    networks = {"encoder": MyTrunk, "decoder": lambda: MyDecoder(fixed=0.3)}
    trained(tmp_path, x, **networks)
    with pytest.raises(gpin.InputError, match="holds another run"):
        trained(tmp_path, x, **{**networks, **change})


def by_hand(variance, scale):
    """A VAE put together of modules, which no config describes."""
    decoder = nn.Linear(D, 36)
    nn.init.constant_(decoder.weight, scale)
    nn.init.zeros_(decoder.bias)
    inference = METHODS["vae"](Dense((36,)).trunk, D)
    options = {"variance": "fixed", "initial_variance": variance}
    likelihood = gpin.build((36,), "vae", D, likelihood=options).likelihood
    return gpin.VAE(inference, decoder.requires_grad_(False), likelihood)


def test_models_put_together_by_hand_are_told_apart_too(x, tmp_path):
    x = x.flatten(1)

    def fit(variance=0.1, scale=1.0):
        vae = by_hand(variance, scale)
        gpin.fit(vae, x, x[:8], epochs=1, folder=tmp_path, progress=False)
        return vae

    assert same(fit(), fit())
    for change in ({"variance": 0.2}, {"scale": 2.0}):
        with pytest.raises(gpin.InputError, match="holds another run"):
            fit(**change)


def test_frozen_parameters_of_a_built_model_are_told_apart(x, tmp_path):
    def fit(seed):
        vae = gpin.build(SHAPE, "vae", D, seed=seed)
        vae.decoder.requires_grad_(False)
        gpin.fit(vae, x, x[:8], epochs=1, folder=tmp_path, progress=False)
        return vae

    assert same(fit(0), fit(0))
    with pytest.raises(gpin.InputError, match="holds another run"):
        fit(1)


def test_what_cannot_be_told_apart_is_refused_unless_it_is_named(x, tmp_path):
    def fit(**named):
        decoder = MyDecoder()
        decoder.noise = torch.Generator()
        vae = gpin.build(SHAPE, "vae", D, decoder=decoder)
        return gpin.fit(vae, x, x[:8], epochs=1, folder=tmp_path, progress=False, **named)

    with pytest.raises(gpin.InputError, match=r"decoder\.network\.noise is a Generator, .*identity="):
        fit()
    assert not (tmp_path / "checkpoints").exists()
    assert fit(identity="mine") == fit(identity="mine")
