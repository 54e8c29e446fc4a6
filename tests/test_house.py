"""The rules of the house: who may import whom."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpin"

FLOORS = [
    "_core",
    "distributions",
    "networks",
    "likelihoods",
    "generative",
    "refinement",
    "inference",
    "special",
    "evaluation",
    "vae",
    "data",
    "training",
    "sklearn",
    "estimator",
    "export",
    "report",
    "runs",
    "experiments",
    "demo",
    "cli",
    "__main__",
]
"""Data flows down; a module imports only from the floors above its own."""


def imports(path):
    """Names of gpin's own modules that a file imports at run time, anywhere in it."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gpin":
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "gpin")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_up_the_house(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return
    assert parts[0] in FLOORS, f"{path.name} has no floor in the house"
    for module in imports(path):
        floor = module.split(".")[1] if "." in module else None
        if floor is None:
            assert parts[0] in ("cli", "demo", "__main__"), f"{path.name} imports the package itself"
        else:
            assert FLOORS.index(floor) <= FLOORS.index(parts[0]), f"{path.name} imports {module} from below"


def test_every_package_folder_is_mirrored_in_the_tests():
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")}
    assert [folder for folder in folders if not (ROOT / "tests" / folder).is_dir()] == []
