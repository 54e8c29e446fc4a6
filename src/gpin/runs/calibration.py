"""How often the intervals of a run's posteriors contain the true latent codes."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpin._core.devices import device_named
from gpin._core.inputs import check_seed, whole_number
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.evaluation.calibration import LEAST, Coverage
from gpin.report.numbers import without_nan
from gpin.runs.folder import Run, as_run
from gpin.runs.rows import OnBatch, conditions_of, random_rows
from gpin.vae import VAE

__all__ = ["RunCoverage", "coverage_run", "posteriors"]

SIMULATIONS = 500
"""The number of instances that are simulated, and the largest number of instances of the data."""


@dataclass(frozen=True)
class RunCoverage:
    """The coverage of a run's posteriors.

    Attributes:
        simulated: The coverage of each posterior for instances simulated from the model.
        data: That for instances of the data, whose true codes are replaced by resampled draws; without the resampled
            posterior itself. It is empty if the data has fewer than 50 instances.
        part: The part of the data.
    """

    simulated: Sequence[Coverage]
    data: Sequence[Coverage]
    part: str

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON; unknown values are None."""
        found = {"simulated": self.simulated, self.part: self.data}
        return without_nan({name: [one.record() for one in rows] for name, rows in found.items()})


def posteriors(vae: VAE, steps: int | None = None) -> Iterator[dict[str, Any]]:
    """The arguments of `vae.coverage` for each posterior that is compared.

    They are the posterior of the method and the encoder's after `steps` natural-gradient steps, by default one, or none
    if that of the method includes steps; the refined posterior; and, last, the resampled one. A posterior that has a
    temperature is followed by itself with this temperature.
    """
    steps = (0 if vae.inference.takes_steps else 1) if steps is None else steps
    for name, taken in (("encoder", None), ("encoder", steps), ("refined", None)):
        yield {"posterior": name, "steps": taken}
        if (taken if name == "encoder" else name) in vae.temperatures:
            yield {"posterior": name, "steps": taken, "calibrated": True}
    yield {"posterior": "resampled"}


def coverage_run(
    run: Run | str | os.PathLike[str],
    *,
    steps: int | None = None,
    simulations: int = SIMULATIONS,
    limit: int | None = None,
    data: str | os.PathLike[str] | None = None,
    part: Literal["train", "validation", "test"] = "test",
    seed: int = 0,
    device: str | None = None,
    on_batch: OnBatch | None = None,
    tell: Tell = to_stderr,
) -> RunCoverage:
    """Determine the coverage of a run's posteriors, as `gpin evaluate` does with `calibration`.

    Arguments:
        run: The run, or its folder.
        steps: The number of natural-gradient steps of the second posterior, see :func:`posteriors`.
        simulations: The number of instances to simulate, at least 50.
        limit: The largest number of instances of the data, chosen at random; as many as `simulations` by default.
        data: The new location of the run's data, if it has moved.
        part: The part of the data.
        seed: The seed of all noise and of the random choice of instances.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        on_batch: Called after each posterior with the number of posteriors done and their total.
        tell: Called with each message for the user.
    """
    simulations = whole_number(simulations, "simulations", least=LEAST)
    run = as_run(run)
    vae = run.load(tell).to(device_named(device))
    rows = random_rows(getattr(run.data(data), part), simulations if limit is None else limit, check_seed(seed))
    x, y = rows[:], conditions_of(vae, rows, simulations)
    chosen = list(posteriors(vae, steps))
    compared = chosen[:-1] if len(x) >= LEAST else []
    done, total = 0, len(chosen) + len(compared)

    def covered(instances: Any, arguments: dict[str, Any], y: Any = None) -> Coverage:
        nonlocal done
        found = vae.coverage(instances, **arguments, y=y, seed=seed)
        done += 1
        if on_batch is not None:
            on_batch(done, total)
        return found

    simulated = [covered(simulations, one, y) for one in chosen]
    if compared:
        with seeded(seed):
            z = vae.posterior(x, stages="refined").resample(1)[0]
    return RunCoverage(simulated, [covered((x, z), one) for one in compared], part)
