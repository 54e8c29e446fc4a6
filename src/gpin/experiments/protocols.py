"""The experiments of the paper, and their protocols: the paper's own, one with all images but fewer epochs, and a
smaller one for a desk computer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError
from gpin.experiments.execution.jobs import Job, Scoring
from gpin.inference import METHODS
from gpin.runs import RunSettings

__all__ = [
    "EXPERIMENTS",
    "PROTOCOLS",
    "VARIANTS",
    "Entry",
    "Experiment",
    "Protocol",
    "Variant",
    "experiment_named",
    "protocol_named",
    "variant_named",
]


@dataclass(frozen=True)
class Variant:
    """A method with its options, which is one row of a table.

    Attributes:
        title: The name of the row in the table.
        method: The name of the inference method.
        options: The options of the method that differ from its defaults.
        epochs_factor: The factor by which it is trained for more epochs than the other variants.
        initialisation: The number of its first initialisation; 1 is a second training of the variant with 0.
        steps: The number of natural-gradient steps after which it is scored; None scores the method's own posterior.
            Variants that differ in nothing else are scored from one training.
        ablation: Whether it explains another row, and is not itself a method of the paper.
    """

    title: str
    method: str
    options: dict[str, Any]
    epochs_factor: int = 1
    initialisation: int = 0
    steps: int | None = None
    ablation: bool = False

    @property
    def inference_options(self) -> dict[str, Any]:
        """The options of a model that infers as this variant is scored."""
        return self.options if self.steps is None else {**self.options, "steps": self.steps}


def _counted(method: str, option: str, counts: Sequence[int], **others: Any) -> dict[str, Variant]:
    """Variants of a method that differ in one count, such as `sa-4` with four steps."""
    return {f"{method}-{n}": Variant(f"{METHODS[method].label} ({n})", method, {**others, option: n}) for n in counts}


VARIANTS: dict[str, Variant] = {
    "vae": Variant(METHODS["vae"].label, "vae", {}),
    **_counted("sa", "steps", (1, 2, 4, 8), preset="paper"),
    "sa-2-search": Variant("SA (2), line search", "sa", {"steps": 2}),
    **_counted("iaf", "flows", (1, 2, 4, 8)),
    **_counted("hf", "flows", (1, 2, 4, 8)),
    **_counted("me", "components", (2, 3, 4, 5)),
    **_counted("rme", "components", (2, 3, 4, 5)),
    **_counted("vlae", "steps", (1, 2, 4, 8)),
    "gp": Variant(METHODS["gp"].label, "gp", {"preset": "paper"}),
    "natural-0": Variant("Natural (encoder only)", "natural", {}, steps=0),
    "natural": Variant("Natural (1 step)", "natural", {}),
    "natural-2": Variant("Natural (2 steps)", "natural", {}, steps=2),
    "natural-4": Variant("Natural (4 steps)", "natural", {}, steps=4),
    "vae-2x": Variant("VAE, twice the epochs", "vae", {}, epochs_factor=2, ablation=True),
    "natural-2x": Variant("Natural (1 step), twice the epochs", "natural", {}, epochs_factor=2, ablation=True),
    "towers": Variant(
        "deterministic towers",
        "gp",
        {"shared_trunk": False, "deviations": "absolute", "towers": "deterministic"},
        ablation=True,
    ),
    "gp-diagonal": Variant("GP, diagonal", "gp", {"preset": "paper", "covariance": "diagonal"}, ablation=True),
    "gp-shared": Variant("GP, shared trunk, absolute", "gp", {"deviations": "absolute"}, ablation=True),
    "gp-relative": Variant("GP, shared trunk, relative (default)", "gp", {"deviations": "relative"}, ablation=True),
    "gp-loose": Variant(
        "GPVAE, loose weights",
        "gp",
        {"preset": "paper", "initial_std": 1e-6, "weight_kl_factor": 1e-3},
        ablation=True,
    ),
    "gp-again": Variant("GPVAE, another initialisation", "gp", {"preset": "paper"}, initialisation=1, ablation=True),
    "gp-exact": Variant("GP, exact marginal", "gp", {"preset": "paper", "marginal": "exact"}, ablation=True),
}
"""The variants of the paper by name (the method, a dash and its count, as in `PAPER`), those of `natural`, and the
ablations."""


def _scored_steps(variant: Variant) -> tuple[int, ...]:
    """The numbers of steps of all variants that share the training of this one."""
    shared = (
        other for other in VARIANTS.values() if (other.method, other.options) == (variant.method, variant.options)
    )
    return tuple(sorted(other.steps for other in shared if other.steps is not None))


def variant_named(name: str) -> Variant:
    """The variant of that name, where the name of a registered method stands for the method with its defaults."""
    if name in VARIANTS:
        return VARIANTS[name]
    if name not in METHODS:
        raise InputError(f"there is no row {name!r}: {suggest(name, list(dict.fromkeys([*VARIANTS, *METHODS])))}")
    return Variant(METHODS[name].label, name, {})


class Protocol(Config):
    """The amounts of data, training and repetition of an experiment.

    Arguments:
        name: The name of the protocol.
        epochs: The number of epochs of every training.
        batch_size: The number of instances per training step.
        learning_rate: The learning rate of Adam.
        schedule: The schedule of the learning rate.
        limit: The largest number of training images; None takes all.
        validation_limit: The largest number of validation images; None takes all.
        splits: The number of random splits of the data into training and validation parts.
        initialisations: The number of trainings per split, of which the best on validation data counts.
        scoring: How the trained models are scored.
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
        """The training of one variant on one split from one initialisation."""
        variant = variant_named(row)
        settings = {
            "data": {"seed": split, "limit": self.limit, "validation_limit": self.validation_limit},
            "model": {
                "method": variant.method,
                "latent_dim": latent_dim,
                "options": variant.options,
                "architecture": {} if decoder == "mirror" else {"decoder": decoder},
            },
            "training": {
                "epochs": variant.epochs_factor * self.epochs,
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "schedule": self.schedule,
                "seed": 1000 * split + variant.initialisation + initialisation,
            },
        }
        scoring = self.scoring.model_copy(update={"grid": grid, "steps": _scored_steps(variant)})
        return Job(data=data, settings=RunSettings.parse(settings, row), scoring=scoring)


PROTOCOLS = {
    "paper": Protocol(name="paper", epochs=2000, splits=10, initialisations=3),
    # One hour allows 1,000 steps with batches of 128, after which two trainings of one method differ more than two
    # methods do. Batches of 32 allow nearly four times as many steps, and with a learning rate that decays to zero,
    # trainings differ by only a few nats.
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
    # All images, as in the paper, for as many epochs as take an hour for most rows of MNIST on one core.
    "long": Protocol(
        name="long",
        epochs=40,
        batch_size=64,
        learning_rate=1e-3,
        schedule="cosine",
        validation_limit=1000,
        splits=1,
        initialisations=1,
        scoring=Scoring(closely=250, temperatures=200),
    ),
}
"""The protocols by name."""


@dataclass(frozen=True)
class Entry:
    """A job and its place in a table: the row, the column, the repetition, and the number of steps after which it is
    scored, see :class:`Variant`."""

    row: str
    data: str
    latent_dim: int
    split: int
    initialisation: int
    job: Job
    steps: int | None = None

    def __str__(self) -> str:
        return f"{self.data} d={self.latent_dim} {self.row}, split {self.split}, start {self.initialisation}"


@dataclass(frozen=True)
class Experiment:
    """A table of the paper: variants of methods on some data sets, with several latent dimensions.

    Attributes:
        name: The name that users type.
        title: The title above the table.
        data: The benchmark sets.
        rows: The names of its variants, by protocol.
        latent_dims: The latent dimensions, by protocol.
        decoder: "mirror" mirrors the encoder, "dense" is fully connected.
        grid: Whether encoders are compared with the true posterior on a grid, which requires two latent dimensions.
        trained: Whether models are trained; otherwise inference is only timed.
        time_dims: The latent dimensions for which inference is timed.
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
            protocol: The protocol.
            latent_dims: Latent dimensions instead of the protocol's.
            rows: Names of variants or methods instead of the protocol's.
        """
        for name in rows or ():
            variant_named(name)
        if protocol.name not in self.rows and not (latent_dims and rows):
            others = ", ".join(self.rows)
            raise InputError(f"{self.name} has no protocol {protocol.name!r}: choose one of {others}")
        if self.grid and any(dim != 2 for dim in latent_dims or ()):
            raise InputError(f"{self.name} compares with the true posterior on a grid: it requires `latent_dim=2`")
        return [
            Entry(
                row,
                data,
                dim,
                split,
                start,
                protocol.job(data, row, dim, split, start, self.decoder, self.grid),
                variant_named(row).steps,
            )
            for data in self.data
            for dim in latent_dims or self.latent_dims[protocol.name]
            for split in range(protocol.splits)
            for start in range(protocol.initialisations)
            for row in rows or self.rows[protocol.name]
            if self.trained
        ]


# The tables of the paper -----------------------------------------------------------------------------


def _rows(method: str, *counts: int) -> tuple[str, ...]:
    return tuple(f"{method}-{n}" for n in counts)


PAPER_ROWS = (
    "vae",
    *_rows("sa", 1, 2, 4, 8),
    *_rows("iaf", 1, 2, 4, 8),
    *_rows("hf", 1, 2, 4, 8),
    *_rows("me", 2, 3, 4, 5),
    *_rows("rme", 2, 3, 4, 5),
    "gp",
)
DENSE_ROWS = ("vae", *_rows("sa", 1, 2, 4, 8), *_rows("vlae", 1, 2, 4, 8), "gp")
TIMED_ROWS = ("vae", *_rows("sa", 1, 2, 4, 8), *_rows("iaf", 1, 2, 4, 8), "gp")
NOT_AT_DESK = ("gp-loose", "gp-again", "natural-2x")
DESK_ABLATIONS = tuple(name for name, variant in VARIANTS.items() if variant.ablation and name not in NOT_AT_DESK)
# The paper's SA steps hardly move. VLAE is left out because its Jacobians of a convolutional decoder take 0.3 s per
# step at d = 10 and 1.7 s at d = 50: twenty minutes or nearly two hours per run, and a table should take one hour.
NATURAL_ROWS = ("natural-0", "natural", "natural-2", "natural-4")
DESK_ROWS = (
    "vae",
    "sa-2-search",
    "iaf-2",
    "hf-2",
    "me-2",
    "rme-2",
    "gp",
    *NATURAL_ROWS,
    *DESK_ABLATIONS,
)

LONG_ROWS = (
    *("vae", "vae-2x", *NATURAL_ROWS, "sa-2-search", "iaf-2", "rme-2"),
    *("gp", "towers", "gp-loose", "gp-relative"),
)

DIMS = {"paper": (10, 20, 50), "desk": (10, 50), "long": (10, 20, 50)}
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
            Experiment(
                title.lower(),
                title,
                (title.lower(),),
                {"paper": PAPER_ROWS, "desk": DESK_ROWS, "long": LONG_ROWS},
                DIMS,
            )
            for title in ("MNIST", "OMNIGLOT")
        ),
        *(
            Experiment(
                title.lower(),
                title,
                (title.lower(),),
                {"paper": PAPER_ROWS, "desk": ("vae", "iaf-2", "rme-2", "gp", *NATURAL_ROWS, "vae-2x")},
                {**DIMS, "desk": (10,)},
            )
            for title in ("CIFAR10", "SVHN", "CelebA")
        ),
        Experiment(
            "fc-decoder",
            "Fully connected decoder",
            ("mnist", "omniglot"),
            {"paper": DENSE_ROWS, "desk": ("vae", "sa-2-search", "vlae-1", "gp", *NATURAL_ROWS, "natural-2x")},
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
"""The experiments by name."""


def experiment_named(name: str) -> Experiment:
    """The experiment of that name; raises InputError if there is none."""
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}: {suggest(name, list(EXPERIMENTS))}")
    return EXPERIMENTS[name]


def protocol_named(name: str) -> Protocol:
    """The protocol of that name; raises InputError if there is none."""
    if name not in PROTOCOLS:
        raise InputError(f"there is no protocol {name!r}: {suggest(name, list(PROTOCOLS))}")
    return PROTOCOLS[name]
