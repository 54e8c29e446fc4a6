"""The rules of the house: who may import whom."""

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from torch.distributions import Distribution

from gpin.inference import InferenceModel
from gpin.likelihoods import Likelihood
from gpin.networks import Architecture, Trunk
from gpin.refinement import Refinement

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpin"

FLOORS = [
    "_core",
    "conditions",
    "distributions",
    "networks",
    "likelihoods",
    "generative",
    "refinement",
    "inference",
    "special",
    "evaluation",
    "vae",
    "building",
    "data",
    "training",
    "sklearn",
    "estimator",
    "export",
    "report",
    "runs",
    "experiments",
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
            assert parts[0] in ("cli", "__main__"), f"{path.name} imports the package itself"
        else:
            assert FLOORS.index(floor) <= FLOORS.index(parts[0]), f"{path.name} imports {module} from below"


def families():
    """The classes whose differences are asked of the object, by name: the file that defines each."""
    pending = [InferenceModel, Refinement, Likelihood, Architecture, Trunk, Distribution]
    found = {}
    while pending:
        family = pending.pop()
        pending += family.__subclasses__()
        # Distribution itself is the interface; other tests define classes of their own.
        if family is not Distribution and family.__module__.split(".")[0] in ("gpin", "torch"):
            found[family.__name__] = Path(sys.modules[family.__module__].__file__)
    return found


def class_tests(path):
    """Names of classes that a file tests objects or classes for: isinstance, issubclass, `type(x) is C`, `case C()`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            tested = node.args[1:]
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot | ast.Eq) for op in node.ops):
            sides = [node.left, *node.comparators]
            tested = sides if any(ast.unparse(side).startswith("type(") for side in sides) else []
        else:
            tested = [node.cls] if isinstance(node, ast.MatchClass) else []
        for inner in (inner for part in tested for inner in ast.walk(part)):
            if isinstance(inner, ast.Name | ast.Attribute):
                yield inner.id if isinstance(inner, ast.Name) else inner.attr


def module_names():
    """The name of every module of gpin, with its file."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("gpin", *path.relative_to(SOURCE).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_no_modules_import_each_other_in_a_circle():
    files = dict(module_names())

    def imported(path):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gpin":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in files else node.module

    graph = {name: sorted({other for other in imported(path) if other != name}) for name, path in files.items()}
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError and names the circle


def test_methods_and_distributions_are_asked_and_not_tested_for_their_class():
    """Whatever differs between two of a family is an attribute or a method; only its own file may know the class."""
    where = families()
    assert {"GPEncoder", "Gradient", "Bernoulli", "FlowNormal", "Independent"} <= set(where)
    found = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in class_tests(path)
        if name in where and path != where[name]
    ]
    assert found == []


FLAG = re.compile(r"(?<![\w-])(?<!var\()--[a-z][a-z-]*\b(?!: ?#)")
"""An option of the command line, such as `--data`; neither `var(--ink)` nor `--ink: #fff` of a style sheet."""


def flags(path):
    """The flags that strings in a file name, docstrings included, each with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (f"{path.relative_to(SOURCE)}:{node.lineno} {flag}" for flag in FLAG.findall(node.value))


def test_only_the_command_line_names_flags():
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "cli"]
    assert [flag for path in sorted(files) for flag in flags(path)] == []
    assert list(flags(SOURCE / "cli" / "train.py"))  # they would be found


def test_every_package_folder_is_mirrored_in_the_tests():
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")}
    assert [folder for folder in folders if not (ROOT / "tests" / folder).is_dir()] == []
