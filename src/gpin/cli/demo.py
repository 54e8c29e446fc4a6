"""`gpin demo`: the whole story, on bundled data."""

from pathlib import Path
from typing import Annotated

from gpin.cli.base import Flag, app, console, print_json, tell
from gpin.cli.train import Beginning


@app.command(sort_key=0, help_epilogue="Example: `gpin demo --out my-demo --seed 1`")
def demo(
    *, out: Path = Path("gpin-demo"), epochs: int = 100, seed: int = 0, json: Annotated[bool, Flag] = False
) -> None:
    """The whole story in about a minute, offline: a VAE and a GP encoder on scikit-learn's digits.

    Trains both, compares them on test digits, shows which digits the GP encoder is sure of, and writes
    report.html, results.json, the figures and the runs into a folder. The same command again resumes the
    runs, or takes them as they are where they are finished, and writes the rest anew.

    Parameters
    ----------
    out
        The folder for the report, the figures and the runs.
    epochs
        Passes through the training data, for each model.
    seed
        The seed of the split, the first weights and all noise.
    json
        Print the results as JSON instead of tables and pictures.
    """
    from gpin.runs import demo as story

    beginning = Beginning()
    with beginning.interruptible():
        found = story.run_demo(out, epochs=epochs, seed=seed, on_start=beginning, tell=tell)
    if json:
        print_json(found.record())
        return
    from gpin.cli.demo_view import show

    show(found, console())
