"""A method, a likelihood and an architecture that are registered from outside work everywhere, without another line."""

import json
import math
from typing import Literal

import numpy as np
import onnxruntime
import pytest
import torch
from pydantic import Field
from torch import nn

import gpin
from gpin.cli import main
from gpin.distributions import DiagonalNormal
from gpin.evaluation.timing import inference_times
from gpin.experiments import PROTOCOLS, Study
from gpin.experiments.execution.jobs import Scoring
from gpin.export import export
from gpin.inference import METHODS, InferenceModel, MethodConfig, Uncertainty
from gpin.likelihoods import LIKELIHOODS, Likelihood, LikelihoodConfig
from gpin.networks import ARCHITECTURES, Architecture, ArchitectureConfig, CentredDecoder, CentredTrunk

SHAPE, D = (4,), 2


class ToyConfig(MethodConfig):
    """Options of the toy method.

    Arguments:
        spread: The standard deviation of every posterior.
    """

    spread: float = Field(default=0.5, gt=0)


class ToyEncoder(InferenceModel[ToyConfig]):
    """q(z|x) = N(mean(x), spread²), with an uncertainty that is made up."""

    name = "toy"
    label = "Toy method"
    title = "TOY: one standard deviation for all"
    reference = "nowhere"
    Options = ToyConfig
    closed_form_kl = True
    export_refusal = "it is a toy"
    has_uncertainty = True

    def __init__(self, make_trunk, latent_dim, options=None):
        super().__init__(make_trunk, latent_dim, options)
        self.trunk = make_trunk()
        self.head = nn.Linear(self.trunk.out_features, latent_dim)

    def forward(self, x, model):
        mean = self.head(self.trunk(x))
        return DiagonalNormal(mean, torch.full_like(mean, self.options.spread))

    def uncertainty(self, x):
        return Uncertainty(x.flatten(1).sum(-1), x.flatten(1).square().sum(-1))


class LogisticOptions(LikelihoodConfig):
    """Options of the toy likelihood.

    Arguments:
        scale: The scale of the logistic distribution.
    """

    kind: Literal["logistic"] = "logistic"
    scale: float = Field(default=0.2, gt=0)


class Logistic(Likelihood[LogisticOptions]):
    """A logistic density around the output: −u − 2 log(1 + e^−u) − log s with u = (x − output)/s."""

    name = "logistic"
    title = "Logistic: heavier tails than a Gaussian's"
    Options = LogisticOptions

    def log_prob(self, x, output):
        u = (x - output) / self.options.scale
        return self._sum(-u - 2 * nn.functional.softplus(-u) - math.log(self.options.scale))

    def mean(self, output):
        return output

    def sample(self, output):
        u = torch.rand_like(output).clamp(1e-6, 1 - 1e-6)
        return output + self.options.scale * torch.logit(u)

    def score_and_precision(self, x, output):
        scale = self.options.scale
        return torch.tanh((x - output) / (2 * scale)) / scale, torch.full_like(output, 1 / (3 * scale**2))


class ShallowOptions(ArchitectureConfig):
    """Options of the toy architecture.

    Arguments:
        units: The width of its one layer.
    """

    kind: Literal["toy-layers"] = "toy-layers"
    units: int = Field(default=5, ge=1)


class Shallow(Architecture[ShallowOptions]):
    """One hidden layer in trunk and decoder."""

    name = "toy-layers"
    title = "Toy layers: one hidden layer"
    Options = ShallowOptions

    def trunk(self):
        units = self.options.units
        return CentredTrunk(self.shape, [nn.Flatten(), nn.Linear(math.prod(self.shape), units), nn.Tanh()], units)

    def decoder(self, latent_dim, outputs=1):
        shape, units = self.output_shape(outputs), self.options.units
        layers = [nn.Linear(latent_dim, units), nn.Tanh(), nn.Linear(units, math.prod(shape)), nn.Unflatten(1, shape)]
        return CentredDecoder(shape, layers)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for registry, entry in ((METHODS, ToyEncoder), (LIKELIHOODS, Logistic), (ARCHITECTURES, Shallow)):
        monkeypatch.setitem(registry, entry.name, entry)


TOYS = {
    "method": {"method": "toy", "spread": 0.3},
    "likelihood": {"method": "vae", "likelihood": {"kind": "logistic", "scale": 0.1}},
    "architecture": {"method": "vae", "architecture": {"kind": "toy-layers", "units": 6}},
}
every = pytest.mark.parametrize("options", TOYS.values(), ids=TOYS)


@every
def test_it_is_built_trained_saved_and_loaded(options, tmp_path):
    vae, x = gpin.build(SHAPE, latent_dim=D, seed=0, **options), torch.rand(60, *SHAPE)
    with torch.no_grad():
        vae.prepare(x)
        before = vae.elbo(x, samples=50).value.mean()
    gpin.fit(vae, x, epochs=20, batch_size=20, learning_rate=1e-2, seed=0, progress=False)
    with torch.no_grad():
        assert vae.eval().elbo(x, samples=50).value.mean() > before
    vae.save(tmp_path)
    again = gpin.load(tmp_path)
    for model in (vae, again):
        torch.manual_seed(1)
        model.told = model.log_likelihood(x[:5], 20, "refined").values
    assert torch.equal(vae.told, again.told)
    assert type(again.inference) is type(vae.inference)
    assert type(again.likelihood) is type(vae.likelihood)


def test_the_likelihood_is_a_density_whose_curvature_is_expected(double):
    """Its integral, and the mean of the squared score, which is the expected curvature."""
    likelihood = Logistic((1,))
    x, output = torch.linspace(-8, 8, 20_001).unsqueeze(-1), torch.zeros(20_001, 1)
    density = likelihood.log_prob(x, output).exp() * (x[1] - x[0])
    assert density.sum().item() == pytest.approx(1, abs=1e-6)
    score, precision = likelihood.score_and_precision(x, output)
    assert (density * score[:, 0].square()).sum().item() == pytest.approx(precision[0].item(), rel=1e-5)


def test_every_method_takes_the_likelihood_and_the_architecture():
    x = torch.rand(5, *SHAPE)
    for method in METHODS:
        vae = gpin.build(SHAPE, method, D, likelihood="logistic", architecture="toy-layers", seed=0)
        vae.prepare(x)
        vae.loss(x).backward()
        assert torch.isfinite(vae.log_likelihood(x, 3).values).all()


@every
def test_its_inference_is_timed(options):
    models = {
        "VAE": gpin.build(SHAPE, "vae", D, seed=0).eval(),
        "toy": gpin.build(SHAPE, latent_dim=D, seed=0, **options).eval(),
    }
    times = inference_times(models, torch.rand(8, *SHAPE), repeats=3)
    assert list(times) == ["VAE", "toy"]
    assert times["toy"].median > 0
    assert times["toy"].ratio > 0


def test_a_method_that_refuses_export_says_why_and_is_not_suggested(tmp_path):
    vae = gpin.build(SHAPE, "toy", D, seed=0)
    with pytest.raises(
        gpin.InputError, match="method 'toy' cannot be exported: it is a toy; use it in Python"
    ) as caught:
        export(vae, tmp_path / "toy.onnx")
    offered = str(caught.value).rpartition("export one of ")[2].split(", ")
    assert "toy" not in offered
    assert {"vae", "gp"} <= set(offered)
    assert not list(tmp_path.iterdir())


def test_a_method_that_does_not_refuse_is_exported_with_its_uncertainty(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyEncoder, "export_refusal", None)
    vae, x = gpin.build(SHAPE, "toy", D, seed=0).eval(), torch.rand(3, *SHAPE)
    export(vae, tmp_path / "toy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "toy.onnx", providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": x.numpy()}), strict=True))
    np.testing.assert_allclose(found["mean"], vae.encode(x).mean.detach(), atol=1e-5)
    np.testing.assert_allclose(found["std"], np.full((3, D), 0.5), atol=1e-6)
    np.testing.assert_allclose(found["uncertainty_f"], x.sum(-1), atol=1e-5)
    with pytest.raises(gpin.InputError, match=r"'sa'.*export one of .*toy"):
        export(gpin.build(SHAPE, "sa", D), tmp_path / "sa.onnx")


@pytest.mark.parametrize("options", [TOYS["likelihood"], TOYS["architecture"]], ids=["likelihood", "architecture"])
def test_a_likelihood_and_an_architecture_do_not_stand_in_the_way_of_export(options, tmp_path):
    vae, x = gpin.build(SHAPE, latent_dim=D, seed=0, **options).eval(), torch.rand(3, *SHAPE)
    export(vae, tmp_path / "toy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "toy.onnx", providers=["CPUExecutionProvider"])
    mean = session.run(["mean"], {"x": x.numpy()})[0]
    np.testing.assert_allclose(mean, vae.encode(x).mean.detach(), atol=1e-5)


SETTINGS = {
    "method": ["--method", "toy", "--set", "spread=0.3"],
    "likelihood": ["--method", "vae", "--set", "likelihood=logistic", "--set", "likelihood.scale=0.1"],
    "architecture": ["--method", "vae", "--set", "architecture=toy-layers", "--set", "architecture.units=6"],
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_run_with_it_is_trained_scored_encoded_and_recognised(settings, tmp_path, capsys):
    np.savetxt(
        tmp_path / "x.csv", np.random.default_rng(0).random((60, 4)), delimiter=",", header="a,b,c,d", comments=""
    )
    train = ["train", str(tmp_path / "x.csv"), "--epochs", "2", "--latent-dim", "2", "--out", str(tmp_path / "runs")]
    assert main([*train, *settings]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert main([*train, *settings]) == 0
    assert list((tmp_path / "runs").iterdir()) == [run]  # the same command finds the run
    capsys.readouterr()
    assert main(["evaluate", str(run), "--samples", "5", "--json"]) == 0
    assert math.isfinite(json.loads(capsys.readouterr().out)["log_likelihood"]["mean"])
    assert main(["encode", str(run), str(tmp_path / "x.csv"), "-o", str(tmp_path / "codes.csv"), "--samples", "0"]) == 0
    header = (tmp_path / "codes.csv").read_text().splitlines()[0]
    assert ("uncertainty_f" in header) == ("toy" in settings)
    assert main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 0


def test_a_comparison_of_runs_names_each(tmp_path, capsys):
    """Rows of the tables of experiments are in tests/experiments/test_study.py."""
    rows = np.random.default_rng(0).random((60, 4))
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="a,b,c,d", comments="")
    train = ["train", str(tmp_path / "x.csv"), "--epochs", "1", "--latent-dim", "2", "--out", str(tmp_path / "runs")]
    for settings in (["--method", "vae"], *SETTINGS.values()):
        assert main([*train, *settings]) == 0
    runs = [str(run) for run in (tmp_path / "runs").iterdir()]
    assert len(runs) == 4
    assert main(["report", *runs, "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in ("toy", "logistic", "toy-layers"))


@pytest.mark.parametrize(
    ("arguments", "entry", "option"),
    [
        ([], ToyEncoder, ("spread", 0.5, "The standard deviation of every posterior.")),
        (["likelihoods"], Logistic, ("scale", 0.2, "The scale of the logistic distribution.")),
        (["architectures"], Shallow, ("units", 5, "The width of its one layer.")),
    ],
    ids=TOYS,
)
def test_gpin_methods_lists_it_with_its_options(arguments, entry, option, capsys):
    assert main(["methods", *arguments, "--json"]) == 0
    record = {record["name"]: record for record in json.loads(capsys.readouterr().out)}[entry.name]
    assert record["title"] == entry.title
    assert [(found["name"], found["default"], found["help"]) for found in record["options"]] == [option]
    assert main(["methods", *arguments]) == 0
    shown = capsys.readouterr().out
    assert entry.title in shown
    assert option[0] in shown


def test_gpin_methods_says_what_a_method_can_do(capsys):
    assert main(["methods", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)[-1]
    told = {name: record[name] for name in ("label", "has_uncertainty", "closed_form_kl", "export_refusal")}
    assert told == {
        "label": "Toy method",
        "has_uncertainty": True,
        "closed_form_kl": True,
        "export_refusal": "it is a toy",
    }


def test_an_experiment_has_the_method_as_a_row_of_its_table(tmp_path):
    few = {"epochs": 1, "limit": 100, "validation_limit": 50, "splits": 1}
    protocol = PROTOCOLS["desk"].model_copy(update={**few, "scoring": Scoring(samples=25, instances=10)})
    study = Study("digits", protocol, tmp_path, rows=["vae", "toy"], latent_dim=2)
    assert study.run("serial").failed == {}
    assert [row[0] for row in study.tables()[0].rows] == ["VAE", ToyEncoder.label]
