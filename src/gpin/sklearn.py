"""The scikit-learn interface: a VAE as a transformer, density estimator and outlier detector."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors.torch import load as load_tensors
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from gpin._core.errors import InputError
from gpin._core.inputs import positive_number, whole_number
from gpin._core.messages import silent
from gpin._core.seeding import seeded
from gpin.building import VAEConfig, build, from_config
from gpin.evaluation.gap_prediction import pack_calibrations, unpack_calibrations
from gpin.inference import method_named
from gpin.likelihoods import LikelihoodConfig
from gpin.networks import ArchitectureConfig, check_shape
from gpin.training import TrainingConfig, fit
from gpin.training.settings import AUTO
from gpin.vae import VAE

__all__ = ["GPVAE"]

Array = NDArray[np.floating[Any]]

DTYPES = [np.float64, np.float32]

ROWS = 256
"""The number of rows per batch outside training."""

ENOUGH = 20
"""From this many held-out rows on, they determine the threshold of contamination="auto"; otherwise all rows do."""


class GPVAE(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, BaseEstimator):
    """A variational autoencoder, by default with the Gaussian-process encoder, as a scikit-learn transformer.

    X `(n_samples, n_features)` is not scaled; use a pipeline such as `make_pipeline(StandardScaler(), GPVAE())`.
    The network computes in float32 unless `dtype` says otherwise. Codes and reconstructions have the dtype of the array
    that they are computed from, scores are float64. Labels y are accepted and ignored, unless the estimator is
    conditional. A pickled estimator stores the network as a config and weights.

    Parameters:
        latent_dim: d, the number of columns that `transform` returns.
        method: The inference model, one of `gpin.inference.METHODS`.
        options: The options of the method, such as {"covariance": "full"} for "gp".
        likelihood: "gaussian", "heteroscedastic", "bernoulli" for data in [0, 1], or a mapping of options.
        shape: The shape of one row, such as (1, 28, 28) for images given as 784 columns; by default a plain vector.
        architecture: The network architecture, as in `gpin.build`; by default chosen by the shape.
        epochs: Passes through the training data; "auto" has a budget of steps and stops early, see `gpin.fit`.
        batch_size: Rows per step; "auto" chooses it by the number of rows, or 128 if `epochs` is a number.
        learning_rate: The learning rate of Adam; "auto" chooses it likewise, or 1e-3 if `epochs` is a number.
        validation_fraction: The fraction of the rows that is held out to choose the best epoch.
        patience: Stop after this many epochs without a better one; None trains for all epochs; "auto" is 500 steps and
            at least 10 epochs, or None if `epochs` is a number.
        training: Further options of training as in `gpin.fit`, such as {"schedule": "cosine", "weight_decay": 0.1}.
        samples: K, the number of importance samples per row for `score_samples` and `score`.
        contamination: The proportion of outliers in the X given to `fit`, above 0 and at most 0.5, which sets the
            threshold of `predict`. With "auto", the threshold is Q₁ − 1.5 (Q₃ − Q₁), where Q₁ and Q₃ are the quartiles
            of the log-likelihoods of the held-out rows, or of all rows if fewer than 20 are held out. A number makes
            `fit` slower, because all rows are scored.
        conditional: Whether the model is conditional on y, p(x|z, y): `fit` and all methods then need the y of their
            rows, see `VAE.check`. In a pipeline, only the methods that pass y on can be used.
        dtype: The precision of the network, "float32" or "float64", with which training took 1.4 to 3.9 times as long.
        random_state: The seed of the initial weights, the held-out rows and all noise.

    Attributes:
        vae_: The trained `gpin.VAE`.
        n_features_in_: The number of columns of X; `feature_names_in_` holds their names, if X had any.
        n_iter_: The number of epochs that were run.
        validation_scores_: The mean ELBO of the held-out rows after each epoch.
        offset_: The log-likelihood below which a row is an outlier, in nats.
        seed_: The seed drawn from `random_state`.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(60, 5))
        >>> model = GPVAE(latent_dim=2, epochs=3, random_state=0).fit(X)
        >>> model.transform(X).shape, model.inverse_transform(model.transform(X)).shape, model.uncertainty(X).shape
        ((60, 2), (60, 5), (60,))
    """

    def __init__(
        self,
        latent_dim: int = 2,
        *,
        method: str = "gp",
        options: Mapping[str, Any] | None = None,
        likelihood: str | Mapping[str, Any] | LikelihoodConfig = "gaussian",
        shape: Sequence[int] | None = None,
        architecture: str | Mapping[str, Any] | ArchitectureConfig | None = None,
        epochs: int | Literal["auto"] = AUTO,
        batch_size: int | Literal["auto"] = AUTO,
        learning_rate: float | Literal["auto"] = AUTO,
        validation_fraction: float = 0.1,
        patience: int | Literal["auto"] | None = AUTO,
        training: Mapping[str, Any] | None = None,
        samples: int = 100,
        contamination: float | str = "auto",
        conditional: bool = False,
        dtype: str = "float32",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.latent_dim = latent_dim
        self.method = method
        self.options = options
        self.likelihood = likelihood
        self.shape = shape
        self.architecture = architecture
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.training = training
        self.samples = samples
        self.contamination = contamination
        self.conditional = conditional
        self.dtype = dtype
        self.random_state = random_state

    # Fitting --------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Train on X `(n_samples, n_features)`, at least two rows; y is ignored unless the model is conditional."""
        rows: Array = validate_data(self, X, dtype=DTYPES, ensure_min_samples=2)
        whole_number(self.samples, "samples")  # fail now rather than after training
        share = self._contamination()
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        if self.conditional and y is None:
            raise InputError(
                "a conditional model needs y: give fit(X, y) the conditions of X, or use conditional=False"
            )
        y = y if self.conditional else None
        vae = build(
            self._row_shape(rows.shape[1]),
            self.method,
            self.latent_dim,
            likelihood=self.likelihood,
            architecture=self.architecture,
            given=y,
            seed=seed,
            **self._method_options(),
        )
        vae.to(dtype=self._precision())
        x, held = _instances(rows, vae, y), self._held_out(len(rows), random)
        history = fit(
            vae,
            x[~held],
            x[held],
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self._learning_rate(),
            patience=self.patience,
            seed=seed,
            progress=False,
            tell=silent,
            **self._training_options(),
        )
        self.vae_, self.seed_ = vae, seed
        self.n_iter_, self.validation_scores_ = len(history.epochs), history.validation
        self.offset_ = self._threshold(x, held, share)
        return self

    def fit_transform(self, X: ArrayLike, y: Any = None, **options: Any) -> Array:
        """`fit(X, y)` and then `transform` of the same rows; options are those of `transform`."""
        return self.fit(X, y).transform(X, y=y if self.conditional else None, **options)

    def fit_predict(self, X: ArrayLike, y: Any = None) -> NDArray[np.int64]:
        """`fit(X, y)` and then `predict` of the same rows."""
        return self.fit(X, y).predict(X, y=y if self.conditional else None)

    def _contamination(self) -> float | None:
        """The share of outliers; None for "auto"."""
        given = self.contamination
        if isinstance(given, str) and given == "auto":
            return None
        if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not 0 < given <= 0.5:
            raise InputError(f"contamination must be 'auto' or a number in the range (0, 0.5], got {given!r}")
        return float(given)

    def _threshold(self, x: Tensor, held: Tensor, share: float | None) -> float:
        """The log-likelihood below which a row is an outlier."""
        if share is not None:
            return float(np.percentile(self._score_rows(x), 100 * share))
        low, high = np.percentile(self._score_rows(x[held] if held.sum() >= ENOUGH else x), (25, 75))
        return float(low - 1.5 * (high - low))

    def _precision(self) -> torch.dtype:
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype must be 'float32' or 'float64', got {self.dtype!r}")
        return torch.float32 if self.dtype == "float32" else torch.float64

    def _row_shape(self, columns: int) -> tuple[int, ...]:
        if self.shape is None:
            return (columns,)
        shape = check_shape(self.shape)
        if math.prod(shape) != columns:
            raise InputError(f"shape {shape} has {math.prod(shape)} entries, but X has {columns} columns")
        return shape

    def _method_options(self) -> dict[str, Any]:
        options = {} if self.options is None else self.options
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise InputError(f"options must be a mapping of the method's own options, got {self.options!r}")
        # Checked here because `build` would take an option such as "seed" for one of its own arguments.
        method_named(self.method).Options.parse(options, f"method {self.method!r}")
        return dict(options)

    def _learning_rate(self) -> float | Literal["auto"]:
        fixed = not isinstance(self.epochs, str) and isinstance(self.learning_rate, str) and self.learning_rate == AUTO
        return 1e-3 if fixed else self.learning_rate

    def _training_options(self) -> dict[str, Any]:
        options = {} if self.training is None else self.training
        own = ("epochs", "batch_size", "learning_rate", "patience", "seed")
        known = [name for name in TrainingConfig.model_fields if name not in own]
        if not isinstance(options, Mapping) or not set(options) <= set(known):
            raise InputError(f"training must be a mapping of {', '.join(known)}, got {self.training!r}")
        return dict(options)

    def _held_out(self, count: int, random: np.random.RandomState) -> Tensor:
        """A mask `(count,)` of the held-out rows: at least one row, and never all."""
        fraction = positive_number(self.validation_fraction, "validation_fraction")
        if fraction >= 1:
            raise InputError(f"validation_fraction must be less than 1, got {self.validation_fraction!r}")
        held = np.zeros(count, dtype=bool)
        held[random.permutation(count)[: min(count - 1, max(1, round(fraction * count)))]] = True
        return torch.from_numpy(held)

    # Inference ------------------------------------------------------------------------------------

    def transform(
        self,
        X: ArrayLike,
        *,
        y: Any = None,
        steps: int | None = None,
        tolerance: float | None = None,
        max_steps: int | None = None,
    ) -> Array:
        """The mean of q(z|x) for each row, `(n_samples, latent_dim)`, in the dtype of X.

        Method "sa" uses random noise: the same X gives the same result, but a row passed alone gives a different one.

        Arguments:
            X: `(n_samples, n_features)`.
            y: The conditions of X, for a conditional model, as in all methods below.
            steps: The number of natural-gradient steps that improve the codes, see `VAE.encode`.
            tolerance: The estimated remaining gap, in nats, at which the steps of a row end, see `VAE.encode`.
            max_steps: The maximum number of steps with a tolerance.
        """
        rows = self._checked(X)

        def codes(x: Tensor) -> Tensor:
            return self.vae_.encode(x, steps=steps, tolerance=tolerance, max_steps=max_steps).mean

        return self._by_batches(codes, rows, y).astype(rows.dtype)

    def inverse_transform(self, Z: ArrayLike, *, y: Any = None) -> Array:
        """E[x|z]: `(n_samples, latent_dim)` → `(n_samples, n_features)`, in the dtype of Z."""
        check_is_fitted(self, "vae_")
        codes: Array = check_array(Z, dtype=DTYPES)
        z = torch.tensor(codes)
        parts = [self.vae_.decode(z, y=y)] if self.conditional else [self.vae_.decode(some) for some in z.split(ROWS)]
        return torch.cat(parts).flatten(1).numpy().astype(codes.dtype)

    def gap(self, X: ArrayLike, how: str = "estimated", *, y: Any = None, steps: int | None = None) -> Array:
        """How far each row's code is from the best one that refinement finds, in nats, `(n_samples,)`; see `VAE.gap`.

        Arguments:
            X: `(n_samples, n_features)`.
            how: "predicted" needs at least 50 held-out rows in `fit`; "estimated"; or "refined", which is slow.
                `vae_.gap` also returns intervals.
            y: The conditions of X, for a conditional model.
            steps: The number of natural-gradient steps after which the gap is determined.
        """
        return self._by_batches(lambda x: self.vae_.gap(x, how, steps=steps).values, self._checked(X), y)

    def uncertainty(self, X: ArrayLike, *, y: Any = None) -> Array:
        """The uncertainty of the encoder about its answer, `(n_samples,)`; only for methods that have one ("gp")."""
        return self._by_batches(lambda x: self.vae_.uncertainty(x).total, self._checked(X), y)

    # Density and sampling -------------------------------------------------------------------------

    def score_samples(self, X: ArrayLike, y: Any = None) -> Array:
        """log p(x) of each row in nats, `(n_samples,)`, by importance sampling with `samples` draws of q(z|x).

        For a conditional model it is log p(x|y), with the y of each row.

        The noise of a row is seeded by `seed_` and the row itself, so that its score does not depend on the other rows
        or their order, and its Monte-Carlo error is independent of theirs. `vae_.log_likelihood` also returns
        diagnostics.
        """
        return self._score_rows(_instances(self._checked(X), self.vae_, y))

    def _score_rows(self, rows: Tensor) -> Array:
        values = []
        with seeded(self.seed_):
            for x in rows.split(1):
                torch.default_generator.manual_seed(zlib.crc32(x.numpy().tobytes(), self.seed_))
                values.append(self.vae_.log_likelihood(x, self.samples).values)
        return torch.cat(values).double().numpy()

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """The mean of `score_samples`; higher is better. y is ignored unless the model is conditional on it."""
        return float(self.score_samples(X, y if self.conditional else None).mean())

    def decision_function(self, X: ArrayLike, y: Any = None) -> Array:
        """`score_samples` minus `offset_`, `(n_samples,)`: negative for outliers."""
        check_is_fitted(self, "offset_")
        scores: Array = self.score_samples(X, y) - self.offset_
        return scores

    def predict(self, X: ArrayLike, y: Any = None) -> NDArray[np.int64]:
        """−1 for outliers and +1 for others, `(n_samples,)`, as scikit-learn's outlier detectors do."""
        return np.where(self.decision_function(X, y) < 0, -1, 1)

    def sample(
        self,
        n_samples: int = 1,
        *,
        y: Any = None,
        noise: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> Array:
        """Draws from the model, `(n_samples, n_features)`: E[x|z] with z ~ N(0, I), or x itself with noise=True.

        Those of a conditional model have the conditions y, one per draw or one for all.
        """
        check_is_fitted(self, "vae_")
        with seeded(int(check_random_state(random_state).randint(2**31 - 1))):
            return self.vae_.sample(n_samples, noise, y=y).flatten(1).numpy()

    def _checked(self, X: ArrayLike) -> Array:
        check_is_fitted(self, "vae_")
        rows: Array = validate_data(self, X, dtype=DTYPES, reset=False)
        return rows

    @torch.no_grad()
    def _by_batches(self, answer: Callable[[Tensor], Tensor], rows: Array, y: Any) -> Array:
        """Apply `answer` to all rows in batches, with the same noise every time; the result is float64."""
        with seeded(self.seed_):
            parts = [answer(x) for x in _instances(rows, self.vae_, y).split(ROWS)]
        return torch.cat(parts).double().numpy()

    # Hooks for scikit-learn and pickle ------------------------------------------------------------

    @property
    def _n_features_out(self) -> int:
        return self.vae_.latent_dim

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Replace the trained network by data: its config, and its weights in the safetensors format."""
        state = super().__getstate__().copy()
        if "vae_" in state:
            vae = state.pop("vae_")
            state["_config"], state["_weights"] = vae.config.model_dump(mode="json"), vae.packed()
            state["_calibrations"] = pack_calibrations(vae.calibrations, vae.temperatures)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "_weights" in state:
            weights = load_tensors(state.pop("_weights"))
            config = VAEConfig.parse(state.pop("_config"), "the pickled model")
            with seeded(0):  # these weights are replaced, and torch's random state must not change
                state["vae_"] = vae = from_config(config)
            vae.to(dtype=weights[next(name for name, _ in vae.named_parameters())].dtype)
            state.setdefault("dtype", "float64" if next(vae.parameters()).dtype == torch.float64 else "float32")
            vae.load_state_dict(weights)
            if (calibrations := state.pop("_calibrations", None)) is not None:  # older pickles have none
                vae._gpin_calibrations, vae._gpin_temperatures = unpack_calibrations(calibrations)
            vae.eval()
        later = {"dtype": "float32", "contamination": "auto", "conditional": False}  # older pickles have none of these
        super().__setstate__({**later, **state})


def _instances(rows: Array, vae: VAE, y: Any) -> Tensor:
    """Rows `(n, columns)` as instances `(n, *shape)` in the precision of the VAE, with their conditions, if any."""
    x = torch.tensor(np.ascontiguousarray(rows), dtype=next(vae.parameters()).dtype).reshape(-1, *vae.shape)
    if not x.isfinite().all():
        raise InputError(
            f"X has values up to {np.abs(rows).max():.4g}, too large for float32: scale it, or use dtype='float64'"
        )
    return x if vae.condition is None and y is None else vae.check(x, y)
