"""What `gpin demo` prints: the comparison, and the digits that the GP encoder infers best and worst."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpin.cli.base import closer_estimate
from gpin.runs.demo import Demo
from gpin.runs.report.comparison import Comparison, caution, relation, score_rows, verdict
from gpin.runs.report.page import lead

__all__ = ["half_blocks", "show"]


def show(demo: Demo, console: Console) -> None:
    """Print the comparison with its results, the digits inferred best and worst, and the path of the report."""
    comparison = demo.comparison
    for paragraph in lead(comparison):
        console.print(f"\n{paragraph}")
    console.print()
    console.print(_table(comparison))
    console.print()
    console.print(_notes(comparison))
    console.print()
    console.print(verdict(comparison))
    console.print(f"± is the standard error of the mean over {comparison.nouns}. {caution(comparison)}")
    if any(one.refined.caution for one in comparison.scored):
        better = closer_estimate(demo.gp.run.folder, "refined", comparison.samples)
        console.print(f"A closer estimate: {better}", soft_wrap=True)
    what = "Test digits that the GP encoder infers"
    _show_digits(demo, demo.smallest_gap, f"{what} best, with their estimated gap in nats", console)
    _show_digits(demo, demo.largest_gap, f"{what} worst, with their estimated gap in nats", console)
    console.print(f"\n{relation(comparison, demo.gp)}", style="dim")
    console.print(Text.assemble("\nReport: ", (str(demo.report), "bold")), soft_wrap=True)


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("")
    for one in comparison.scored:
        table.add_column(one.name, justify="right", no_wrap=True)
    for label, *cells in score_rows(comparison):
        table.add_row(label.partition("\n")[0], *cells)
    return table


def _notes(comparison: Comparison) -> Table:
    """The explanations of the table's rows, except those that are details of the row above."""
    notes = Table.grid(padding=(0, 2, 0, 0))
    notes.add_column(style="dim", no_wrap=True)
    notes.add_column(style="dim")
    for label, *_ in score_rows(comparison):
        name, _, note = label.partition("\n")
        if not name.startswith("·"):
            notes.add_row(name, note)
    return notes


def _show_digits(demo: Demo, chosen: Sequence[int], title: str, console: Console) -> None:
    console.print(f"\n{title}", style="bold")
    chosen = chosen[: max(1, (console.width + 1) // 11)]  # each is eight columns wide, with three in between
    coloured = console.color_system is not None and not console.no_color
    images = demo.comparison.data.test.__getitems__(chosen)[:, 0].numpy()
    for line in half_blocks(images, coloured):
        console.print(Text("  ").append(line))
    labels = [f"a {demo.labels[i]}" for i in chosen]
    values = [f"{demo.gap[i].item():.1f}" for i in chosen]
    for cells in (labels, values):
        console.print(Text("  " + "   ".join(f"{cell:^8}" for cell in cells).rstrip(), style="dim"))


def half_blocks(images: np.ndarray, coloured: bool, gap: str = "   ") -> list[Text]:
    """Grey images `(count, height, width)` side by side, two rows of pixels per line of text.

    Without colours a pixel is either on or off.
    """
    lines = []
    for top in range(0, images.shape[1] - 1, 2):
        line = Text()
        for i, image in enumerate(images):
            line.append(gap if i else "")
            for upper, lower in zip(image[top], image[top + 1], strict=True):
                if coloured:
                    line.append("▀", style=f"{_grey(upper)} on {_grey(lower)}")
                else:
                    line.append(" ▄▀█"[2 * int(upper > 0.5) + int(lower > 0.5)])
        lines.append(line)
    return lines


def _grey(value: float) -> str:
    level = round(255 * min(max(float(value), 0.0), 1.0))
    return f"#{level:02x}{level:02x}{level:02x}"
