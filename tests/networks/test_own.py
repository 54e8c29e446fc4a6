"""Networks of the user's own: built with, trained, saved, loaded, and never taken for another's."""

import copy

import pytest
import torch
from torch import nn

import gpin
from gpin._core.identity import same_structure
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
        ({}, "was built with your encoder MyTrunk: .*encoder="),
        ({"encoder": MyTrunk}, "was built with your decoder MyDecoder: .*decoder="),
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


class Wide(nn.Module):
    """A decoder with batch normalisation and dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 36), nn.Unflatten(1, SHAPE)
        )

    def forward(self, z):
        return self.layers(z)


def frozen():
    vae = gpin.build(SHAPE, "vae", D, seed=0)
    vae.decoder.requires_grad_(False)
    return vae


def assembled():
    vae = gpin.build(SHAPE, "vae", D, seed=0)
    return gpin.VAE(vae.inference, vae.decoder, vae.likelihood)


SAME = {
    "own": lambda: gpin.build(SHAPE, "vae", D, decoder=Wide, likelihood={"variance": "analytic"}),
    "frozen": frozen,
    "assembled": assembled,
    "config": lambda: gpin.build(SHAPE, "vae", D),
}


@pytest.mark.parametrize("build", SAME.values(), ids=SAME)
def test_the_same_object_resumes_and_returns_at_once(build, x, tmp_path):
    """Training changes buffers, but the model is the one that the run began with."""

    def fit(vae, **more):
        return gpin.fit(vae, x, x[:8], epochs=3, folder=tmp_path / "run", checkpoint_seconds=0, progress=False, **more)

    def interrupt(number, result):
        raise KeyboardInterrupt

    vae = build()
    with pytest.raises(KeyboardInterrupt):
        fit(vae, on_epoch=interrupt)
    whole = fit(vae)
    assert len(whole.epochs) == 3
    result = vae.checksum()
    assert fit(vae) == whole
    assert fit(copy.deepcopy(vae)) == whole
    assert fit(fresh := build()) == whole
    assert vae.checksum() == fresh.checksum() == result
    other = build()
    other.likelihood = gpin.build(SHAPE, "vae", D, likelihood={"min_variance": 1e-3}).likelihood
    vae.decoder.register_forward_hook(lambda module, z, output: 2 * output)
    for changed in (other, vae):
        with pytest.raises(gpin.InputError, match="holds another run"):
            fit(changed)


@pytest.mark.parametrize("part", ["decoder", "likelihood", "inference"])
def test_a_built_model_with_another_part_is_another_model(part, x, tmp_path):
    """Also if all parameters have the same names and shapes."""

    def fit(vae):
        gpin.fit(vae, x, x[:8], epochs=1, folder=tmp_path, progress=False)

    fit(gpin.build(SHAPE, "vae", D))
    vae = gpin.build(SHAPE, "vae", D)
    if part == "decoder":
        vae.decoder[1] = nn.Tanh()
    elif part == "likelihood":
        vae.likelihood = gpin.build(SHAPE, "vae", D, likelihood={"min_variance": 1e-3}).likelihood
    else:
        vae.inference = type("Other", (type(vae.inference),), {})(Dense(SHAPE).trunk, D)
    with pytest.raises(gpin.InputError, match="holds another run"):
        fit(vae)


@pytest.mark.parametrize("method", METHODS)
def test_training_and_files_do_not_change_the_structure_of_a_built_model(method, x, tmp_path):
    """So that it is identified by its config alone, as in version 0.1."""
    vae = gpin.build(SHAPE, method, D)
    gpin.fit(vae, x, x[:8], epochs=3, progress=False, dtype=torch.float64)
    vae.save(tmp_path)
    for used in (vae, gpin.load(tmp_path)):
        assert same_structure(used, gpin.build(SHAPE, method, D))


# Properties of networks --------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(D, 36), nn.Linear(D, 36)
        self.other.weight = self.one.weight

    def forward(self, z):
        return self.one(z) * self.other(z).sigmoid()


def test_tied_weights_are_trained_once_saved_and_resumed(x, tmp_path):
    def fit(folder=None, **more):
        vae = gpin.build(SHAPE, "vae", D, decoder=Tied, seed=0)
        gpin.fit(vae, x, x[:8], epochs=3, folder=folder, progress=False, ema=0.9, **more)
        return vae

    def interrupt(number, result):
        raise KeyboardInterrupt

    vae = fit()
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", checkpoint_seconds=0, on_epoch=interrupt)
    assert same(vae, fit(tmp_path / "run"))
    vae.save(tmp_path / "model")
    again = gpin.load(tmp_path / "model", decoder=Tied)
    assert same(vae, again)
    for one in (vae, again):
        assert one.decoder.network.one.weight is one.decoder.network.other.weight
    parameters = [p for group in vae.parameter_groups(0.1) for p in group["params"]]
    assert len(parameters) == len(set(parameters)) == len(list(vae.parameters()))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_a_decoder_with_batch_normalisation_and_dropout(method, x):
    vae = gpin.build(SHAPE, method, D, decoder=Wide, seed=0)
    history = gpin.fit(vae, x, x[:8], epochs=3, batch_size=16, progress=False)
    assert torch.isfinite(torch.tensor(history.validation)).all()
    assert vae.decoder.network.layers[1].num_batches_tracked > 0


def test_refinement_evaluates_the_decoder_without_noise_and_statistics_of_the_batch(x):
    vae = gpin.build(SHAPE, "vae", D, decoder=Wide, seed=0).eval()
    expected = vae.refine(x)
    norm = vae.decoder.network.layers[1]
    statistics = norm.running_mean.clone()
    refined = vae.train().refine(x)
    assert norm.training
    assert torch.equal(norm.running_mean, statistics)
    assert torch.equal(refined.mean, expected.mean)
    assert torch.allclose(vae.refine(x[:3]).mean, expected.mean[:3], atol=1e-4)


class Noisy(MyDecoder):
    def forward(self, z):
        return super().forward(z + torch.randn_like(z))


def test_a_decoder_that_is_always_random_is_refused_in_one_line_where_it_cannot_work(x):
    vae = gpin.build(SHAPE, "vae", D, decoder=Noisy)
    gpin.fit(vae, x, x[:8], epochs=1, progress=False)
    with pytest.raises(gpin.InputError, match=r"the Jacobian of the decoder, .* must not draw random") as caught:
        vae.refine(x)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "wanted"), [(None, torch.float32), ("float64", torch.float64)])
def test_networks_of_another_precision_are_converted(dtype, wanted, x):
    decoder = MyDecoder().double()
    weights = decoder.linear.weight.detach().clone()
    vae = gpin.build(SHAPE, "vae", D, decoder=decoder, encoder=MyTrunk, dtype=dtype)
    assert {p.dtype for p in vae.parameters()} == {wanted}
    assert torch.equal(decoder.linear.weight, weights.to(wanted))
    gpin.fit(vae, x, x[:8], epochs=1, progress=False)
    assert vae.reconstruct(x).dtype == wanted
