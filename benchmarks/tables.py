"""The tables of measurements, made from inference.json, refinement.json and anomalies.json beside this file.

    python benchmarks/tables.py            # writes the tables into the documents that show them
    python benchmarks/tables.py --check    # fails if a document differs from the measured file

In a document, a table is between `<!-- costs: NAME -->` and `<!-- /costs -->`.
"""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
MEASURED = HERE / "inference.json"
REFINEMENT = HERE / "refinement.json"
ANOMALIES = HERE / "anomalies.json"
DOCUMENTS = [
    HERE.parent / "README.md",
    HERE.parent / "docs" / "methods.md",
    HERE.parent / "docs" / "tutorials" / "anomalies.md",
    HERE / "README.md",
]
BLOCK = re.compile(r"(<!-- costs: (\w+) -->\n).*?(<!-- /costs -->)", re.DOTALL)

SELECTION = {
    "VAE": "`vae`",
    "IAF (2)": "`iaf`, 2 flows",
    "GP shared basis, shared trunk (default)": "`gp`",
    "GP full, separate towers": "`gp`, the paper's full covariances",
    "Natural, encoder only": "`natural`, encoder only",
    "Natural (1 step, default)": "`natural`, 1 step",
    "SA (4)": "`sa`, 4 steps as in the paper",
    "VLAE (4), dense decoder": "`vlae`, 4 steps, dense decoder",
}
"""The rows of the short table, and their names in it."""

MEMORY_AT_MOST = 1e9

GAUSS_NEWTON = "Gauss–Newton alone"
"""The search with which refinement.py compares the others."""


def table(columns, rows):
    """A table in Markdown; all columns but the first hold numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def shown(row):
    """A median and its quartiles as text."""
    digits = 2 if row["ratio"] < 100 else 0
    low, high = row["quartiles"]
    return [f"{row['ratio']:.{digits}f}", f"{low:.{digits}f} – {high:.{digits}f}"]


def setting(measured):
    """The conditions of the measurement, in a sentence."""
    how = measured["setting"]
    repeats = sorted({row["repeats"] for row in measured["inference"]})
    time = "processor time" if how["clock"] == "process_time" else "wall-clock time"
    return (
        f"Batch {how['batch']}, d = {how['latent_dim']}, images {'×'.join(map(str, how['shape']))}; "
        f"torch {how['torch']}, {how['threads']} thread{'s' * (how['threads'] > 1)} on {how['cores']} CPU cores, "
        f"load average {how['load_average']}; {time}, medians of {repeats[-1]} interleaved repeats"
        f"{f' (slow rows: at least {repeats[0]})' if repeats[0] < repeats[-1] else ''}."
    )


def inference(measured):
    """The inference times of all methods."""
    rows = [
        [
            row["label"],
            *shown(row),
            f"{row['paper']:.2f}" if row["paper"] else "",
            f"≤ {row['at_most']:.2f}" if row["at_most"] else "",
        ]
        for row in measured["inference"]
    ]
    return table(["inference, one batch", "× VAE", "quartiles", "paper", "target"], rows)


def short(measured):
    """The inference times of a few methods, one line each."""
    rows = {row["label"]: shown(row)[0] for row in measured["inference"]}
    return table(["method", "inference time, × VAE"], [[name, rows[label]] for label, name in SELECTION.items()])


def vlae(measured):
    """The inference time of VLAE relative to that of the GP encoder, as in the paper."""
    rows = [
        [row["label"], *shown(row["loop"]), f"{row['paper']:.2f}", *shown(row["default"])]
        for row in measured["vlae_against_gp"]
    ]
    return table(["inference, one batch", "× GP full, loop", "quartiles", "paper", "× GP default", "quartiles"], rows)


def training(measured):
    """The time of a training step."""
    return table(
        ["training, one step", "× VAE", "quartiles"], [[row["label"], *shown(row)] for row in measured["training_step"]]
    )


def memory(measured):
    """The peak memory of training the full covariance, in a sentence."""
    return (
        "Peak memory of training with full covariance on 3×32×32 images (p = 512, d = 50, batch 128): "
        f"{measured['training_peak_bytes'] / 1e6:.0f} MB; target: at most {MEMORY_AT_MOST / 1e6:.0f} MB."
    )


def refinement(measured):
    """The searches for the mode of each trained model: their speed and what they leave."""
    found = measured["refinement"]
    how = found["setting"]
    time = "processor time" if how["clock"] == "process_time" else "wall-clock time"
    columns, rows = ["search"], [[row["label"]] for row in found["models"][0]["searches"]]
    for model in found["models"]:
        columns += [f"{model['name']}, d = {model['latent_dim']}: speed", "mean nats left", "median"]
        for cells, row in zip(rows, model["searches"], strict=True):
            cells += [f"{row['faster']:.1f}", f"{row['left_mean']:.2f}", f"{row['left_median']:.2f}"]
    seconds = ", ".join(
        f"{row['seconds']:.1f} s for {model['name']}"
        for model in found["models"]
        for row in model["searches"]
        if row["label"] == GAUSS_NEWTON
    )
    sentence = (
        f"{how['images']} test images of {how['data']}; torch {how['torch']}, {how['threads']} "
        f"thread{'s' * (how['threads'] > 1)}, {time}. {GAUSS_NEWTON} took {seconds}."
    )
    return f"{table(columns, rows)}\n\n{sentence}"


def anomalies(measured):
    """The areas under the ROC curve of every detector, as means over seeds and over the tasks of a kind."""
    results = measured["anomalies"]["results"]
    detectors = sorted(dict.fromkeys(row["detector"] for row in results), key=lambda name: not name.startswith("gpin"))
    digits = sorted({row["fit"][-1] for row in results if row["fit"].startswith("digits")})
    kinds = {
        "breast cancer": "breast cancer: malignant tumours",
        "wine": "wine: each cultivar in turn",
        "digits": f"digits: one digit ({', '.join(digits)}) against the others",
        "MNIST without 1": "MNIST without 1: ones",
        "MNIST without 4": "MNIST without 4: fours",
        "MNIST without 7": "MNIST without 7: sevens",
        "MNIST: OMNIGLOT": "MNIST: OMNIGLOT's characters",
        "MNIST: black": "MNIST: black pictures",
        "MNIST: noise": "MNIST: noise",
    }
    rows = []
    for start, title in kinds.items():
        areas = {
            name: [row["auroc"] for row in results if row["task"].startswith(start) and row["detector"] == name]
            for name in detectors
        }
        means = {name: round(sum(found) / len(found), 3) for name, found in areas.items() if found}
        if means:
            best = max(means.values())
            cells = [("" if name not in means else f"{means[name]:.3f}") for name in detectors]
            rows.append([title, *(f"**{cell}**" if cell == f"{best:.3f}" else cell for cell in cells)])
    seeds = {
        kind: len({row["seed"] for row in results if ("MNIST" in row["fit"]) == (kind == "pictures")})
        for kind in ("tables", "pictures")
    }
    counts = ", ".join(f"{count} seed{'s' * (count > 1)} for {kind}" for kind, count in seeds.items())
    used = ", ".join(f"{name} {version}" for name, version in measured["anomalies"]["versions"].items())
    return (
        f"{table(['anomalies', *detectors], rows)}\n\nMeans over the tasks of a row and over seeds: {counts}; {used}."
    )


TABLES = {entry.__name__: entry for entry in (setting, inference, short, vlae, training, memory, refinement, anomalies)}


def everything(measured):
    """All measurements as text."""
    parts = [setting(measured), inference(measured)]
    parts += [vlae(measured)] if measured["vlae_against_gp"] else []
    parts += [training(measured)] if measured["training_step"] else []
    parts += [memory(measured)] if measured["training_peak_bytes"] else []
    return "\n\n".join(parts)


def rendered(text, measured):
    """A document with up-to-date tables."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]](measured)}\n{match[3]}", text)


def update(check=False):
    """Write the tables into the documents, unless `check`; returns the documents that differed."""
    measured = json.loads(MEASURED.read_text())
    measured |= {path.stem: json.loads(path.read_text()) for path in (REFINEMENT, ANOMALIES)}
    stale = []
    for path in DOCUMENTS:
        text = path.read_text()
        assert BLOCK.search(text), f"{path} has no table of costs"
        if (new := rendered(text, measured)) != text:
            stale.append(path)
            if not check:
                path.write_text(new)
    return stale


if __name__ == "__main__":
    stale = update(check="--check" in sys.argv[1:])
    if stale and "--check" in sys.argv[1:]:
        names = ", ".join(str(path.relative_to(HERE.parent)) for path in stale)
        sys.exit(f"the tables in {names} differ from the measured files: run python benchmarks/tables.py")
