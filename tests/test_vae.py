import json
import shutil

import numpy as np
import pytest
import torch
from linear_gaussian import LinearGaussian
from torch import distributions as td

import gpin
from gpin.inference import METHODS

SHAPE = (1, 8, 8)


@pytest.fixture
def vae():
    vae = gpin.build(SHAPE, "gp", latent_dim=3, seed=0)
    vae.prepare(torch.rand(40, *SHAPE))
    return vae.eval()


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.rand(5, 1, 8, 7), r"shape \(batch, 1, 8, 8\), got \(5, 1, 8, 7\)"),
        (torch.rand(1, 8, 8), "needs a batch dimension"),
        (torch.rand(0, 1, 8, 8), "empty batch"),
        (torch.full((3, 1, 8, 8), torch.nan), "NaN or infinite values in 3 of 3"),
        (torch.tensor([0.0, 0.0, torch.inf]).reshape(3, 1, 1, 1).expand(3, 1, 8, 8), "number 2"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.complex64), "must be real"),
        (np.array([["a"]]), "dtype <U1"),
        (np.array([None]), "dtype object"),
        ([[0.0]], "got list"),
        (None, "got NoneType"),
        ("digits", "got str"),
    ],
)
def test_bad_data_is_named_in_one_line(vae, x, said):
    for ask in (vae.encode, vae.elbo, vae.log_likelihood, vae.reconstruct, vae.uncertainty, vae.prepare):
        if ask == vae.prepare and not isinstance(x, torch.Tensor | np.ndarray):
            continue
        with pytest.raises(gpin.InputError, match=said) as caught:
            ask(x)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gpin.build(SHAPE, "vea"), "unknown method 'vea': did you mean 'vae'"),
        (lambda: gpin.build(SHAPE, 3), "unknown method 3"),
        (lambda: gpin.build(SHAPE, "vae", covariance="full"), "method 'vae' has no option 'covariance'"),
        (lambda: gpin.build(SHAPE, latent_dim=0), "latent_dim must be a whole number of at least 1, got 0"),
        (lambda: gpin.build(SHAPE, latent_dim=2.0), r"latent_dim .* got 2.0"),
        (lambda: gpin.build((0, 3)), "positive whole numbers"),
        (lambda: gpin.build(28), "got 28"),
        (lambda: gpin.build("abc"), "got 'abc'"),
        (lambda: gpin.build(()), "shape must be"),
        (lambda: gpin.build(SHAPE, likelihood="weibull"), "likelihood"),
        (lambda: gpin.build(SHAPE, likelihood={"varience": 1}), "did you mean 'variance'"),
        (lambda: gpin.build(SHAPE, architecture={"width": 0}), "width"),
        (lambda: gpin.build(SHAPE, architecture={"channels": (8,) * 5}), "too many"),
        (lambda: gpin.build((4,), architecture={"channels": (8,)}), "channels, height, width"),
        (
            lambda: gpin.build(SHAPE, "gp", start=gpin.build(SHAPE, "vae", 4)),
            "latent_dim=10 from one with latent_dim=4",
        ),
        (lambda: gpin.build(SHAPE, "gp", start=gpin.build((1, 9, 9), "vae")), "another data shape or architecture"),
        (lambda: gpin.build(SHAPE, "iaf", start=gpin.build(SHAPE, "gp")), "cannot start from a trained 'gp'"),
        (lambda: gpin.build(SHAPE, "gp", start="model"), "needs a trained gpin.VAE, got str"),
        (
            lambda: gpin.build(SHAPE, "gp", likelihood={"variance": "analytic"}, start=gpin.build(SHAPE, "vae")),
            "another likelihood",
        ),
        (lambda: gpin.build(SHAPE, architecture="densest"), "unknown architecture 'densest'"),
        (lambda: gpin.build(SHAPE, architecture={1: 3}), "the architecture must be"),
        (lambda: gpin.build(SHAPE, likelihood=3), "the likelihood must be"),
        (lambda: gpin.build(SHAPE, seed="a"), "seed"),
        (lambda: gpin.build(SHAPE, seed=1.5), "seed"),
        (lambda: gpin.build(SHAPE, "vae").decode([0.0]), "z must be a tensor"),
        (lambda: gpin.build(SHAPE, "vae").prepare("abc"), "got str"),
        (lambda: gpin.build(SHAPE, "vae").prepare(5), "got int"),
        (lambda: gpin.build(SHAPE, "vae").prepare([torch.rand(2, 3)]), "shape"),
        (lambda: gpin.build(SHAPE, "vae").save(5), "must be a path"),
        (lambda: gpin.load(None), "must be a path"),
        (lambda: gpin.build(SHAPE).elbo(torch.rand(2, *SHAPE)), "size of the training set"),
        (lambda: gpin.build(SHAPE, "vae").uncertainty(torch.rand(2, *SHAPE)), "method 'vae' has no uncertainty"),
        (lambda: gpin.build(SHAPE, "vae").log_likelihood(torch.rand(2, *SHAPE), samples=0), "samples"),
        (lambda: gpin.build(SHAPE, "vae").log_likelihood(torch.rand(2, *SHAPE), chunk_size=-1), "chunk_size"),
        (lambda: gpin.build(SHAPE, "vae").log_likelihood(torch.rand(2, *SHAPE), proposal="prior"), "proposal 'prior'"),
        (lambda: gpin.build(SHAPE, "vae").elbo(torch.rand(2, *SHAPE), samples=0), "samples"),
        (lambda: gpin.build(SHAPE, "vae").sample(-3), "count"),
        (lambda: gpin.build(SHAPE, "vae").decode(torch.rand(2, 3)), "latent_dim=10"),
        (lambda: gpin.build(SHAPE, "vae", likelihood="bernoulli").encode(2 * torch.ones(2, *SHAPE)), r"\[0, 1\]"),
    ],
)
def test_a_users_mistake_is_named_in_one_line(call, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_numpys_integers_are_whole_numbers():
    vae = gpin.build([np.int64(6)], "vae", np.int64(3), seed=np.int64(0))
    assert vae.log_likelihood(torch.rand(2, 6), samples=np.int64(30)).samples == 30
    assert vae.decode(np.zeros((2, 3))).shape == (2, 6)


def test_bytes_are_not_taken_as_they_are_in_silence():
    vae = gpin.build((1, 4, 4), latent_dim=2, seed=0)
    x = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    with pytest.warns(UserWarning, match=r"bytes \(uint8\) above 1, .* not scaled to \[0, 1\]: pass x / 255"):
        gpin.fit(vae, x, epochs=1, progress=False)
    with pytest.warns(UserWarning, match="bytes"):
        vae.encode(x)
    vae.encode(x / 255)
    vae.encode(x % 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, bool])
def test_arrays_of_any_number_type_are_taken(vae, dtype):
    x = (np.random.default_rng(0).random((4, *SHAPE)) > 0.5).astype(dtype)
    expected = vae.encode(torch.from_numpy(x).float()).mean
    torch.testing.assert_close(vae.encode(x).mean, expected)


@pytest.mark.parametrize("samples", [1, 7, 100, 2500])
def test_the_likelihood_uses_the_samples_asked_for_whatever_the_chunk(vae, samples, monkeypatch):
    x, seen = torch.rand(13, *SHAPE), []
    original = type(vae).log_joint
    monkeypatch.setattr(type(vae), "log_joint", lambda self, x, z: seen.append(len(z)) or original(self, x, z))
    results = []
    for chunk_size in (13, 1000, 10**6):
        torch.manual_seed(3)
        seen.clear()
        results.append(vae.log_likelihood(x, samples=samples, chunk_size=chunk_size))
        assert sum(seen) == samples == results[-1].samples
    for other in results[1:]:
        torch.testing.assert_close(other.values, results[0].values, rtol=1e-5, atol=1e-4)


def test_the_mean_is_over_instances_not_over_batches(vae):
    x = torch.cat([torch.rand(128, *SHAPE), 10 * torch.ones(3, *SHAPE)])  # the short last batch is far off
    result = vae.log_likelihood(x, samples=5)
    assert result.values.shape == (131,)
    assert result.mean == pytest.approx(result.values.double().mean().item())
    assert result.stderr == pytest.approx(result.values.double().std().item() / 131**0.5)


def test_more_samples_never_lower_the_bound_in_expectation():
    truth = LinearGaussian.random()
    vae, x = truth.vae("vae", known=True), truth.sample(400)
    bounds = [vae.log_likelihood(x, samples=k) for k in (1, 10, 100)]
    means = [bound.mean for bound in bounds]
    assert means[0] < means[1] < means[2] < truth.log_prob(x).mean() + 4 * bounds[2].mean_mc_error


def test_shapes_of_everything_a_user_asks(vae):
    x = torch.rand(5, *SHAPE)
    assert vae.reconstruct(x).shape == x.shape
    assert vae.sample(7).shape == vae.sample(7, noise=True).shape == (7, *SHAPE)
    assert vae.decode(torch.zeros(2, 4, 3)).shape == (2, 4, *SHAPE)
    assert vae.encode(x).rsample((6,)).shape == (6, 5, 3)
    bound = vae.elbo(x, samples=4)
    for term in (bound.value, bound.reconstruction, bound.kl, bound.weight_kl):
        assert term.shape == (5,)
    torch.testing.assert_close(bound.value, bound.reconstruction - bound.kl - bound.weight_kl)


def test_a_seed_fixes_the_first_weights_and_leaves_the_global_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = gpin.build(SHAPE, seed=1)
    assert torch.equal(torch.rand(3), expected)
    same, other = gpin.build(SHAPE, seed=1), gpin.build(SHAPE, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("likelihood", ["gaussian", {"variance": "per_pixel"}, {"variance": "analytic"}, "bernoulli"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_gives_the_same_numbers(tmp_path, likelihood, dtype):
    x = torch.rand(9, *SHAPE, dtype=dtype)
    for method in METHODS:
        vae = gpin.build(SHAPE, method, latent_dim=3, likelihood=likelihood).to(dtype)
        vae.prepare(x)
        vae.eval().save(tmp_path / method)
        again = gpin.load(tmp_path / method)
        torch.manual_seed(1)
        expected = vae.elbo(x).value
        torch.manual_seed(1)
        assert torch.equal(again.elbo(x).value, expected)
        assert again.config == vae.config
        assert sorted(path.name for path in (tmp_path / method).iterdir()) == ["config.json", "model.safetensors"]


def test_a_discrete_proposal_is_refused():
    vae = gpin.build((5,), "vae", latent_dim=2)
    q = torch.distributions.Independent(torch.distributions.Bernoulli(torch.full((3, 2), 0.5)), 1)
    with pytest.raises(gpin.InputError, match="continuous"):
        vae.log_likelihood(torch.rand(3, 5), proposal=q)


def test_loading_leaves_the_random_state_alone(tmp_path):
    gpin.build((5,), "vae", latent_dim=2).save(tmp_path)
    before = torch.get_rng_state()
    gpin.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_own_modules_are_saved_and_loaded_into_their_like(tmp_path):
    truth = LinearGaussian.random()
    vae, other, x = truth.vae("vae"), truth.vae("vae"), truth.sample(5)
    vae.save(tmp_path / "own")
    with pytest.raises(gpin.InputError, match="into="):
        gpin.load(tmp_path / "own")
    assert torch.equal(gpin.load(tmp_path / "own", into=other).encode(x).mean, vae.encode(x).mean)
    with pytest.raises(gpin.InputError, match="does not fit the model"):
        gpin.load(tmp_path / "own", into=truth.vae("vae", width=5))


def test_a_damaged_or_foreign_folder_is_a_clear_error(vae, tmp_path):
    good = tmp_path / "good"
    vae.save(good)
    rng = np.random.default_rng(0)
    for name in ("config.json", "model.safetensors"):
        content = (good / name).read_bytes()
        spots = [len(content) - 1, *rng.integers(0, len(content), 40)]
        damaged = [content[:at] + bytes([content[at] ^ 1 << int(rng.integers(8))]) + content[at + 1 :] for at in spots]
        damaged += [content[:cut] for cut in (0, 1, len(content) // 2, len(content) - 1)]
        for number, bad in enumerate(damaged):
            folder = tmp_path / f"{name}-{number}"
            shutil.copytree(good, folder)
            (folder / name).write_bytes(bad)
            if name == "config.json" and _same_json(bad, content):
                continue  # white space between the tokens may change without harm
            with pytest.raises(gpin.InputError) as caught:
                gpin.load(folder)
            assert "\n" not in str(caught.value)


def _same_json(one, other):
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "config.json is missing"),
        ({"config.json": "{}"}, "model.safetensors is missing"),
        ({"config.json": "{}", "model.safetensors": ""}, "is not a gpin model"),
        ({"config.json": '"hello"', "model.safetensors": ""}, "is not a gpin model"),
        ({"config.json": "[1, 2", "model.safetensors": ""}, "it is not JSON"),
        ({"config.json": '{"format": "gpin-vae", "version": 99}', "model.safetensors": ""}, "version 99"),
        ({"config.json": '{"format": "gpin-vae", "version": 1}', "model.safetensors": ""}, "checksum"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path, files, said):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(gpin.InputError, match=said):
        gpin.load(tmp_path)
    with pytest.raises(gpin.InputError, match="is not a saved model"):
        gpin.load(tmp_path / "nowhere")


def test_preparing_in_batches_is_preparing_at_once():
    x = torch.rand(50, *SHAPE)
    whole, parts = gpin.build(SHAPE, seed=0), gpin.build(SHAPE, seed=0)
    whole.prepare(x)
    parts.prepare(iter(x.split(7)))
    assert parts.inference.training_size == 50
    torch.testing.assert_close(parts.decoder.center, x.mean(0))
    torch.testing.assert_close(whole.decoder.center, x.mean(0))
    spread = (x - x.mean(0)).square().mean().item()
    assert whole.likelihood.variance.item() == pytest.approx(spread, rel=1e-4)
    assert parts.likelihood.variance.item() == pytest.approx(spread, rel=1e-4)


@pytest.mark.parametrize(("rate", "covariances"), [(5e-4, 5e-3), (2e-3, 5e-3), (1e-2, 1e-2)])
def test_variances_learn_faster_and_covariances_within_bounds(rate, covariances):
    vae = gpin.build((4,), "gp", 2, seed=0)
    rates = {id(p): group["lr"] for group in vae.parameter_groups(rate) for p in group["params"]}
    found = {name: rates[id(p)] for name, p in vae.named_parameters()}
    assert {found[name] for name in found if "log_std" in name or "log_diagonal" in name} == {covariances}
    assert found["likelihood.log_variance"] == pytest.approx(20 * rate)
    assert {found[name] for name in found if "decoder" in name} == {rate}


@pytest.mark.parametrize(
    ("z", "said"),
    [
        (torch.full((2, 3), torch.nan), "z must be finite"),
        (np.zeros((2, 3), complex), "z must be real"),
        (np.ma.masked_array(np.zeros((2, 3)), mask=True), "z must not have missing values, got a masked array"),
        (torch.zeros(2, 4), "z must end in latent_dim=3"),
    ],
)
def test_codes_that_cannot_be_decoded_are_refused(vae, z, said):
    with pytest.raises(gpin.InputError, match=said):
        vae.decode(z)


@pytest.mark.parametrize("seed", [-1, 2**62, 2**64, 1.0, True, "1"])
def test_a_seed_that_torch_does_not_take_is_refused(seed):
    with pytest.raises(gpin.InputError, match="seed must be a whole number between 0 and"):
        gpin.build(SHAPE, seed=seed)


def test_calling_it_encodes_and_decodes(vae):
    x = torch.rand(5, *SHAPE)
    output = vae(x)
    assert torch.equal(output.reconstruction, vae.reconstruct(x))
    assert torch.equal(output.q.mean, vae.encode(x).mean)
    reconstruction, q = output
    (reconstruction.sum() + q.stddev.sum()).backward()
    assert all(p.grad.abs().sum() > 0 for p in vae.decoder.parameters())
    assert vae.inference.base.head.weight.grad.abs().sum() > 0
    with pytest.raises(gpin.InputError, match="shape"):
        vae(x[0, 0])


@pytest.mark.parametrize("noise", [False, True])
def test_samples_come_with_their_latents(vae, noise):
    torch.manual_seed(1)
    alone = vae.sample(7, noise)
    torch.manual_seed(1)
    x, z = vae.sample(7, noise, return_latents=True)
    assert torch.equal(x, alone)
    assert z.shape == (7, 3)
    if not noise:
        assert torch.equal(vae.decode(z), x)


def test_a_distribution_may_be_the_proposal():
    """With the exact posterior every weight is p(x), and the estimate has no error."""
    torch.manual_seed(0)
    truth = LinearGaussian.random()
    vae, x = truth.vae("vae", known=True), truth.sample(50)
    exact = truth.log_prob(x)
    for chunk_size in (7, 512):
        found = vae.log_likelihood(x, 30, truth.posterior(x), chunk_size, return_weights=True)
        torch.testing.assert_close(found.values.float(), exact, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(found.log_weights.float(), exact.expand(30, 50), rtol=1e-4, atol=2e-3)
        assert found.proposal == "given"
        assert found.log_weights.shape == (30, 50)
    wide = td.Independent(td.Normal(vae.encode(x).mean.double(), 1.5 * torch.ones(50, 2).double()), 1)
    found = vae.log_likelihood(x, 4000, wide)  # in another precision than the model's
    assert found.mean == pytest.approx(exact.mean().item(), abs=5 * found.mean_mc_error + 0.01)


@pytest.mark.parametrize("proposal", ["encoder", "refined"])
def test_the_weights_are_those_that_the_estimate_was_made_of(vae, proposal):
    x = torch.rand(131, *SHAPE)  # two batches
    torch.manual_seed(2)
    found = vae.log_likelihood(x, 30, proposal, return_weights=True)
    assert found.log_weights.shape == (30, 131)
    torch.testing.assert_close(found.log_weights.logsumexp(0) - np.log(30), found.values)
    torch.testing.assert_close(found.log_weights.mean(0), found.elbo)
    torch.manual_seed(2)
    without = vae.log_likelihood(x, 30, proposal)
    assert without.log_weights is None
    assert torch.equal(without.values, found.values)


def test_the_refinement_of_the_proposal_has_options(vae, monkeypatch):
    x, asked = torch.rand(4, *SHAPE), []
    refine = vae.refine
    monkeypatch.setattr(type(vae), "refine", lambda self, x, **options: asked.append(options) or refine(x, **options))
    vae.log_likelihood(x, 5, "refined", steps=3, tolerance=0.5)
    vae.log_likelihood(x, 5, "refined")
    assert asked == [{"steps": 3, "tolerance": 0.5}, {}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_steps": 3, "proposal": "refined"}, "max_steps applies to proposal='encoder'"),
        ({"tolerance": 0.1, "proposal": td.Normal(torch.zeros(2), torch.ones(2))}, "tolerance does not apply to"),
        ({"steps": 0, "proposal": "refined"}, "steps must be"),
        ({"proposal": 3}, "unknown proposal 3: choose 'encoder', 'refined' or a distribution"),
        (
            {"proposal": td.Normal(torch.zeros(2, 3), torch.ones(2, 3))},
            r"batch shape \(2,\) and event shape \(3,\), got batch shape \(2, 3\) .*Independent",
        ),
        ({"proposal": td.Independent(td.Normal(torch.zeros(5, 3), torch.ones(5, 3)), 1)}, r"got batch shape \(5,\)"),
    ],
)
def test_a_proposal_that_does_not_fit_is_refused(vae, arguments, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        vae.log_likelihood(torch.rand(2, *SHAPE), 5, **arguments)
    assert "\n" not in str(caught.value)
