"""What surrounds the package: continuous integration runs what developers run, on every version that is promised."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_continuous_integration_tests_every_python_that_is_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [found[1] for text in project["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", text))]
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python-version"] == promised
    assert project["requires-python"] == f">={promised[0]}"


def test_continuous_integration_calls_targets_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    commands += re.findall(r"^make .*", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    called = {word for command in commands for word in command.split()[1:] if not word.startswith("-")}
    assert called == {"test", "docs"}
    assert called <= targets


def test_torch_is_checked_by_a_warning():
    from check_torch import differences  # scripts/
    from torch import __version__

    tested = __version__.split("+")[0]
    assert not any("is tested with" in sentence for sentence in differences(f"# comment\ntorch=={tested}\n"))
    assert differences("torch==0.1.0\n")[0] == f"torch is {__version__}, but gpin is tested with 0.1.0"
