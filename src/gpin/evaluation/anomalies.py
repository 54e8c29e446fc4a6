r"""How unusual single instances are for a trained model, and which of their values make them so.

| score | an instance is unusual if | where it fails |
|---|---|---|
| `log_likelihood` | log p(x) is low | simple instances, such as an empty picture, have a high log p(x) |
| `elbo` | the bound E_q[log p(x, z) − log q(z\|x)] is low | as above |
| `reconstruction` | x is far from E[x\|z] | a flexible decoder reconstructs what it was not trained on, too |
| `gap` | the encoder is far from the best posterior for x | a model whose encoder is accurate everywhere |
| `complexity` | log p(x) + L(x) is low, with L(x) the compressed size of x in nats | pictures only |

The gap is the *likelihood regret* of Xiao et al. (2020, Likelihood regret: an out-of-distribution detection score for
variational auto-encoder). The last score is the correction of Serrà et al. (2020, Input complexity and
out-of-distribution detection with likelihood-based generative models): a general compressor takes the place of a second
model, and what it finds simple is not taken for ordinary.
"""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gpin._core.config import suggest
from gpin._core.errors import InputError
from gpin.distributions import sample_and_log_prob
from gpin.evaluation.gaps import PAIRS
from gpin.generative import Generative

if TYPE_CHECKING:
    from gpin.vae import VAE

__all__ = [
    "ANOMALY_SCORES",
    "AnomalyScore",
    "Surprise",
    "anomaly_score",
    "compressed_nats",
    "percentiles",
    "reconstruction_error",
    "surprise",
]

DRAWS = 10
"""The number of draws of z over which the surprise of each value is averaged."""


@dataclass(frozen=True)
class AnomalyScore:
    """A number that says how unusual an instance is.

    Attributes:
        name: The name by which users choose it.
        title: What it is called in a table for people.
        of: The columns of instances, each `(n,)`, → how unusual each is, `(n,)`; larger is more unusual.
        shown: The column with the number that people read.
        unit: Its unit.
    """

    name: str
    title: str
    of: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    shown: str
    unit: str = "nats"


ANOMALY_SCORES = {
    score.name: score
    for score in (
        AnomalyScore("log_likelihood", "log-likelihood", lambda columns: -columns["log_likelihood"], "log_likelihood"),
        AnomalyScore("elbo", "ELBO", lambda columns: -columns["elbo"], "elbo"),
        AnomalyScore(
            "reconstruction",
            "reconstruction error",
            lambda columns: columns["reconstruction_error"],
            "reconstruction_error",
            "",
        ),
        AnomalyScore("gap", "gap", lambda columns: columns["gap"], "gap"),
        AnomalyScore(
            "complexity",
            "corrected log-likelihood",
            lambda columns: -columns["corrected_log_likelihood"],
            "corrected_log_likelihood",
        ),
    )
}
"""The scores by which instances can be ranked, by name."""


def anomaly_score(name: str) -> AnomalyScore:
    """The score of this name; an unknown name raises InputError.

    Example:
        >>> anomaly_score("gap").of({"gap": np.array([1.0, 3.0])})
        array([1., 3.])
    """
    if name not in ANOMALY_SCORES:
        raise InputError(f"unknown score {name!r} to rank by: {suggest(str(name), list(ANOMALY_SCORES))}")
    return ANOMALY_SCORES[name]


@dataclass(frozen=True)
class Surprise:
    """The terms of −ELBO of each instance, E_q[−log p(x|z)] + KL(q(z|x) ‖ p(z)), in nats.

    Attributes:
        values: E_q[−log p(x_i|z)] of each value, `(batch, *shape)`; None if the likelihood does not know it. It is zero
            for a value that is missing.
        code: KL(q(z|x) ‖ p(z)), `(batch,)`, estimated from the same draws of z.
    """

    values: Tensor | None
    code: Tensor


@torch.no_grad()
def surprise(vae: "VAE", x: Tensor, draws: int = DRAWS) -> Surprise:
    """How many nats each value of x, and its code, cost under a model.

    Arguments:
        vae: The model.
        x: `(batch, *shape)`; joined rows of a conditional model.
        draws: The number of draws of z per instance.

    Example:
        >>> import gpin
        >>> vae, x = gpin.build((6,), "vae", latent_dim=2).eval(), torch.rand(3, 6)
        >>> found = surprise(vae, x)
        >>> found.values.shape, found.code.shape
        (torch.Size([3, 6]), torch.Size([3]))
    """
    x = vae.check(x)
    q = vae.encode(x)
    chunk = max(1, PAIRS // len(x))
    z, log_q = sample_and_log_prob(q, draws, chunk)
    totals = []
    for part in z.split(chunk):
        each = vae.likelihood.log_prob_each(vae.values(x), vae.decoder(vae.given(x, part)))
        if each is None:
            break
        totals.append(-each.sum(0, dtype=torch.float64))
    values = torch.stack(totals).sum(0) / draws if totals else None
    return Surprise(values, (log_q - vae.log_prior(z)).double().mean(0))


def reconstruction_error(model: Generative, x: Tensor, z: Tensor) -> Tensor:
    """The mean of (x_i − E[x_i|z])² over the values that are not missing, `(batch,)`, in the units of the model.

    Arguments:
        model: The generative model.
        x: `(batch, *shape)`; joined rows of a conditional model.
        z: The codes from which x is reconstructed, `(batch, d)`.
    """
    expected = model.likelihood.mean(model.decoder(model.given(x, z)))
    return (model.values(x) - expected).double().square().flatten(1).nanmean(1)


def percentiles(unusual: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The percentage of the reference that is less unusual than each instance, `(n,)`; ties count half.

    Arguments:
        unusual: How unusual the instances are, `(n,)`.
        reference: How unusual those of the reference are, in any order, `(m,)`.

    Example:
        >>> percentiles(np.array([0.0, 2.0, 2.5, 9.0]), np.array([1.0, 4.0, 3.0, 2.0]))
        array([  0. ,  37.5,  50. , 100. ])
    """
    ordered = np.sort(reference)
    below, upto = (np.searchsorted(ordered, unusual, side) for side in ("left", "right"))
    return 50.0 * (below + upto) / len(ordered)


def compressed_nats(images: np.ndarray) -> np.ndarray:
    """The size of each picture as a PNG file, in nats, `(n,)`: 8 log 2 for each byte.

    The size includes the headers of the file, which are the same for all pictures of a shape.

    Arguments:
        images: Bytes `(n, channels, height, width)`. Three channels are stored as colours; others, one below the other.

    Example:
        >>> plain, noise = np.zeros((8, 8)), np.random.default_rng(0).integers(0, 256, (8, 8))
        >>> sizes = compressed_nats(np.stack([plain, noise]).astype(np.uint8)[:, None])
        >>> bool(sizes[0] < sizes[1])
        True
    """
    from PIL import Image

    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(f"images must be bytes (n, channels, height, width), got {images.dtype} {images.shape}")
    sizes = []
    for image in images:
        pixels = image.transpose(1, 2, 0) if len(image) == 3 else image.reshape(-1, image.shape[-1])
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(file, format="png", optimize=True)
        sizes.append(len(file.getvalue()))
    return 8 * math.log(2) * np.array(sizes, np.float64)
