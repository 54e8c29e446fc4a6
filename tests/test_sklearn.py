"""The scikit-learn face, by scikit-learn's own checks and beyond them."""

import copy
import io
import pickle

import joblib
import numpy as np
import pandas
import pytest
import torch
from linear_gaussian import LinearGaussian
from sklearn.base import clone, is_outlier_detector
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from gpin._core.errors import InputError
from gpin.inference import METHODS
from gpin.sklearn import GPVAE

X = np.random.default_rng(0).normal(size=(40, 5)) @ np.random.default_rng(1).normal(size=(5, 5))


def small(**parameters):
    """One that trains in a moment."""
    return GPVAE(**{"epochs": 2, "samples": 20, "architecture": {"width": 8}, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def fitted():
    return small().fit(X)


def checks():
    """scikit-learn's own checks; those that score hundreds of rows again and again are slow."""
    for estimator, check in estimator_checks_generator(GPVAE(epochs=2, samples=20, architecture={"width": 8})):
        name = check.func.__name__ + "".join(f"-{key}={value}" for key, value in check.keywords.items())
        again = name in ("check_outliers_fit_predict", "check_outliers_train-readonly_memmap=True")
        yield pytest.param(estimator, check, id=name, marks=pytest.mark.slow if again else ())


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_has_nothing_to_object(estimator, check):
    check(estimator)


# Every method ---------------------------------------------------------------------------------------


EVERY = [pytest.param(name, marks=pytest.mark.slow) if name == "vlae" else name for name in METHODS]


@pytest.mark.parametrize("method", EVERY)
def test_every_method_does_all_of_it_and_travels_in_a_pickle(method):
    model = small(method=method, latent_dim=3).fit(X)
    codes, scores = model.transform(X), model.score_samples(X)
    assert codes.shape == (40, 3)
    assert model.inverse_transform(codes).shape == X.shape
    assert np.isfinite(scores).all()
    assert model.score(X) == scores.mean()
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.transform(X), codes)
    assert np.array_equal(again.score_samples(X), scores)
    assert np.array_equal(again.inverse_transform(codes), model.inverse_transform(codes))


@pytest.mark.parametrize("method", EVERY)
def test_a_row_scores_the_same_in_any_company(method):
    model = small(method=method).fit(X)
    together, order = model.score_samples(X[:9]), np.random.default_rng(2).permutation(9)
    np.testing.assert_allclose(model.score_samples(X[order]), together[order], rtol=1e-12)
    np.testing.assert_allclose(model.score_samples(X[4:5]), together[4:5], rtol=1e-12)


def test_rows_do_not_share_their_noise():
    """Two rows that differ by a hair have nearly the same log-likelihood, but errors of their own."""
    model = small(samples=2).fit(X)
    near = np.repeat(X[:1], 200, axis=0) + 1e-6 * np.arange(200)[:, None]
    assert model.score_samples(near).std() > 1e-3


def test_uncertainty_is_the_encoders(fitted):
    total = fitted.vae_.uncertainty(torch.tensor(X)).total.numpy()
    np.testing.assert_allclose(fitted.uncertainty(X), total, rtol=1e-12)


def test_a_method_without_uncertainty_says_so():
    with pytest.raises(InputError, match="method 'vae' has no uncertainty: choose a method that has one, such as 'gp'"):
        small(method="vae").fit(X).uncertainty(X)


# What it learns ---------------------------------------------------------------------------------------


def test_it_learns_a_density_with_a_known_truth():
    truth = LinearGaussian.random(size=6, latent_dim=2, variance=0.3)
    train, test = truth.sample(1500).double(), truth.sample(500).double()
    model = GPVAE(2, epochs=40, learning_rate=3e-3, architecture={"width": 32}, random_state=0).fit(train.numpy())
    exact = truth.log_prob(test.float()).mean().item()
    independent = -0.5 * (torch.log(2 * torch.pi * train.var(0)) + 1).sum().item()  # a Gaussian without correlations
    score = model.score(test.numpy())
    assert exact - 0.15 * (exact - independent) < score < exact + 0.05


@pytest.mark.slow
def test_codes_reconstruct_about_as_well_as_principal_components():
    digits = load_digits().data / 16
    model = GPVAE(10, epochs=30, learning_rate=2e-3, random_state=0).fit(digits.astype(np.float32))
    error = np.square(model.inverse_transform(model.transform(digits)) - digits).mean()
    pca = PCA(10).fit(digits)
    reference = np.square(pca.inverse_transform(pca.transform(digits)) - digits).mean()
    assert error < 1.1 * reference


def test_scores_are_log_likelihoods_of_the_model(fitted):
    """Against the VAE's own estimate with other noise; both err by what their samples say."""
    estimate = fitted.vae_.log_likelihood(torch.tensor(X), samples=2000)
    model = copy.deepcopy(fitted).set_params(samples=500)
    difference = model.score(X) - estimate.mean
    assert abs(difference) < 5 * 2.3 * estimate.mean_mc_error + 1e-4  # 500 samples err twice as much as 2000


def test_labels_are_ignored(fitted):
    labels = np.arange(40) % 3
    assert np.array_equal(small().fit(X, labels).transform(X), fitted.transform(X))
    assert fitted.score(X, labels) == fitted.score(X)


# Outliers ---------------------------------------------------------------------------------------------


def test_a_share_of_the_rows_are_outliers():
    model = small(contamination=0.2).fit(X)
    decision = model.decision_function(X)
    np.testing.assert_array_equal(decision, model.score_samples(X) - model.offset_)
    assert np.array_equal(model.predict(X), np.where(decision < 0, -1, 1))
    lowest = np.argsort(model.score_samples(X))[:8]  # a fifth of 40
    assert set(np.flatnonzero(model.predict(X) == -1)) == set(lowest)


def test_by_itself_it_calls_far_rows_outliers_and_hardly_any_others(fitted):
    low, high = np.percentile(fitted.score_samples(X), (25, 75))
    assert fitted.offset_ == pytest.approx(low - 1.5 * (high - low))
    assert (fitted.predict(X) == -1).mean() < 0.2
    assert (fitted.predict(20 * X) == -1).all()
    many = small(validation_fraction=0.5).fit(np.concatenate([X, X, X]))  # enough are held out
    assert many.offset_ != pytest.approx(np.percentile(many.score_samples(X), 25) - 1.5 * np.ptp(many.score_samples(X)))


def test_outliers_are_found_in_a_pipeline_like_by_other_detectors():
    rows = np.concatenate([X, [[40.0, -40.0, 40.0, -40.0, 40.0]]])
    model = make_pipeline(StandardScaler(), small(contamination=1 / 41))
    assert np.flatnonzero(model.fit(rows).predict(rows) == -1).tolist() == [40]
    assert model.decision_function(rows).argmin() == 40
    assert is_outlier_detector(model[-1])


def test_a_pickle_of_before_there_was_a_contamination_says_that_it_must_be_fitted_again(fitted):
    state = fitted.__getstate__()
    del state["contamination"], state["offset_"]
    older = GPVAE.__new__(GPVAE)
    older.__setstate__(state)
    assert older.get_params() == fitted.get_params()
    assert np.array_equal(older.score_samples(X), fitted.score_samples(X))
    with pytest.raises(NotFittedError):
        older.predict(X)


# Randomness -------------------------------------------------------------------------------------------


def test_a_random_state_fixes_everything():
    one, same, other = small().fit(X), small().fit(X), small(random_state=1).fit(X)
    assert np.array_equal(one.transform(X), same.transform(X))
    assert np.array_equal(one.score_samples(X), same.score_samples(X))
    assert not np.allclose(one.transform(X), other.transform(X))
    stream = small(random_state=np.random.RandomState(0))
    assert not np.allclose(stream.fit(X).transform(X), stream.fit(X).transform(X))


def test_torchs_random_state_is_left_alone():
    before = torch.get_rng_state()
    model = pickle.loads(pickle.dumps(small(method="sa").fit(X)))
    model.transform(X)
    model.score(X)
    model.sample(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_look_like_rows(fitted):
    drawn = fitted.sample(2000, noise=True, random_state=0)
    assert drawn.shape == (2000, 5)
    assert np.array_equal(drawn, fitted.sample(2000, noise=True, random_state=0))
    assert not np.array_equal(drawn, fitted.sample(2000, noise=True))
    assert (fitted.sample(2000, random_state=0).std(0) < drawn.std(0)).all()
    assert fitted.sample().shape == (1, 5)


# In scikit-learn's company ----------------------------------------------------------------------------


def test_a_pipeline_scales_and_scales_back():
    model = make_pipeline(StandardScaler(), small()).fit(1000 + 50 * X)
    back = model.inverse_transform(model.transform(1000 + 50 * X))
    assert back.shape == X.shape
    assert abs(back.mean() - 1000) < 50
    assert np.isfinite(model.score(1000 + 50 * X))


def test_a_search_finds_parameters():
    search = GridSearchCV(small(), {"latent_dim": [1, 2], "method": ["gp", "vae"]}, cv=2).fit(X)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    best = search.best_estimator_
    assert best.transform(X).shape == (40, best.latent_dim)
    assert best.vae_.config.method == best.method


def test_a_clone_has_the_parameters_and_nothing_else(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        again.transform(X)


def test_frames_in_and_out():
    frame = pandas.DataFrame(X, columns=list("abcde"))
    model = small().set_output(transform="pandas").fit(frame)
    codes = model.transform(frame)
    assert list(codes.columns) == list(model.get_feature_names_out()) == ["gpvae0", "gpvae1"]
    assert list(model.feature_names_in_) == list("abcde")
    again = pickle.loads(pickle.dumps(model))
    assert again.transform(frame).equals(codes)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_precision_is_the_one_asked_for(dtype):
    model = small(dtype=dtype).fit(X)
    assert next(model.vae_.parameters()).dtype == getattr(torch, dtype)
    again = pickle.loads(pickle.dumps(model))
    assert next(again.vae_.parameters()).dtype == next(model.vae_.parameters()).dtype
    for given in (np.float32, np.float64):
        rows = X[:3].astype(given)
        codes = model.transform(rows)
        assert codes.dtype == given
        assert model.inverse_transform(codes).dtype == given
        assert model.score_samples(rows).dtype == model.uncertainty(rows).dtype == np.float64


def test_the_precision_is_single_by_default_and_close_to_double(fitted):
    assert next(fitted.vae_.parameters()).dtype == torch.float32
    double = copy.deepcopy(fitted)
    double.vae_.double()
    np.testing.assert_allclose(fitted.transform(X), double.transform(X), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="too large for float32: scale it, or use dtype='float64'"):
        fitted.transform(1e300 * X)


def test_a_pickle_of_before_there_was_a_dtype_has_the_one_of_its_weights():
    for model in (small(dtype="float64").fit(X), small()):
        state = model.__getstate__()
        del state["dtype"]
        older = GPVAE.__new__(GPVAE)
        older.__setstate__(state)
        assert older.get_params() == model.get_params()


# What a pickle holds ----------------------------------------------------------------------------------


class Noting(pickle.Unpickler):
    """Notes what is imported."""

    def __init__(self, content):
        super().__init__(io.BytesIO(content))
        self.imported = set()

    def find_class(self, module, name):
        self.imported.add((module, name))
        return super().find_class(module, name)


def test_a_pickle_holds_data_and_no_code_of_torch(fitted):
    for model in (small(), fitted):
        reader = Noting(pickle.dumps(model))
        reader.load()
        assert reader.imported == {("gpin.sklearn", "GPVAE")}


def test_before_fitting_the_state_is_the_parameters():
    model = small()
    assert model.__getstate__() == model.get_params()


def test_pickling_leaves_the_model_as_it_was(fitted):
    pickle.dumps(fitted)
    assert fitted.vae_.latent_dim == 2


def test_joblib_round_trip(fitted, tmp_path):
    joblib.dump(fitted, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    assert np.array_equal(again.transform(X), fitted.transform(X))
    assert (again.n_iter_, again.validation_scores_) == (fitted.n_iter_, fitted.validation_scores_)
    assert not again.vae_.training


# Odd data ---------------------------------------------------------------------------------------------


def test_images_are_flat_rows():
    digits = load_digits().data[:60] / 16
    model = GPVAE(3, shape=(1, 8, 8), epochs=1, likelihood="bernoulli", random_state=0).fit(digits)
    assert model.vae_.shape == (1, 8, 8)
    assert model.vae_.config.architecture.channels
    assert model.inverse_transform(model.transform(digits)).shape == digits.shape
    assert model.sample(2).shape == (2, 64)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).transform(digits), model.transform(digits))


def test_two_rows_and_a_constant_column_are_enough():
    rows = X[:2].copy()
    rows[:, 1] = 3.0
    model = small().fit(rows)
    assert np.isfinite(model.transform(rows)).all()
    assert np.isfinite(model.score(rows))


def test_one_row_is_not():
    with pytest.raises(ValueError, match=r"1 sample.*minimum of 2 is required"):
        small().fit(X[:1])


def test_training_stops_when_patience_ends():
    model = small(epochs=200, patience=2, learning_rate=0.05).fit(X)
    assert model.n_iter_ == len(model.validation_scores_) < 200
    assert model.n_iter_ == int(np.argmax(model.validation_scores_)) + 1 + 2


@pytest.mark.parametrize(("fraction", "held"), [(0.1, 4), (0.5, 20), (0.001, 1), (0.999, 39)])
def test_so_many_rows_are_held_out(fraction, held):
    assert small(validation_fraction=fraction).fit(X).vae_.inference.training_size == 40 - held


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"latent_dim": 0}, "latent_dim must be a whole number of at least 1, got 0"),
        ({"method": "pca"}, "unknown method 'pca'"),
        ({"options": {"seed": 1}}, "method 'gp' has no option 'seed'"),
        ({"options": "full"}, "options must be a mapping of the method's own options, got 'full'"),
        ({"likelihood": "weibull"}, "weibull"),
        ({"likelihood": "bernoulli"}, "the likelihood 'bernoulli' needs data in"),
        ({"shape": (1, 28, 28)}, "has 784 entries, but X has 5 columns"),
        ({"architecture": {"depth": 3}}, "the architecture 'dense' has no option 'depth'"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"patience": 0}, "patience"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64', got 'float16'"),
        ({"contamination": 0.6}, "contamination must be 'auto' or a number in the range \\(0, 0.5\\], got 0.6"),
        ({"contamination": 0}, "contamination must be"),
        ({"contamination": "some"}, "contamination must be"),
        ({"samples": 0}, "samples must be a whole number of at least 1, got 0"),
        ({"validation_fraction": 1.0}, "validation_fraction must be less than 1, got 1.0"),
        ({"validation_fraction": 0}, "validation_fraction must be a positive number, got 0"),
    ],
    ids=str,
)
def test_a_wrong_parameter_is_one_sentence(parameters, sentence):
    model = small(**parameters)
    with pytest.raises(InputError, match=sentence) as caught:
        model.fit(X)
    assert "\n" not in str(caught.value)
    with pytest.raises(NotFittedError):
        model.transform(X)


def test_codes_of_another_width_are_refused(fitted):
    with pytest.raises(InputError, match="z must end in latent_dim=2"):
        fitted.inverse_transform(X)


@pytest.mark.parametrize("ask", ["inverse_transform", "score_samples", "uncertainty", "sample"])
def test_nothing_is_answered_before_fitting(ask):
    with pytest.raises(NotFittedError):
        getattr(small(), ask)(1 if ask == "sample" else X)


def test_the_gap_of_each_row_survives_pickling():
    X = np.random.default_rng(0).normal(size=(600, 4))
    model = GPVAE(epochs=1, method="vae", random_state=0).fit(X)
    again = pickle.loads(pickle.dumps(model))
    for how in ("predicted", "estimated", "refined"):
        found = model.gap(X[:300], how)
        assert found.shape == (300,)
        np.testing.assert_allclose(again.gap(X[:300], how), found)
    np.testing.assert_allclose(found[:5], model.gap(X[:5], "refined"), atol=1.0)
    assert (model.gap(X[:5], steps=8) >= 0).all()  # not calibrated: the Newton decrement itself


def test_further_options_of_training_are_passed_on_and_checked():
    X = np.random.default_rng(0).normal(size=(60, 5))
    options = {"epochs": 2, "random_state": 0, "method": "vae"}
    plain, averaged = (GPVAE(**options, training=given).fit(X) for given in (None, {"ema": 0.9, "weight_decay": 0.1}))
    assert plain.validation_scores_ != averaged.validation_scores_
    for wrong in ({"epochs": 3}, {"decay": 0.1}, "cosine"):
        with pytest.raises(InputError, match="training must be a mapping of steps, schedule, clip_norm, ema"):
            GPVAE(**options, training=wrong).fit(X)
    with pytest.raises(InputError, match="augmentation='shift' is for images"):
        GPVAE(**options, training={"augmentation": "shift"}).fit(X)


# Conditions ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conditional():
    """A model of two columns that depend on a label, with its data."""
    rng = np.random.default_rng(0)
    labels = np.array(["low", "high"])[np.arange(120) % 2]
    X = np.where(labels == "low", -2.0, 2.0)[:, None] + 0.3 * rng.normal(size=(120, 2))
    model = GPVAE(latent_dim=1, method="vae", conditional=True, epochs=12, batch_size=32, learning_rate=1e-2)
    return model.set_params(architecture={"width": 8}, random_state=0, samples=10).fit(X, labels), X, labels


def test_a_conditional_estimator_takes_the_labels_of_its_rows(conditional):
    model, X, y = conditional
    codes = model.transform(X, y=y)
    assert codes.shape == (120, 1)
    np.testing.assert_allclose(model.transform(X[::-1], y=y[::-1]), codes[::-1], rtol=1e-4, atol=1e-5)
    assert model.inverse_transform(codes, y=y).shape == X.shape
    assert model.sample(50, y="low").mean() < -1 < 1 < model.sample(50, y="high").mean()
    other = np.where(y == "low", "high", "low")
    assert model.score(X, y) > model.score(X, other) + 5
    assert (model.predict(X, y) == 1).mean() > 0.8
    assert (model.predict(X, other) == -1).all()
    assert model.gap(X[:3], y=y[:3]).shape == (3,)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score_samples(X[:3], y[:3]), model.score_samples(X[:3], y[:3]))


def test_a_conditional_estimator_needs_labels_and_another_refuses_them(conditional):
    model, X, _ = conditional
    with pytest.raises(InputError, match="a conditional model needs y"):
        clone(model).fit(X)
    with pytest.raises(InputError, match="conditional on y: give the conditions as y"):
        model.transform(X)
    plain = GPVAE(latent_dim=1, epochs=1, architecture={"width": 4}).fit(X, np.arange(len(X)))  # y is ignored
    with pytest.raises(InputError, match="this model has no condition"):
        plain.transform(X, y="low")


def test_epochs_batch_size_and_rate_are_chosen_by_the_number_of_rows_unless_they_are_given(monkeypatch):
    asked = []

    def stop(vae, x, held, **options):
        asked.append({name: options[name] for name in ("epochs", "batch_size", "learning_rate", "patience")})
        raise InputError("enough")

    monkeypatch.setattr("gpin.sklearn.fit", stop)
    X = np.random.default_rng(0).normal(size=(20, 3))
    for options in ({}, {"epochs": 7}, {"epochs": 7, "learning_rate": 0.1}):
        with pytest.raises(InputError, match="enough"):
            GPVAE(**options).fit(X)
    automatic = dict.fromkeys(("epochs", "batch_size", "learning_rate", "patience"), "auto")
    seventh = {**automatic, "epochs": 7, "learning_rate": 1e-3}  # the others are what they are in gpin.fit
    assert asked == [automatic, seventh, {**seventh, "learning_rate": 0.1}]
