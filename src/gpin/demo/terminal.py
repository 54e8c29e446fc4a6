"""What is printed: the comparison, and the digits that the GP encoder is most and least certain of."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpin.demo.comparison import LEAD, Result

__all__ = ["half_blocks", "show"]


def show(result: Result, console: Console) -> None:
    """Print what is compared, how it came out, the most and least certain digits, and where the report is."""
    settings = result.settings
    console.print(f"\n{LEAD}\n")
    console.print(
        f"Handwritten digits of 8×8 pixels: {result.digits.sizes()}.\n{settings.latent_dim} latent dimensions, "
        f"{settings.epochs} epochs each, seed {settings.seed}.\n",
        style="dim",
    )
    console.print(_table(result, console.width >= 70))
    console.print()
    console.print(_notes(result))
    console.print()
    console.print(result.verdict())
    console.print(result.caution(), style="dim")
    _show_digits(result, result.most_certain, "Test digits that the GP encoder is most certain of", console)
    _show_digits(result, result.least_certain, "and least certain of", console)
    console.print(f"\n{result.relation()}", style="dim")
    report = Text.assemble("\nReport: ", (str(result.folder / "report.html"), "bold"))
    console.print(report, soft_wrap=True)


def _table(result: Result, wide: bool) -> Table:
    """The scores; which of them is better, where there is room to say so."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    for contender in result.contenders.values():
        table.add_column(contender.title, justify="right", no_wrap=True)
    if wide:
        table.add_column("better", style="dim")
    for row in result.rows():
        table.add_row(row.label, *row.cells, *([row.better] if wide else []))
    return table


def _notes(result: Result) -> Table:
    """What the table's rows are, without those that only tell more about the row above."""
    notes = Table.grid(padding=(0, 2, 0, 0))
    notes.add_column(style="dim", no_wrap=True)
    notes.add_column(style="dim")
    for row in result.rows():
        if not row.label.startswith("·"):
            notes.add_row(row.label, row.note)
    return notes


def _show_digits(result: Result, chosen: Sequence[int], title: str, console: Console) -> None:
    console.print(f"\n{title}", style="bold")
    chosen = chosen[: max(1, (console.width + 1) // 11)]  # of eight columns each, and three between
    coloured = console.color_system is not None and not console.no_color
    for line in half_blocks(result.digits.test[chosen, 0].numpy(), coloured):
        console.print(Text("  ").append(line))
    labels = [f"a {result.digits.labels[i]}" for i in chosen]
    values = [f"{result.uncertainty[i].item():#.2g}" for i in chosen]
    for cells in (labels, values):
        console.print(Text("  " + "   ".join(f"{cell:^8}" for cell in cells).rstrip(), style="dim"))


def half_blocks(images: np.ndarray, coloured: bool, gap: str = "   ") -> list[Text]:
    """Grey images `(count, height, width)` side by side, two rows of pixels to a line of text.

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
