"""`gpin.improve`: a better encoder for the same decoder."""

import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin.inference import METHODS
from gpin.training import improve as exported

FAST = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-3, "progress": False, "calibrate": False}
FAST["tell"] = lambda sentence: None


def rest(vae):
    """All but the encoder."""
    return {name: value.clone() for name, value in vae.state_dict().items() if not name.startswith("inference.")}


@pytest.mark.parametrize("samples", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_the_encoders_bound_approaches_the_log_likelihood_of_the_true_decoder(samples):
    truth = LinearGaussian.random()
    vae, x, held, test = truth.vae("vae", known=True), truth.sample(2000), truth.sample(200), truth.sample(500)
    vae.prepared.fill_(True)
    before = rest(vae)
    said = []
    exact = truth.log_prob(test).mean()
    with torch.no_grad():
        gap = exact - vae.elbo(test, 20).value.mean()
    history = gpin.improve(
        vae, x, held, samples=samples, epochs=12, learning_rate=1e-2, progress=False, tell=said.append
    )
    with torch.no_grad():
        left = exact - vae.elbo(test, 20).value.mean()
    assert gap > 5
    assert left < 0.2
    assert history.gain > 5
    assert history.after == max(history.scores)
    assert said == [
        f"the validation score rose by {history.gain:.1f} nats, from {history.before:.1f} to {history.after:.1f}, in "
        f"epoch {history.best} of 12; the decoder is unchanged"
    ]
    after = rest(vae)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert vae.calibrated
    assert not vae.training
    assert all(p.requires_grad for p in vae.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_improved_and_its_decoder_stays(method):
    x = LinearGaussian.random().sample(80)
    vae = LinearGaussian.random().vae(method, width=8)
    gpin.fit(vae, x[:60], x[60:], epochs=3, progress=False, tell=FAST["tell"])
    before, encoder = rest(vae), [p.detach().clone() for p in vae.inference.parameters()]
    history = gpin.improve(vae, x[:60], x[60:], samples=0.3, weight_decay=0.1, ema=0.5, **FAST)
    assert len(history.epochs) == 3
    assert history.gain >= 0
    after = rest(vae)
    assert all(torch.equal(before[name], after[name]) for name in before)
    if history.best:
        assert any(not torch.equal(a, b) for a, b in zip(encoder, vae.inference.parameters(), strict=True))


@pytest.mark.slow
def test_the_encoder_alone_is_improved_for_answers_without_steps():
    """The decoder is the true one, and with one step even a poor encoder is near the posterior."""
    truth = LinearGaussian(torch.randn(6, 2), torch.randn(6), 0.3)
    vae, x, held = truth.vae("natural", known=True, width=16), truth.sample(1500), truth.sample(300)
    vae.prepared.fill_(True)
    gpin.improve(vae, x, held, **{**FAST, "learning_rate": 1e-3})
    own, alone = (vae.log_likelihood(held, samples=4, steps=steps).mean for steps in (1, 0))
    options = {**FAST, "epochs": 8, "batch_size": 64, "learning_rate": 1e-2}
    said = []
    history = gpin.improve(vae, x, held, steps=0, **{**options, "calibrate": True, "tell": said.append})
    assert vae.inference.options.steps == 1
    assert said[-1].startswith("the validation score with 0 steps rose by ")
    assert list(vae.calibrations) == [None, 0]
    assert history.gain > 0.5 * (own - alone)
    assert vae.log_likelihood(held, samples=4, steps=0).mean > alone + 0.5 * (own - alone)


def test_steps_are_for_methods_that_take_them():
    vae, x = LinearGaussian.random().vae("vae", width=8), LinearGaussian.random().sample(60)
    with pytest.raises(gpin.InputError, match="method 'vae' cannot be trained with another number of steps"):
        gpin.improve(vae, x, steps=0, **FAST)
    with pytest.raises(gpin.InputError, match="steps must be a whole number"):
        gpin.improve(LinearGaussian.random().vae("natural", width=8), x, steps=-1, **FAST)


def test_statistics_of_the_likelihood_and_dropout_of_the_decoder_do_not_change():
    x = torch.rand(60, 1, 8, 8)
    vae = gpin.build(
        (1, 8, 8), "vae", 2, likelihood={"variance": "analytic"}, architecture={"channels": (4, 4), "width": 8}, seed=0
    )
    gpin.fit(vae, x[:40], x[40:], epochs=2, progress=False)
    before = rest(vae)
    gpin.improve(vae, x[:40], x[40:], augmentation="flip", **FAST)
    assert all(torch.equal(value, rest(vae)[name]) for name, value in before.items())


def test_a_model_that_cannot_be_improved_is_left_as_it_was():
    x, said = LinearGaussian.random().sample(80), []
    vae = LinearGaussian.random().vae("vae", width=8)
    gpin.fit(vae, x[:60], x[60:], epochs=3, progress=False)
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    history = gpin.improve(vae, x[:60], x[60:], **{**FAST, "learning_rate": 10.0, "tell": said.append})
    assert (history.best, history.gain) == (0, 0)
    assert said[-1].startswith("none of 3 epochs improved the validation score of ")
    assert all(torch.equal(value, vae.state_dict()[name]) for name, value in before.items())


def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_state_alone():
    x = LinearGaussian.random().sample(80)
    torch.manual_seed(9)
    expected = torch.rand(2)
    torch.manual_seed(9)
    found = []
    for seed in (3, 3, 4):
        vae = LinearGaussian.random().vae("vae", width=8)
        with torch.no_grad():
            for p in vae.parameters():
                p.fill_(0.1)
        gpin.improve(vae, x, samples=0.5, seed=seed, **FAST)
        found.append(torch.cat([p.detach().flatten() for p in vae.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    torch.manual_seed(9)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"samples": 1.5}, "samples must be a weight from 0 to 1, got 1.5"),
        ({"samples": -0.1}, "samples must be"),
        ({"samples": True}, "samples must be"),
        ({"samples": "half"}, "samples must be"),
        ({"epochs": 0}, "epochs"),
        ({"vae": "model"}, "must be a gpin.VAE, got str"),
        ({"x": torch.rand(20, 7)}, "shape"),
        ({"validation": torch.full((5, 8), torch.nan)}, "NaN"),
        ({"augmentation": "shift"}, "is for images"),
        ({"on_epoch": 3}, "on_epoch"),
        ({"vae": gpin.build((8,), "gp", 2), "x": torch.rand(20, 8)}, "size of the training set"),
    ],
)
def test_bad_arguments_are_named_in_one_line(arguments, said):
    given = {"vae": gpin.build((8,), "vae", 2), "x": torch.rand(20, 8), **FAST, **arguments}
    with pytest.raises(gpin.InputError, match=said) as caught:
        gpin.improve(**given)
    assert "\n" not in str(caught.value)


def test_it_is_a_public_name():
    assert gpin.improve is exported
