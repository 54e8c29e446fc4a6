"""Weight decay, the moving average and augmentation, against what they are defined to be."""

import pytest
import torch

import gpin
from gpin.training import TrainingConfig
from gpin.training.augmentation import augmented, largest_shift
from gpin.training.trainer import Trainer

IMAGES = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(1))
FIT = {"epochs": 2, "batch_size": 10, "learning_rate": 2e-3, "progress": False}


def model(method="vae", **options):
    return gpin.build((1, 8, 8), method, 2, architecture={"channels": (4, 4), "width": 8}, seed=0, **options)


def trace(monkeypatch, vae, **options):
    """The weights after every step, and what training made of them."""
    weights, step = [], Trainer._step

    def remember(self, *arguments):
        result = step(self, *arguments)
        weights.append({name: p.detach().clone() for name, p in self.vae.named_parameters()})
        return result

    monkeypatch.setattr(Trainer, "_step", remember)
    gpin.fit(vae, IMAGES, IMAGES[:8], **FIT, **options)
    return weights


def test_the_average_is_that_of_the_weights_after_every_step(monkeypatch, double):
    vae = model()
    vae.prepare(IMAGES)  # which sets the first variance
    average = {name: p.detach().clone() for name, p in vae.named_parameters()}
    monkeypatch.setattr("gpin.training.trainer.validate", lambda vae, *rest: (score(vae), 0.0))
    seen = []

    def score(vae):
        seen.append({name: p.detach().clone() for name, p in vae.named_parameters()})
        return float(len(seen))

    weights = trace(monkeypatch, vae, ema=0.8)
    for number, now in enumerate(weights, start=1):
        average = {name: 0.8 * average[name] + 0.2 * value for name, value in now.items()}
        if number % 3 == 0:  # the end of an epoch, where the average is validated
            for name, value in average.items():
                torch.testing.assert_close(seen[number // 3 - 1][name], value, rtol=1e-12, atol=1e-14)
    for name, p in vae.named_parameters():  # and the average is the result
        torch.testing.assert_close(p.detach(), average[name], rtol=1e-12, atol=1e-14)


def test_decay_shrinks_weights_besides_the_step_of_adam(monkeypatch, double):
    """After one step: θ − lr·decay·θ − lr·sign, where Adam's first step does not depend on the decay."""
    start = {name: p.detach().clone() for name, p in model("gp").named_parameters()}
    plain = trace(monkeypatch, model("gp"))[0]
    decayed = trace(monkeypatch, model("gp"), weight_decay=0.5)[0]
    shrunk = {name for name in start if not torch.equal(plain[name], decayed[name])}
    for name in shrunk:
        torch.testing.assert_close(decayed[name], plain[name] - 2e-3 * 0.5 * start[name], rtol=1e-9, atol=1e-12)
    assert shrunk == {name for name, p in start.items() if name.endswith("weight")}
    assert any(name.startswith("decoder") for name in shrunk)
    assert any(name.startswith("inference") for name in shrunk)


def test_no_decay_is_the_adam_of_before(monkeypatch):
    groups = model("gp").parameter_groups(1e-3)
    assert {group["weight_decay"] for group in groups} == {0.0}
    whole = [p for group in model("gp").parameter_groups(1e-3, 0.1) for p in group["params"]]
    assert len(whole) == len(list(model("gp").parameters()))


def test_shifts_move_whole_images_and_repeat_their_edges():
    x = torch.arange(2 * 28 * 28.0).reshape(1, 2, 28, 28).expand(500, 2, 28, 28)
    y = augmented(x, "shift")
    assert y.shape == x.shape
    offsets = set()
    for image in y:
        corner = int(image[0, 14, 14]) - int(x[0, 0, 14, 14])
        down, right = round(corner / 28), corner - 28 * round(corner / 28)
        offsets.add((down, right))
        rows = (torch.arange(28) + down).clamp(0, 27)
        columns = (torch.arange(28) + right).clamp(0, 27)
        assert torch.equal(image, x[0][:, rows][:, :, columns])
    assert offsets == {(down, right) for down in range(-2, 3) for right in range(-2, 3)}
    assert [largest_shift(size) for size in (2, 8, 28, 64)] == [1, 1, 2, 5]


def test_flips_mirror_left_and_right_in_half_of_the_images():
    x = torch.rand(400, 3, 5, 7)
    y = augmented(x, "flip")
    mirrored = torch.tensor([torch.equal(a, b.flip(-1)) for a, b in zip(y, x, strict=True)])
    same = torch.tensor([torch.equal(a, b) for a, b in zip(y, x, strict=True)])
    assert (mirrored ^ same).all()
    assert 150 < mirrored.sum() < 250


@pytest.mark.parametrize("kind", ["shift", "flip", "shift+flip"])
def test_training_sees_augmented_images_and_validation_does_not(kind, monkeypatch):
    seen, validated = [], []
    vae = model()
    objective = type(vae.inference).objective

    def spied(self, x, *arguments, **more):
        seen.append(x.clone())
        return objective(self, x, *arguments, **more)

    monkeypatch.setattr(type(vae.inference), "objective", spied)
    monkeypatch.setattr(vae, "log_joint", lambda x, z: validated.append(x.clone()) or z.sum(-1))
    gpin.fit(vae, IMAGES, IMAGES[:8], augmentation=kind, **FIT)
    known = {image.numpy().tobytes() for image in IMAGES}
    assert not all(image.numpy().tobytes() in known for x in seen for image in x)
    assert all(torch.equal(x, IMAGES[:8]) for x in validated)
    assert validated


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight_decay": -0.1}, "option 'weight_decay' of training must be greater than or equal to 0, got -0.1"),
        ({"weight_decay": 11}, "weight_decay"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"augmentation": "rotate"}, "option 'augmentation' of training"),
        ({"augmentation": True}, "augmentation"),
        ({"ema": 1.0}, "ema"),
    ],
)
def test_options_out_of_range_are_one_sentence(options, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        gpin.fit(model(), IMAGES, **{**FIT, **options})
    assert "\n" not in str(caught.value)


def test_tables_are_not_augmented():
    with pytest.raises(gpin.InputError, match=r"is for images of shape .*, but the data has shape \(6,\); use"):
        gpin.fit(gpin.build((6,), "vae", 2), torch.rand(20, 6), augmentation="shift", **FIT)


def test_options_that_are_not_used_do_not_change_the_identity_of_a_run():
    assert TrainingConfig().model_dump(mode="json").keys() == {
        *("epochs", "batch_size", "learning_rate", "schedule", "clip_norm", "ema", "patience", "seed")
    }
    used = TrainingConfig(weight_decay=0.1, augmentation="flip")
    assert TrainingConfig.parse(used.model_dump(mode="json"), "training") == used
