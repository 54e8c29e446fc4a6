"""`gpin demo`: the whole story, on bundled data."""

from pathlib import Path
from typing import Annotated

from gpin.cli.base import Flag, app, console, print_json


@app.command(sort_key=0, help_epilogue="Example: `gpin demo --out my-demo --seed 1`")
def demo(
    *, out: Path = Path("gpin-demo"), epochs: int | None = None, seed: int = 0, json: Annotated[bool, Flag] = False
) -> None:
    """The whole story in about a minute, offline: a VAE and a GP encoder on scikit-learn's digits.

    Trains both, compares them on test digits, shows which digits the GP encoder is sure of, and writes
    report.html, results.json, the figures and the models into a folder. What such a folder held from an
    earlier demo is replaced.

    Parameters
    ----------
    out
        Folder for the report, the figures and the models.
    epochs
        Passes through the training data, for each model; without it, enough to converge.
    seed
        Of the split, the first weights and all noise.
    json
        Print the results as JSON instead of tables and pictures.
    """
    from gpin import demo as story

    settings = story.Settings(seed=seed) if epochs is None else story.Settings(seed=seed, epochs=epochs)
    result = story.run(out, settings)
    if json:
        print_json(result.record())
    else:
        story.show(result, console())
