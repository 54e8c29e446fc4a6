"""What is compared with what, and at which expense: the paper's protocol, and one for a desk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError
from gpin.experiments.execution.jobs import Job, Scoring
from gpin.runs import RunSettings

__all__ = ["EXPERIMENTS", "PROTOCOLS", "ROWS", "Entry", "Experiment", "Protocol", "experiment_named", "protocol_named"]


@dataclass(frozen=True)
class Row:
    """A row of a table: a method with its options.

    Attributes:
        title: What the table calls it.
        method: The inference model.
        options: Its own.
        longer: How many times as many epochs as the others it trains.
        ablation: Whether it is there to explain another row, and not a method of the paper.
    """

    title: str
    method: str
    options: dict[str, Any]
    longer: int = 1
    ablation: bool = False


def _counted(method: str, option: str, counts: Sequence[int], **others: Any) -> dict[str, Row]:
    return {f"{method}-{n}": Row(f"{method.upper()} ({n})", method, {**others, option: n}) for n in counts}


ROWS: dict[str, Row] = {
    "vae": Row("VAE", "vae", {}),
    **_counted("sa", "steps", (1, 2, 4, 8), preset="paper"),
    "sa-2-search": Row("SA (2), line search", "sa", {"steps": 2}),
    **_counted("iaf", "flows", (1, 2, 4, 8)),
    **_counted("hf", "flows", (1, 2, 4, 8)),
    **_counted("me", "components", (2, 3, 4, 5)),
    **_counted("rme", "components", (2, 3, 4, 5)),
    **_counted("vlae", "steps", (1, 2, 4, 8)),
    "gp": Row("GPVAE", "gp", {"preset": "paper"}),
    "vae-2x": Row("VAE, twice the epochs", "vae", {}, longer=2, ablation=True),
    "towers": Row("deterministic towers", "gp", {"shared_trunk": False, "towers": "deterministic"}, ablation=True),
    "gp-diagonal": Row("GP, diagonal", "gp", {"preset": "paper", "covariance": "diagonal"}, ablation=True),
    "gp-shared": Row("GP, shared basis and trunk (default)", "gp", {}, ablation=True),
    "gp-exact": Row("GP, exact marginal", "gp", {"preset": "paper", "marginal": "exact"}, ablation=True),
}
"""Every row of every table, by name: the method, a dash and its count, as in `PAPER`; below them the ablations."""

PAPER_ROWS = tuple(
    name for name, row in ROWS.items() if not row.ablation and row.method != "vlae" and not name.endswith("-search")
)
DENSE_ROWS = ("vae", "sa-1", "sa-2", "sa-4", "sa-8", "vlae-1", "vlae-2", "vlae-4", "vlae-8", "gp")
TIMED_ROWS = tuple(name for name in PAPER_ROWS if ROWS[name].method in ("vae", "sa", "iaf", "gp"))
ABLATIONS = tuple(name for name, row in ROWS.items() if row.ablation)
# The paper's steps of SA hardly move. VLAE's Jacobians of a convolutional decoder take 0.3 s a step at d = 10 and 1.7 s
# at d = 50: twenty minutes or nearly two hours a run, and a table is to take one.
DESK_ROWS = ("vae", "sa-2-search", "iaf-2", "hf-2", "me-2", "rme-2", "gp", *ABLATIONS)


class Protocol(Config):
    """At which expense.

    Arguments:
        name: What to call it.
        epochs: Of every training.
        batch_size: Of every step.
        learning_rate: Adam's.
        schedule: Of the learning rate.
        limit: Training images, at most; none takes all.
        validation_limit: Validation images, at most.
        splits: Random splits of the data into training and validation part.
        initialisations: Trainings of each split, of which the best on validation data counts.
        scoring: Of the trained models.
    """

    name: str
    epochs: int = Field(ge=1)
    batch_size: int = 128
    learning_rate: float = 5e-4
    schedule: Literal["constant", "cosine"] = "constant"
    limit: int | None = None
    validation_limit: int | None = None
    splits: int = Field(ge=1)
    initialisations: int = Field(ge=1)
    scoring: Scoring = Scoring()

    def job(
        self, data: str, row: str, latent_dim: int, split: int, initialisation: int, decoder: str, grid: bool
    ) -> Job:
        """The training of a row on one split from one initialisation."""
        kind = ROWS[row]
        settings = {
            "data": {"seed": split, "limit": self.limit, "validation_limit": self.validation_limit},
            "model": {
                "method": kind.method,
                "latent_dim": latent_dim,
                "options": kind.options,
                "architecture": {} if decoder == "mirror" else {"decoder": decoder},
            },
            "training": {
                "epochs": kind.longer * self.epochs,
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "schedule": self.schedule,
                "seed": 1000 * split + initialisation,
            },
        }
        scoring = self.scoring.model_copy(update={"grid": grid})
        return Job(data=data, settings=RunSettings.parse(settings, row), scoring=scoring)


PROTOCOLS = {
    "paper": Protocol(name="paper", epochs=2000, splits=10, initialisations=3),
    # An hour is 1,000 steps of 128 images, after which two trainings of one method differ more than two methods; of 32
    # it is nearly four times as many, and with a rate that ends at zero trainings differ by a few nats.
    "desk": Protocol(
        name="desk",
        epochs=12,
        batch_size=32,
        learning_rate=1e-3,
        schedule="cosine",
        limit=10_000,
        validation_limit=1000,
        splits=3,
        initialisations=1,
        scoring=Scoring(instances=500),
    ),
}


@dataclass(frozen=True)
class Entry:
    """A job and its place in a table."""

    row: str
    data: str
    latent_dim: int
    split: int
    initialisation: int
    job: Job

    def __str__(self) -> str:
        return f"{self.data} d={self.latent_dim} {self.row}, split {self.split}, start {self.initialisation}"


@dataclass(frozen=True)
class Experiment:
    """A table of the paper: methods on some data sets, in latent spaces of several dimensions.

    Attributes:
        name: What users type.
        title: Above the table.
        data: The benchmark sets.
        rows: Its rows, by protocol.
        latent_dims: By protocol.
        decoder: "mirror" as the encoder, or "dense".
        grid: Whether the encoder is compared with the true posterior on a grid; takes two latent dimensions.
        trained: Whether there is something to train.
        time_dims: Latent dimensions with which inference is timed.
    """

    name: str
    title: str
    data: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    latent_dims: dict[str, tuple[int, ...]]
    decoder: str = "mirror"
    grid: bool = False
    trained: bool = True
    time_dims: tuple[int, ...] = ()

    def entries(
        self, protocol: Protocol, latent_dims: Sequence[int] | None = None, rows: Sequence[str] | None = None
    ) -> list[Entry]:
        """Every training that the table needs, column by column and split by split.

        Arguments:
            protocol: At which expense.
            latent_dims: Others than the protocol's.
            rows: Others than the protocol's.
        """
        for name in rows or ():
            if name not in ROWS:
                raise InputError(f"there is no row {name!r}: {suggest(name, list(ROWS))}")
        if self.grid and any(dim != 2 for dim in latent_dims or ()):
            raise InputError(f"{self.name} compares with the true posterior in a plane: it takes `latent_dim=2` only")
        return [
            Entry(row, data, dim, split, start, protocol.job(data, row, dim, split, start, self.decoder, self.grid))
            for data in self.data
            for dim in latent_dims or self.latent_dims[protocol.name]
            for split in range(protocol.splits)
            for start in range(protocol.initialisations)
            for row in rows or self.rows[protocol.name]
            if self.trained
        ]


DIMS = {"paper": (10, 20, 50), "desk": (10, 50)}
EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment(
            "digits",
            "scikit-learn's digits",
            ("digits",),
            {"paper": PAPER_ROWS, "desk": DESK_ROWS},
            {**DIMS, "desk": (10,)},
        ),
        *(
            Experiment(title.lower(), title, (title.lower(),), {"paper": PAPER_ROWS, "desk": DESK_ROWS}, DIMS)
            for title in ("MNIST", "OMNIGLOT")
        ),
        *(
            Experiment(
                title.lower(),
                title,
                (title.lower(),),
                {"paper": PAPER_ROWS, "desk": ("vae", "iaf-2", "rme-2", "gp")},
                {**DIMS, "desk": (10,)},
            )
            for title in ("CIFAR10", "SVHN", "CelebA")
        ),
        Experiment(
            "fc-decoder",
            "Fully connected decoder",
            ("mnist", "omniglot"),
            {"paper": DENSE_ROWS, "desk": ("vae", "sa-2-search", "vlae-1", "gp")},
            {"paper": (10, 50), "desk": (10, 50)},
            decoder="dense",
            time_dims=(10, 50),
        ),
        Experiment(
            "inference-time",
            "Inference time",
            ("mnist", "omniglot", "cifar10", "svhn", "celeba"),
            {"paper": TIMED_ROWS, "desk": (*TIMED_ROWS, "gp-shared")},
            {"paper": (), "desk": ()},
            trained=False,
            time_dims=(50,),
        ),
        Experiment(
            "uncertainty",
            "Uncertainty and the true posterior",
            ("mnist",),
            {"paper": ("gp",), "desk": ("gp", "gp-shared")},
            {"paper": (2,), "desk": (2,)},
            grid=True,
        ),
    )
}
"""By name."""


def experiment_named(name: str) -> Experiment:
    """An experiment, or an error that says which there are."""
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}: {suggest(name, list(EXPERIMENTS))}")
    return EXPERIMENTS[name]


def protocol_named(name: str) -> Protocol:
    """A protocol, or an error that says which there are."""
    if name not in PROTOCOLS:
        raise InputError(f"there is no protocol {name!r}: {suggest(name, list(PROTOCOLS))}")
    return PROTOCOLS[name]
