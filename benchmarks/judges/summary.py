"""The tables in README.md, all made from results.json and npe.json beside this file.

    python benchmarks/judges/summary.py            # writes the tables
    python benchmarks/judges/summary.py --check    # fails if README.md differs from the results

In the document, a table is between `<!-- judges: NAME -->` and `<!-- /judges -->`.
"""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- judges: (\w+) -->\n).*?(<!-- /judges -->)", re.DOTALL)
ORDER = ["vae", "gp", "iaf", "natural, 0 steps", "natural, 1 steps", "natural, 2 steps", "natural, 4 steps"]
ORDER += ["natural, improved", "refined", "refined, resampled", "modes", "modes, resampled"]
NAMES = {"natural, 0 steps": "`natural`, encoder alone", "natural, 1 steps": "`natural`, 1 step"}
TASKS = ["gaussian_linear", "bernoulli_glm", "slcp", "digits"]


def shown(label: str) -> str:
    """A posterior in the table."""
    if label in NAMES:
        return NAMES[label]
    return re.sub(r"^(vae|gp|iaf|natural)\b", r"`\1`", label)


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; all columns but the first hold numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def score(values: dict) -> str:
    """The mean over observations, with their number if it is not ten."""
    if not values:
        return ""
    mean = sum(values.values()) / len(values)
    return f"{mean:.3f}" + (f" ({len(values)})" if len(values) < 10 else "")


def c2st(results: dict) -> str:
    """The mean C2ST of every posterior, and NPE's."""
    found = results.get("c2st", {})
    tasks = [task for task in TASKS if task in found]
    rows = [
        [shown(label), *(score(found[task].get(label, {})) for task in tasks)]
        for label in ORDER
        if any(label in found[task] for task in tasks)
    ]
    npe = json.loads((HERE / "npe.json").read_text())
    for count in ("1000", "10000", "100000"):
        means = [f"{sum(npe[task][count]) / len(npe[task][count]):.3f}" for task in tasks]
        rows.append([f"NPE, {int(count):,} simulations (published)", *means])
    return table(["C2ST, mean over ten observations", *(f"`{task}`" for task in tasks)], rows)


def sbi(results: dict) -> str:
    """SBC and TARP of every posterior."""
    rows = []
    for task in TASKS:
        found = results.get("sbi", {}).get(task, {})
        for label in ORDER:
            if (one := found.get(label)) is None:
                continue
            least = min(1.0, min(one["ks_pvalues"]) * len(one["ks_pvalues"]))
            numbers = [f"{100 * one['coverage_80']:.0f} %", f"{least:.3f}", f"{one['tarp_area']:+.3f}"]
            rows.append([f"`{task}`: {shown(label)}", *numbers, f"{one['tarp_pvalue']:.3f}"])
    return table(["posterior", "80 % intervals cover", "SBC: p", "TARP: area", "TARP: p"], rows)


TABLES = {entry.__name__: entry for entry in (c2st, sbi)}


def rendered(text: str, results: dict) -> str:
    """The document with up-to-date tables."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]](results)}\n{match[3]}", text)


def write(results: dict, check: bool = False) -> bool:
    """Write the tables into README.md, unless `check`; returns whether it differed."""
    path = HERE / "README.md"
    text = path.read_text()
    new = rendered(text, results)
    if new != text and not check:
        path.write_text(new)
    return new != text


if __name__ == "__main__":
    checking = "--check" in sys.argv[1:]
    if write(json.loads((HERE / "results.json").read_text()), checking) and checking:
        sys.exit("the tables in benchmarks/judges/README.md differ from results.json: run benchmarks/judges/summary.py")
