"""What is exported says in onnxruntime what the VAE says in torch."""

import sys
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin.data import Scaling
from gpin.distributions import DiagonalNormal
from gpin.export import export
from gpin.inference import METHODS, InferenceModel, MethodConfig

TABLE, IMAGE = (6,), (1, 28, 28)
BATCHES = (1, 2, 7, 128)
PARTS = ("uncertainty", "uncertainty_f", "uncertainty_h")

VARIANTS = [
    (TABLE, "gp", {"covariance": "full", "min_variance": 0.01}),
    (IMAGE, "gp", {}),
]
SLOW = [
    (TABLE, "gp", {"covariance": "diagonal", "marginal": "exact"}),
    (TABLE, "gp", {"towers": "deterministic", "shared_trunk": False}),
    (TABLE, "hf", {"flows": 3}),
    (IMAGE, "vae", {}),
    (TABLE, "gp", {"preset": "paper"}),
    (IMAGE, "gp", {"preset": "paper"}),
    (IMAGE, "hf", {}),
    (IMAGE, "me", {"components": 3}),
    (IMAGE, "rme", {"components": 3}),
]
CASES = [(TABLE, name, {}) for name in METHODS] + VARIANTS
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]


def some(method="vae", options=None, shape=TABLE):
    """A VAE with all its components in place and weights that are not near where they start, and data for it."""
    architecture = {"width": 16} if shape == TABLE else None
    vae = gpin.build(shape, method, 2, architecture=architecture, seed=0, **(options or {}))
    x = torch.rand(max(BATCHES), *shape)
    vae.prepare(x)
    for index in range(len(vae.inference.stages())):
        vae.inference.begin_stage(index)
    with torch.no_grad():
        for name, parameter in vae.inference.named_parameters():
            parameter.add_(2.0 if name.endswith(("log_std", "log_diagonal")) else 0.05 * torch.randn_like(parameter))
    return vae.eval(), x


def run(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    dtype = {"tensor(float)": np.float32, "tensor(double)": np.float64}[session.get_inputs()[0].type]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: np.asarray(x, dtype=dtype)}), strict=True))


@torch.no_grad()
def expected(vae, x):
    q = vae.encode(x)
    answers = {"mean": q.mean, "std": q.stddev}
    try:
        known = vae.uncertainty(x)
    except gpin.InputError:
        return answers
    return {**answers, **dict(zip(PARTS, (known.total, known.mean_part, known.std_part), strict=True))}


def agree(ours, theirs):
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name].shape == tuple(theirs[name].shape)
        np.testing.assert_allclose(ours[name], theirs[name].numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("shape", "method", "options"), CASES, ids=str)
def test_every_method_agrees_with_torch_or_is_refused(shape, method, options, tmp_path):
    vae, x = some(method, options, shape)
    path = tmp_path / "encoder.onnx"
    if METHODS[method].export_refusal:
        with pytest.raises(gpin.InputError, match=f"method '{method}' cannot be exported: .+; use it in Python") as e:
            export(vae, path)
        assert "\n" not in str(e.value)
        assert not path.exists()
        return
    export(vae, path)
    for batch in BATCHES:
        agree(run(path, x[:batch]), expected(vae, x[:batch]))


@pytest.mark.parametrize(
    "covariance",
    ["full", pytest.param("low_rank", marks=pytest.mark.slow), pytest.param("diagonal", marks=pytest.mark.slow)],
)
def test_the_encoder_of_natural_is_exported_without_its_steps(covariance, tmp_path):
    vae, x = some("natural", {"covariance": covariance}, (6,))
    path = tmp_path / "encoder.onnx"
    for steps in (None, 1):
        with pytest.raises(gpin.InputError, match="the gradient of the decoder"):
            export(vae, path, steps=steps)
    export(vae, path, steps=0)
    q = vae.encode(x, steps=0)
    agree(run(path, x), {"mean": q.mean, "std": q.stddev})
    vae, x = some("natural", {"covariance": covariance, "steps": 0}, (6,))
    export(vae, path)
    agree(run(path, x), expected(vae, x))


def test_steps_of_another_method_cannot_be_exported_either(tmp_path):
    vae, x = some("vae", {}, (6,))
    export(vae, tmp_path / "encoder.onnx", steps=0)  # a VAE takes no steps of its own
    agree(run(tmp_path / "encoder.onnx", x), expected(vae, x))
    with pytest.raises(gpin.InputError, match="steps=2 cannot be exported"):
        export(vae, tmp_path / "other.onnx", steps=2)
    sa, _ = some("sa", {}, (6,))
    with pytest.raises(gpin.InputError, match="method 'sa' cannot be exported"):
        export(sa, tmp_path / "other.onnx", steps=0)


DECODERS = [
    (TABLE, "sa", {"likelihood": {"kind": "heteroscedastic"}}),
    pytest.param((1, 8, 8), "vae", {"likelihood": {"kind": "bernoulli"}}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("shape", "method", "options"), DECODERS, ids=str)
def test_the_decoder_agrees_with_torch_for_every_method_and_likelihood(shape, method, options, tmp_path):
    vae, _ = some(method, options, shape)
    z, path = torch.randn(max(BATCHES), 2), tmp_path / "decoder.onnx"
    export(vae, path, part="decoder")
    for batch in BATCHES:
        agree(run(path, z[:batch]), {"mean": vae.decode(z[:batch])})
    told = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert (told["part"], told["method"]) == ("decoder", method)


def test_the_decoder_ends_in_original_units_with_all_their_digits(tmp_path):
    vae, _ = some("vae")
    z, scale = torch.randn(5, 2), torch.rand(6) + 1
    offset = torch.tensor((1.7e9, 0.0, 3.0, -5.0, 1e3, 1.0), dtype=torch.float64)
    export(vae, tmp_path / "a.onnx", part="decoder", offset=offset, scale=scale)
    found = run(tmp_path / "a.onnx", z)["mean"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found - offset.numpy(), vae.decode(z) * scale, atol=1e-5)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    vae, x = some("gp")
    path = tmp_path_factory.mktemp("export") / "new" / "encoder.onnx"
    export(vae, path)
    return vae, x, path


def test_it_is_one_checked_file_that_says_what_it_is(exported):
    _, _, path = exported
    assert [file.name for file in path.parent.iterdir()] == ["encoder.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert told == {"gpin_version": version("gpin"), "method": "gp", "shape": "6", "part": "encoder"}
    assert (model.producer_name, model.producer_version) == ("gpin", version("gpin"))
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"x": ["batch", 6], "mean": ["batch", 2], "std": ["batch", 2]} | {n: ["batch"] for n in PARTS}


def test_it_holds_no_paths_of_this_machine(exported):
    content = exported[2].read_bytes()
    assert b".py" not in content
    assert b"torch" not in content


def test_the_encoder_is_run_once_for_all_answers(exported):
    layers = [node.op_type for node in onnx.load(exported[2]).graph.node if node.op_type in ("Gemm", "MatMul")]
    assert len(layers) == 2 + 1 + 3  # trunk, head, and the process: its mean, and two products for its variance


def test_nothing_is_said_and_nothing_left_behind(tmp_path, capfd, caplog, recwarn):
    vae, _ = some("gp")
    vae.train().double()
    before = {name: (tensor.clone(), tensor.requires_grad) for name, tensor in vae.named_parameters()}
    state = torch.get_rng_state()
    export(vae, tmp_path / "a.onnx")
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]
    assert vae.training
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in vae.named_parameters():
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, before[name][0])
        assert tensor.requires_grad == before[name][1]
    assert vae.inference.training_size.dtype == torch.long


def test_a_double_model_is_exported_in_single(tmp_path):
    vae, x = some("vae")
    export(vae.double(), tmp_path / "a.onnx")
    agree(run(tmp_path / "a.onnx", x), expected(vae, x))


def test_the_same_model_gives_the_same_bytes(exported, tmp_path):
    vae, _, path = exported
    (tmp_path / "again.onnx").write_bytes(b"old")
    export(vae, str(tmp_path / "again.onnx"))
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["again.onnx"]


@pytest.mark.parametrize("shape", [TABLE, pytest.param((1, 8, 8), marks=pytest.mark.slow)], ids=str)
def test_the_graph_takes_original_units(shape, tmp_path):
    vae, x = some("vae", shape=shape)
    offset, scale = torch.rand(shape), 1 + torch.rand(shape)
    export(vae, tmp_path / "each.onnx", offset=offset.flatten().tolist(), scale=scale.numpy())
    agree(run(tmp_path / "each.onnx", x * scale + offset), expected(vae, x))
    export(vae, tmp_path / "all.onnx", offset=(0.0,), scale=255)
    agree(run(tmp_path / "all.onnx", 255 * x), expected(vae, x))


def input_type(path):
    return onnx.load(path).graph.input[0].type.tensor_type.elem_type


def test_an_offset_that_is_large_beside_the_scale_costs_no_digits(tmp_path):
    vae, _ = some("gp")
    offset, scale = (1.7e9, 0.0, 3.0, -5.0, 1e3, 1.0), (1e5, 1.0, 2.0, 0.5, 2.0, 3.0)
    values = np.random.default_rng(0).normal(offset, scale, (7, 6))
    export(vae, tmp_path / "a.onnx", offset=offset, scale=scale)
    assert input_type(tmp_path / "a.onnx") == onnx.TensorProto.DOUBLE
    x = Scaling(kind="standardised", offset=offset, scale=scale).apply(values)
    agree(run(tmp_path / "a.onnx", values), expected(vae, x))


def test_other_units_are_taken_in_single(tmp_path):
    export(some()[0], tmp_path / "a.onnx", offset=(100.0, -100.0, 1e5, 0.0, 0.0, 0.0), scale=(1, 1, 1e3, 1e-6, 1, 1))
    assert input_type(tmp_path / "a.onnx") == onnx.TensorProto.FLOAT


def test_a_vae_of_ones_own_modules_is_exported(tmp_path):
    truth = LinearGaussian.random(size=6)
    vae, x = truth.vae("gp", known=True), truth.sample(7)
    vae.prepare(x)
    vae.eval()
    export(vae, tmp_path / "a.onnx")
    agree(run(tmp_path / "a.onnx", x), expected(vae, x))


def test_the_operator_set_is_the_one_asked_for(exported, tmp_path):
    vae, x, default = exported
    assert onnx.load(default).opset_import[0].version == 18
    export(vae, tmp_path / "a.onnx", opset=23)
    assert [(entry.domain, entry.version) for entry in onnx.load(tmp_path / "a.onnx").opset_import] == [("", 23)]
    agree(run(tmp_path / "a.onnx", x), expected(vae, x))


class Undecided(InferenceModel[MethodConfig]):
    """Which way it goes depends on x, which no graph can know."""

    name = "undecided"
    title = reference = ""
    Options = MethodConfig

    def forward(self, x, model):
        return DiagonalNormal(x[:, :2], x[:, 2:4].exp() if x.sum() > 0 else x[:, 4:6].exp())


def test_a_model_that_is_no_graph_is_refused(tmp_path):
    vae, _ = some("vae")
    own = gpin.VAE(Undecided(lambda: None, 2), vae.decoder, vae.likelihood)
    with pytest.raises(gpin.InputError, match="torch cannot write this model as ONNX") as caught:
        export(own, tmp_path / "a.onnx")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(gpin.InputError, match=rf"the package {package} is missing: pip install 'gpin\[export\]'$"):
        export(some()[0], tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"offset": [1.0, 2.0]}, r"offset must be one number, or 6 for data of shape \(6,\), got 2"),
        ({"offset": "much"}, "offset must be a number or numbers, got 'much'"),
        ({"offset": float("nan")}, "offset must be finite in float32, got nan"),
        ({"offset": 1e300}, r"offset must be finite in float32, got 1e\+300"),
        ({"scale": [1, 1, 0, 1, 1, 1]}, "scale must not be zero anywhere"),
        ({"part": "both"}, "`part` must be encoder or decoder, got 'both'"),
        ({"part": "decoder", "steps": 0}, "`steps` are taken by encoders"),
        ({"opset": 17}, "opset must be a whole number of at least 18, got 17"),
        ({"opset": 99}, "opset must be at most 23, got 99"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_sentence(arguments, sentence, tmp_path):
    with pytest.raises(gpin.InputError, match=sentence):
        export(some()[0], tmp_path / "a.onnx", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_wrong_model_or_path_is_one_sentence(tmp_path):
    vae, _ = some()
    with pytest.raises(gpin.InputError, match=r"must be a gpin\.VAE, got Linear"):
        export(torch.nn.Linear(2, 2), tmp_path / "a.onnx")
    with pytest.raises(gpin.InputError, match="it is a folder and not a file"):
        export(vae, tmp_path)
    with pytest.raises(gpin.InputError, match="the file must be a path, got 3"):
        export(vae, 3)
