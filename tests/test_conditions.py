"""Conditional models: p(x|z, c) and q(z|x, c), in which every row takes its condition along."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import gpin
from gpin.conditions import Condition, ConditionColumn, as_condition, beside, joined, parted
from gpin.data import Batches
from gpin.evaluation.grid import posteriors
from gpin.inference import METHODS, method_named
from gpin.likelihoods import LIKELIHOODS, Gaussian, GaussianOptions
from gpin.networks import ARCHITECTURES, ConditionalTrunk, Dense, DenseOptions

LABELS = ["a", "b", "c"]
every = pytest.mark.parametrize("method", list(METHODS))
SIZE, D, VARIANCE = 5, 2, 0.2


def labels(count):
    return [LABELS[i % 3] for i in range(count)]


class Truth:
    """x = A z + B c + b + σ ε, whose log p(x|c) is known, as a conditional VAE with any encoder."""

    def __init__(self, method="vae"):
        self.condition = as_condition({"label": LABELS, "dose": [0.0, 1.0, 2.0]})
        chosen, networks = method_named(method), Dense((SIZE,), DenseOptions(width=16))
        width = self.condition.width
        self.layer = nn.Linear(D + width, SIZE)
        inference = chosen(lambda: ConditionalTrunk(networks.trunk(), (SIZE,), width), D, chosen.Options())
        likelihood = Gaussian((SIZE,), GaussianOptions(variance="fixed", initial_variance=VARIANCE))
        self.vae = gpin.VAE(inference, self.layer, likelihood, condition=self.condition).eval()
        for index in range(len(inference.stages())):
            inference.begin_stage(index)

    def conditions(self, count):
        return {"label": labels(count), "dose": np.linspace(-1, 3, count)}

    def draw(self, count):
        y = self.conditions(count)
        return self.vae.sample(count, noise=True, y=y), y

    @torch.no_grad()
    def log_prob(self, x, y):
        a, b = self.layer.weight.split([D, self.condition.width], dim=1)
        mean = self.condition.numbers(y, len(x)).to(b) @ b.T + self.layer.bias
        return MultivariateNormal(mean, a @ a.T + VARIANCE * torch.eye(SIZE)).log_prob(x)


# Against the truth -----------------------------------------------------------------------------------


@every
def test_refined_importance_sampling_meets_the_known_likelihood(method, double):
    truth = Truth(method)
    x, y = truth.draw(12)
    found = truth.vae.log_likelihood(x, 20, "refined", y=y)
    torch.testing.assert_close(found.values, truth.log_prob(x, y), rtol=1e-5, atol=1e-5)
    assert (found.ess > 19.9).all()


def test_permuted_conditions_give_the_likelihood_of_the_permuted_conditions(double):
    truth = Truth()
    x, y = truth.draw(9)
    other = {"label": y["label"][::-1], "dose": y["dose"][::-1]}
    found = truth.vae.log_likelihood(x, 20, "refined", y=other).values
    torch.testing.assert_close(found, truth.log_prob(x, other), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, truth.log_prob(x, y), atol=0.1)


def test_annealed_chains_modes_and_the_grid_know_the_condition(double):
    truth = Truth()
    x, y = truth.draw(4)
    expected = truth.log_prob(x, y)
    annealed = truth.vae.log_likelihood(x, y=y, estimator="annealed", temperatures=20, chains=30).values
    torch.testing.assert_close(annealed, expected, rtol=0, atol=0.2)
    mixture = truth.vae.modes(x, 3, 1, y=y, draws=200)
    found = truth.vae.log_likelihood(x, 500, mixture, y=y).values
    torch.testing.assert_close(found, expected, rtol=0, atol=0.2)
    grid = [posterior.log_evidence for posterior in posteriors(truth.vae, truth.vae.check(x, y))]
    torch.testing.assert_close(torch.tensor(grid), expected, rtol=0, atol=1e-3)


def test_a_tolerance_leaves_every_instance_its_condition(double):
    truth = Truth("natural")
    x, y = truth.draw(9)
    together = truth.vae.encode(x, y=y, tolerance=0.05, max_steps=6)
    assert len(set(together.ascent.steps.tolist())) > 1  # some go on without the others
    for i in range(len(x)):
        own = {name: column[i] for name, column in y.items()}
        alone = truth.vae.encode(x[i : i + 1], y=own, tolerance=0.05, max_steps=6)
        torch.testing.assert_close(together.mean[i : i + 1], alone.mean)
        assert together.ascent.steps[i] == alone.ascent.steps


def test_coverage_and_the_sandwich_simulate_with_conditions(double):
    truth = Truth()
    refined = truth.vae.coverage(300, "refined", y=truth.conditions(300))  # the posterior is Gaussian: it is exact
    assert (refined.per_dimension(0.8) - 0.8).abs().max() < 0.1
    found = truth.vae.sandwich(4, y=truth.conditions(4), temperatures=20)
    assert found.x.shape == (4, SIZE)
    expected = truth.log_prob(found.x, truth.conditions(4))
    torch.testing.assert_close(found.others["refined"].values, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.upper, expected, rtol=0, atol=1.0)


# Every method ----------------------------------------------------------------------------------------


@every
def test_every_method_serves_a_conditional_model(method, tmp_path):
    x, y = torch.randn(70, SIZE), labels(70)
    vae = gpin.build((SIZE,), method, D, architecture={"width": 8}, given=y, seed=0)
    epochs = max(1, len(vae.inference.stages()))
    gpin.fit(vae, x, y=y, epochs=epochs, batch_size=32, progress=False, calibrate=False)
    few, own = x[:6], y[:6]
    assert vae.encode(few, y=own).mean.shape == (6, D)
    assert vae.sample(4, y="b").shape == vae.sample(4, y=["a", "b", "c", "a"]).shape == (4, SIZE)
    assert vae.refine(few, y=own).mean.shape == (6, D)
    assert vae.log_likelihood(few, 10, y=own).values.isfinite().all()
    assert vae.gap(few, y=own).values.isfinite().all()
    assert vae.posterior(few, 30, y=own).z.shape == (30, 6, D)
    assert vae.reconstruct(few, y=own).shape == few.shape
    assert vae.elbo(few, y=own).value.shape == (6,)
    vae.save(tmp_path)
    again = gpin.load(tmp_path)
    assert again.condition == vae.condition
    seeded = []
    for model in (vae, again):
        torch.manual_seed(1)
        seeded.append(model.encode(few, y=own).mean)
    assert torch.equal(*seeded)


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
@pytest.mark.parametrize("likelihood", sorted(set(LIKELIHOODS) - {"categorical", "mixed"}))  # which are for tables
def test_every_architecture_and_likelihood_serves_a_conditional_model(architecture, likelihood):
    x, y = torch.rand(12, 1, 8, 8).round(), torch.arange(12) % 3
    options = {"kind": architecture, "width": 8}
    vae = gpin.build((1, 8, 8), "vae", D, likelihood=likelihood, architecture=options, given=y, seed=0)
    gpin.fit(vae, x, y=y, epochs=1, augmentation="shift", progress=False)
    assert vae.refine(x[:3], y=y[:3]).mean.shape == (3, D)
    assert vae.sample(2, y=1, noise=True).shape == (2, 1, 8, 8)


def test_networks_of_ones_own_get_z_with_the_condition_beside_it():
    y = labels(10)
    vae = gpin.build((4,), "vae", D, encoder=nn.Linear(4, 7), decoder=nn.Linear(D + 3, 4), given=y, seed=0)
    gpin.fit(vae, torch.randn(10, 4), y=y, epochs=1, progress=False)
    with pytest.raises(gpin.InputError, match=r"the decoder fails for a batch of shape \(2, 5\)"):
        gpin.build((4,), "vae", D, decoder=nn.Linear(D, 4), given=y)


def test_a_model_learns_what_its_labels_mean():
    centres = {"a": -2.0, "b": 0.0, "c": 2.0}
    y = labels(300)
    x = torch.tensor([[centres[label]] * 3 for label in y]) + 0.3 * torch.randn(300, 3)
    vae = gpin.build((3,), "vae", 1, architecture={"width": 16}, given=y, seed=0)
    gpin.fit(vae, x, y=y, epochs=12, batch_size=32, learning_rate=1e-2, progress=False)
    for label, centre in centres.items():
        assert (vae.sample(200, y=label).mean(0) - centre).abs().max() < 0.4
    right, wrong = (vae.log_likelihood(x[:60], 20, y=some).mean for some in (y[:60], labels(61)[1:]))
    assert right > wrong + 5


def test_improving_a_conditional_model_leaves_its_decoder_alone():
    x, y = torch.randn(60, SIZE), labels(60)
    vae = gpin.build((SIZE,), "vae", D, architecture={"width": 8}, given=y, seed=0)
    gpin.fit(vae, x, y=y, epochs=1, progress=False)
    before = [p.clone() for p in vae.decoder.parameters()]
    gpin.improve(vae, x[:50], x[50:], y=y[:50], y_val=y[50:], epochs=1, progress=False, tell=lambda sentence: None)
    assert all(torch.equal(one, other) for one, other in zip(before, vae.decoder.parameters(), strict=True))
    vae.calibrate(x, y=y, simulations=60)
    assert vae.encode(x, y=y, calibrated=True).mean.shape == (60, D)


# Rows that carry their conditions --------------------------------------------------------------------


def test_joined_rows_stand_for_x_and_y():
    x, y = torch.randn(6, SIZE), labels(6)
    vae = gpin.build((SIZE,), "vae", D, given=LABELS, seed=0).eval()
    rows = vae.check(x, y)
    assert rows.shape == (6, SIZE + 3)
    assert torch.equal(vae.values(rows), x)
    assert torch.equal(vae.encode(rows).mean, vae.encode(x, y=y).mean)
    assert torch.equal(vae.check(rows), rows)
    rows[2, -1] = torch.nan
    with pytest.raises(gpin.InputError, match="conditions of joined rows must be finite"):
        vae.check(rows)


def test_held_out_and_shuffled_rows_keep_their_conditions():
    x, y = torch.arange(50.0)[:, None].repeat(1, 3), np.arange(50.0)
    vae = gpin.build((3,), "vae", 1, given=y)
    from gpin.training.loop import as_batches
    from gpin.training.settings import TrainingConfig

    for data in (x, x.numpy(), torch.utils.data.TensorDataset(x, x)):
        training, validation, _ = as_batches(vae, data, None, TrainingConfig(batch_size=7), y)
        for batches in (training, validation):
            for rows, numbers in batches:
                values, c = parted(rows, (3,))
                assert torch.equal(values[:, 0], batches.original(numbers).float())
                np.testing.assert_allclose(vae.condition.values(c)["y"], values[:, 0], atol=1e-4)


def test_a_decoder_sees_every_instance_with_its_own_condition():
    z, c = torch.randn(4, 3, D), torch.randn(3, 2)
    assert torch.equal(beside(z, c)[..., :D], z)
    assert torch.equal(beside(z, c)[2, :, D:], c)
    assert joined(torch.zeros(3, 1, 2, dtype=torch.uint8), c).dtype == c.dtype


def test_training_in_a_folder_resumes_with_conditions(tmp_path):
    x, y = torch.randn(40, 3), labels(40)

    def trained(conditions):
        vae = gpin.build((3,), "vae", 1, architecture={"width": 4}, given=LABELS, seed=0)
        gpin.fit(vae, x, y=conditions, epochs=1, folder=tmp_path, progress=False)
        return vae.checksum()

    assert trained(y) == trained(y)
    with pytest.raises(gpin.InputError, match="holds another run"):
        trained(y[::-1])


# What a condition is ---------------------------------------------------------------------------------


def test_labels_are_ones_among_zeros_and_numbers_are_standardised():
    condition = as_condition({"label": np.array([3, 1, 3]), "dose": [1.0, 2.0, 3.0], "on": [True, False, True]})
    assert condition.columns[0].levels == (1, 3)
    assert condition.width == 5
    c = condition.numbers({"on": False, "dose": ["2", "3"], "label": ["1", "3"]}, 2)
    assert torch.equal(condition.numbers({"on": 0, "dose": [2.0, 3.0], "label": [1.0, 3.0]}, 2), c)
    expected = [[1, 0, 0, 1, 0], [0, 1, 1.5**0.5, 1, 0]]
    torch.testing.assert_close(c, torch.tensor(expected, dtype=torch.float64))
    again = condition.values(c)
    assert again["label"].tolist() == [1, 3]
    np.testing.assert_allclose(again["dose"], [2.0, 3.0])
    assert Condition.parse(condition.model_dump(mode="json"), "the condition") == condition


def test_data_frames_and_arrays_are_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"kind": ["x", "y", "x"], "size": [1, 2, 2]})
    condition = as_condition(frame)
    assert condition.names == ("kind", "size")
    assert as_condition(frame["kind"]).names == ("kind",)
    array = frame.to_numpy()
    assert torch.equal(condition.numbers(array, 3), condition.numbers(frame, 3))
    assert as_condition(torch.tensor([[0.0, 1.0], [1.0, 3.0]])).names == ("y1", "y2")


def test_the_record_of_a_model_without_a_condition_is_as_before():
    assert "condition" not in gpin.build((3,), "vae").config.model_dump(mode="json")
    assert "condition" not in vars(gpin.build((3,), "vae"))
    assert gpin.build((3,), "vae", given=[1, 2]).config.model_dump(mode="json")["condition"] == {
        "columns": [{"name": "y", "levels": [1, 2], "mean": 0.0, "deviation": 1.0}]
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a", "a"], "is always 'a'"),
        ([1.0, 1.0], "is always 1:"),
        ([1.0, np.nan], "is nan in row 1"),
        (["a", None], "has no value in row 1"),
        (range(2000), "has 2,000 levels, but at most 1,000"),
        ({}, "has no columns"),
        (np.zeros((2, 2, 2)), r"must have the shape \(n,\)"),
        ([], "must be one value per instance"),
        ([1j, 2j], "must be labels or numbers"),
        ([[1], [1, 2]], "array or a list of values of one kind"),
    ],
)
def test_what_cannot_be_a_condition_is_refused(given, message):
    with pytest.raises(gpin.InputError, match=message):
        as_condition(given)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "conditional on label and dose: give the conditions as y"),
        ({"label": "a"}, "the condition 'dose' is missing"),
        ({"label": "z", "dose": 1.0}, "'label' has no level 'z': choose from a, b, c"),
        (
            {"label": ["a", "b"], "dose": 1.0},
            "one condition for each of 3 instances, or one for all, but 'label' has 2",
        ),
        ({"label": "a", "dose": "much"}, "'dose' must be numbers, got 'much'"),
        (["a", "b", "c"], "must have the columns label, dose: give a mapping"),
        (np.zeros((3, 3)), "got an array of 3 columns"),
    ],
)
def test_conditions_that_do_not_fit_are_refused(y, message):
    vae = gpin.build((SIZE,), "vae", D, given={"label": LABELS, "dose": [0.0, 1.0, 2.0]})
    for call in (lambda: vae.encode(torch.zeros(3, SIZE), y=y), lambda: vae.sample(3, y=y)):
        with pytest.raises(gpin.InputError, match=message):
            call()


def test_a_model_without_a_condition_refuses_one():
    plain, x = gpin.build((3,), "vae", 1), torch.zeros(4, 3)
    for call in (
        lambda: plain.encode(x, y="a"),
        lambda: plain.sample(2, y="a"),
        lambda: gpin.fit(plain, x, y=labels(4), epochs=1, progress=False),
    ):
        with pytest.raises(gpin.InputError, match="this model has no condition: leave out y"):
            call()


def test_training_data_needs_matching_conditions():
    x, y = torch.zeros(4, 3), labels(4)
    vae = gpin.build((3,), "vae", 1, given=LABELS)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x))
    for arguments, message in (
        ({}, "conditional on y: give the conditions as y"),
        ({"y": y, "x_val": x}, "y and y_val belong together"),
        ({"y": y, "y_val": y}, "y_val needs x_val"),
        ({"y": y[:3]}, "one condition for each of 4 instances"),
    ):
        with pytest.raises(gpin.InputError, match=message):
            gpin.fit(vae, x, epochs=1, progress=False, **arguments)
    with pytest.raises(gpin.InputError, match="cannot be matched with a DataLoader"):
        gpin.fit(vae, loader, x, y=y, y_val=y, epochs=1, progress=False)
    assert len(Batches(x, 2)) == 2


def test_a_warm_start_needs_the_same_condition():
    plain = gpin.build((3,), "vae", 1)
    with pytest.raises(gpin.InputError, match="another condition"):
        gpin.build((3,), "natural", 1, given=LABELS, start=plain)
    assert ConditionColumn(name="y", levels=(1, 2)).width == 2


def test_a_conditional_model_is_not_exported(tmp_path):
    vae = gpin.build((3,), "vae", 1, given=LABELS)
    with pytest.raises(gpin.InputError, match="conditional on y and cannot be exported"):
        gpin.export(vae, tmp_path / "encoder.onnx")


@pytest.mark.slow
def test_the_samples_of_every_digit_look_like_that_digit():
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    digits = load_digits()
    x, y = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], digits.target
    vae = gpin.build((1, 8, 8), "vae", 4, given=y, seed=0)
    gpin.fit(vae, x, y=y, epochs=30, learning_rate=2e-3, progress=False)
    judge = LogisticRegression(max_iter=1000).fit(x.flatten(1), y)
    wanted = np.arange(10).repeat(30)
    drawn = vae.sample(300, y=wanted)
    assert (judge.predict(drawn.flatten(1)) == wanted).mean() > 0.9


def test_bytes_are_warned_about_with_conditions_too():
    vae = gpin.build((4,), "vae", 2, given=["a", "b"], architecture={"width": 4}, seed=0)
    x = torch.randint(0, 256, (20, 4), dtype=torch.uint8)
    with pytest.warns(UserWarning, match="x holds bytes"):
        gpin.fit(vae, x, y=["a", "b"] * 10, epochs=1, progress=False, calibrate=False)
