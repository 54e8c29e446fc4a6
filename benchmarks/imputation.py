"""Compare the imputation of missing values with that of scikit-learn, on tables that come with it. See README.md beside
this file.

Example:
    python benchmarks/imputation.py --out benchmarks/imputation.json
"""

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  (registers IterativeImputer)
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from gpin.runs import impute_to_file, run_settings, train

SHARE = 0.2
"""The share of the cells that are removed, completely at random."""

Columns = dict[str, np.ndarray]
"""The columns of a table by name; text in categorical ones."""


def wine() -> Columns:
    """178 wines, 13 measurements."""
    data = load_wine()
    return dict(zip(data.feature_names, data.data.T, strict=True))


def diabetes() -> Columns:
    """442 patients, ten measurements in their units; the sex, 1 or 2, is a 0/1 column here."""
    data = load_diabetes(scaled=False)
    columns = dict(zip(data.feature_names, data.data.T, strict=True))
    return columns | {"sex": columns["sex"] - 1}


def breast_cancer() -> Columns:
    """569 tumours, 30 measurements."""
    data = load_breast_cancer()
    return dict(zip(data.feature_names, data.data.T, strict=True))


def mixed() -> Columns:
    """The wines with text (their cultivar), a 0/1 column (more than 13 % alcohol) and a count (rounded intensity)."""
    data = load_wine()
    columns = dict(zip(data.feature_names, data.data.T, strict=True))
    cultivar = np.array(["Barolo", "Grignolino", "Barbera"])[data.target]
    strong = (columns.pop("alcohol") > 13).astype(float)
    intensity = np.rint(columns.pop("color_intensity"))
    return {"cultivar": cultivar, "strong": strong, "intensity": intensity, **columns}


TABLES: dict[str, Callable[[], Columns]] = {
    "wine": wine,
    "diabetes": diabetes,
    "breast cancer": breast_cancer,
    "mixed wine": mixed,
}
SETTINGS = {"latent_dim": 5, "epochs": 200, "batch_size": 32, "learning_rate": 1e-3, "patience": 40}


def holes(columns: Columns, seed: int) -> dict[str, np.ndarray]:
    """Which cells are removed."""
    rng = np.random.default_rng(seed)
    return {name: rng.random(len(values)) < SHARE for name, values in columns.items()}


def by_gpin(columns: Columns, gone: dict[str, np.ndarray], method: str, seed: int, folder: Path) -> Columns:
    """The completed table of a run that was trained on the table with its holes."""
    data, out = folder / "table.csv", folder / "filled.csv"
    with open(data, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in range(len(next(iter(columns.values())))):
            writer.writerow(["" if gone[name][row] else values[row] for name, values in columns.items()])
    settings = run_settings({"method": method, "seed": seed, **SETTINGS})
    run, _, _ = train(data, settings, out=folder / "runs", progress=False, tell=lambda sentence: None)
    impute_to_file(run, data, out, overwrite=True, tell=lambda sentence: None)
    table = pyarrow.csv.read_csv(out)
    return {name: np.array(table[name].to_pylist()) for name in columns}


def by_sklearn(columns: Columns, gone: dict[str, np.ndarray], imputer: Any) -> Columns:
    """The completed table of an imputer of scikit-learn, with standardised numbers and one-hot encoded text."""
    parts, back = [], []
    for name, values in columns.items():
        if values.dtype.kind == "U":
            levels = np.unique(values[~gone[name]])
            x = (values[:, None] == levels).astype(float)
            back.append((name, x.shape[1], lambda x, levels=levels: levels[x.argmax(1)]))
        else:
            known = values[~gone[name]]
            mean, deviation = known.mean(), known.std()
            x = ((values - mean) / deviation)[:, None]
            back.append((name, 1, lambda x, mean=mean, deviation=deviation: x[:, 0] * deviation + mean))
        x[gone[name]] = np.nan
        parts.append(x)
    filled = imputer.fit_transform(np.concatenate(parts, 1))
    found, start = {}, 0
    for name, width, decode in back:
        found[name] = decode(filled[:, start : start + width])
        start += width
    return found


def scores(columns: Columns, gone: dict[str, np.ndarray], filled: Columns) -> dict[str, float]:
    """RMSE over the removed numbers in standard deviations of their columns; accuracy over removed text and 0/1."""
    squares, right = [], []
    for name, values in columns.items():
        where = gone[name]
        if values.dtype.kind == "U":
            right.append(filled[name][where] == values[where])
        elif set(np.unique(values)) <= {0, 1}:
            right.append(np.rint(filled[name][where].astype(float)) == values[where])
        else:
            squares.append(((filled[name][where].astype(float) - values[where]) / values.std()) ** 2)
    found = {"rmse": float(np.sqrt(np.concatenate(squares).mean()))}
    return found | ({"accuracy": float(np.concatenate(right).mean())} if right else {})


def table_of(records: list[dict[str, Any]]) -> str:
    """The means over seeds with their standard errors, as a table in Markdown."""
    imputers = list(dict.fromkeys(record["imputer"] for record in records))
    lines = ["| table | score | " + " | ".join(imputers) + " |", "|---|---|" + "---:|" * len(imputers)]
    for table in dict.fromkeys(record["table"] for record in records):
        for score in ("rmse", "accuracy"):
            cells = []
            for imputer in imputers:
                own = [r[score] for r in records if (r["table"], r["imputer"]) == (table, imputer) and score in r]
                error = np.std(own, ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.nan
                cells += [f"{np.mean(own):.3f} ± {error:.3f}"] if own else []
            lines += [f"| {table} | {score.replace('rmse', 'RMSE')} | " + " | ".join(cells) + " |"] if cells else []
    return "\n".join(lines)


def main() -> None:
    """Print the scores of every table, imputer and seed, write them to a file, and print a table of their means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="vae")
    parser.add_argument("--tables", default=",".join(TABLES))
    options = parser.parse_args()
    others: dict[str, Callable[[], Any]] = {
        "mean": SimpleImputer,
        "KNNImputer": KNNImputer,
        "IterativeImputer": lambda: IterativeImputer(random_state=0, max_iter=30, tol=1e-2),
    }
    records = []
    for table in options.tables.split(","):
        columns = TABLES[table]()
        for seed in range(options.seeds):
            gone = holes(columns, seed)
            for name in [*others, *(f"gpin {method}" for method in options.methods.split(","))]:
                started = time.perf_counter()
                if name in others:
                    filled = by_sklearn(columns, gone, others[name]())
                else:
                    with tempfile.TemporaryDirectory() as folder:
                        filled = by_gpin(columns, gone, name.removeprefix("gpin "), seed, Path(folder))
                seconds = time.perf_counter() - started
                record = {"table": table, "imputer": name, "seed": seed, **scores(columns, gone, filled)}
                records.append(record | {"seconds": round(seconds, 2)})
                print(records[-1], flush=True)
                result = {"settings": SETTINGS, "share": SHARE, "records": records}
                options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table_of(records))


if __name__ == "__main__":
    main()
