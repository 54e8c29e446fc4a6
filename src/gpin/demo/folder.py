"""The whole demo: from a folder's name to a folder with the report, the figures, the results and the models."""

import json
from pathlib import Path

from gpin._core.files import check_writable, write_whole
from gpin._core.threads import threads
from gpin.demo.comparison import Result
from gpin.demo.experiment import Settings, compete, load_digits
from gpin.demo.figures import pngs
from gpin.demo.page import compose

__all__ = ["run"]


def run(folder: Path, settings: Settings | None = None, progress: bool | None = None) -> Result:
    """Train and compare, and write the report, the figures, the results and the models into a folder.

    Arguments:
        folder: Made where it is missing; files of an earlier demo in it are replaced.
        settings: By default those of about a minute.
        progress: Show progress bars; by default where there is a terminal.
    """
    settings = settings or Settings()
    for part in (folder, folder / "figures", folder / "models"):
        part.mkdir(parents=True, exist_ok=True)
    check_writable(folder)
    with threads(1):  # the networks are so small that two would wait for each other
        digits = load_digits(settings)
        contenders = compete(digits, settings, progress)
        uncertainty = contenders["gp"].vae.uncertainty(digits.test).total
        result = Result(settings, digits, contenders, uncertainty, folder)
        _write(result)
    return result


def _write(result: Result) -> None:
    for name, contender in result.contenders.items():
        contender.vae.save(result.folder / "models" / name)
    for name, png in pngs(result).items():
        write_whole(result.folder / "figures" / f"{name}.png", png)
    write_whole(result.folder / "results.json", json.dumps(result.record(), indent=2, ensure_ascii=False).encode())
    write_whole(result.folder / "report.html", compose(result).html().encode())
