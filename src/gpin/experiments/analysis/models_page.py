"""The page of a comparison of models."""

from contextlib import suppress

from gpin._core.errors import MissingPackageError
from gpin.data import DataSet
from gpin.experiments.analysis.models import ModelResult, ModelTable
from gpin.report import Page, Section, Table
from gpin.report.numbers import plus_minus
from gpin.runs.understood import counted_instances

__all__ = ["compose_page"]


def compose_page(result: ModelTable, data: DataSet) -> Page:
    """The page of a comparison: the recommendation, the table, the differences as a figure, and every training."""
    page = Page(
        f"{len(result.results)} models of {result.data}",
        lead=[
            f"Variational autoencoders that differ in their inference method and in d, the number of latent "
            f"dimensions, trained on {counted_instances(data, f'{len(data.train):,}')} and chosen on "
            f"{len(data.validation):,} others. The numbers below are for the test part, which was used for neither."
        ],
        foot="Made by gpin compare. This page is self-contained: it can be sent, printed and archived.",
    )
    section = page.section("Which model is better?").text(result.recommendation, kind="key")
    table = result.table()
    section.table(table.page_table())
    for note in table.notes:
        section.text(note, kind="note")
    with suppress(MissingPackageError):  # without matplotlib, the page has no figure
        _differences(section, result)
    _trainings(page.section("Every training"), result)
    return page


def _differences(section: Section, result: ModelTable) -> None:
    from gpin.report import plots

    best = result.best
    methods = list(dict.fromkeys(one.method for one in result.results))
    rows, groups = {}, []
    for one in result.results:
        found = None if one is best else result.difference(one, best)
        rows[one.name] = (0.0, 0.0, 0.0) if found is None else (found.mean, found.low, found.high)
        groups.append(methods.index(one.method))
    figure = plots.intervals(rows, groups, f"log-likelihood minus that of {best.name}, nats")
    section.drawing(
        plots.svg(figure),
        alt="The paired difference of every model from the best one, with its 95 % interval.",
        caption="Paired differences from the best model with 95 % intervals. An interval that contains zero shows no "
        "difference.",
    )


def _trainings(section: Section, result: ModelTable) -> None:
    seeds = sorted({seed for one in result.results for seed in one.trainings})
    rows = [[one.name, *(_of_seed(one, seed) for seed in seeds), one.best_run.name] for one in result.results]
    section.table(
        Table(
            ["model", *(f"seed {seed}" for seed in seeds), "best run on validation data"],
            rows,
            caption="The mean log-likelihood of every training, in nats.",
        )
    )


def _of_seed(one: ModelResult, seed: int) -> str:
    found = one.mean_of(seed)
    return "—" if found is None else plus_minus(found.mean, found.stderr)
