"""`gpin demo`: train and compare two methods on bundled data."""

from pathlib import Path
from typing import Annotated

from gpin.cli.base import Flag, app, console, print_json, tell
from gpin.cli.train import Beginning


@app.command(sort_key=0, help_epilogue="Example: `gpin demo --out my-demo --seed 1`")
def demo(
    *, out: Path = Path("gpin-demo"), epochs: int = 100, seed: int = 0, json: Annotated[bool, Flag] = False
) -> None:
    """Compare a VAE and a GP encoder on scikit-learn's digits, offline and in about a minute.

    The command trains both models, compares them on test digits, and shows which digits the GP encoder infers best and
    worst. It writes report.html, results.json, the figures and the runs into a folder. The same command
    resumes unfinished runs, reuses finished ones, and writes the other files again.

    Parameters
    ----------
    out
        The folder for the report, the figures and the runs.
    epochs
        The number of passes through the training data, for each model.
    seed
        Seeds the split of the data, the initial weights and all noise.
    json
        Print the results as JSON instead of tables and pictures.
    """
    from gpin.runs.demo import run_demo

    beginning = Beginning()
    with beginning.interruptible():
        found = run_demo(out, epochs=epochs, seed=seed, on_start=beginning, tell=tell)
    if json:
        print_json(found.record())
        return
    from gpin.cli.demo_view import show

    show(found, console())
