"""The command line: help, listings, errors, exit codes, and how little it imports."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Literal

import pytest
from pydantic import Field

import gpin
import gpin.inference
from gpin._core import errors
from gpin._core.errors import TrainingError
from gpin.cli import _sentence, app, main
from gpin.inference import METHODS, GaussianEncoder, MethodConfig
from gpin.likelihoods import LIKELIHOODS
from gpin.networks import ARCHITECTURES

GROUPS = {"data": ["list", "fetch", "check"]}
COMMANDS = [[name] for name in app if not name.startswith("-")]
COMMANDS += [[group, name] for group, names in GROUPS.items() for name in names]


def run(capsys, *arguments):
    """Exit code, stdout and stderr of a command."""
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def one_line(err):
    return err.startswith("gpin: ") and err.count("\n") == 1 and err.endswith("\n")


# Help and version ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_lists_the_commands_and_an_example(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert all(name in out for (name,) in (command for command in COMMANDS if len(command) == 1))
    assert "Example" in out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_traceback(capsys, command):
    code, out, err = run(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert f"Example: gpin {' '.join(command)}" in out
    assert "--traceback" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"gpin {gpin.__version__}\n", "")


def test_parsing_imports_nothing_heavy():
    heavy = {"torch", "matplotlib", "sklearn", "scipy", "numpy", "pyarrow", "pydantic", "PIL", "gpin.vae"}
    typed = [["--help"], ["--version"], ["wrong"], *([*c, end] for c in COMMANDS for end in ("--help", "--wrong"))]
    code = (
        f"import sys; from gpin.cli import main\nfor arguments in {typed!r}:\n    main(arguments)\n"
        f"    loaded = {heavy!r} & set(sys.modules)\n"
        "    if loaded: sys.exit(f'{arguments} imported {sorted(loaded)}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_m_gpin_is_the_command():
    done = subprocess.run([sys.executable, "-m", "gpin", "wrong"], capture_output=True, text=True)
    assert done.returncode == 2
    assert one_line(done.stderr)


# Methods ---------------------------------------------------------------------------------------------


def test_methods_as_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "methods")
    assert (code, err) == (0, "")
    for method in METHODS.values():
        assert method.name in out
        assert method.title in out
    assert "shared_basis" in out
    assert "preset paper: covariance=full, shared_trunk=false" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_wide_terminal_shows_what_options_do(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = run(capsys, "methods")
    assert "what it does" in out
    assert "A constant added to the variance of q(z|x)." in out


def test_methods_as_json(capsys):
    code, out, err = run(capsys, "methods", "--json")
    assert (code, err) == (0, "")
    records = {record["name"]: record for record in json.loads(out)}
    assert list(records) == list(METHODS)
    options = {option["name"]: option for option in records["gp"]["options"]}
    assert options["covariance"]["default"] == "shared_basis"
    assert options["covariance"]["values"] == "full, diagonal, shared_basis"
    assert options["min_variance"]["values"] == "number ≥ 0"
    assert records["gp"]["presets"]["paper"]["covariance"] == "full"
    assert all(option["help"] for record in records.values() for option in record["options"])


class LaterConfig(MethodConfig):
    """Options.

    Arguments:
        size: How many.
        sizes: How many of each,
            in order.
    """

    size: int | None = Field(default=None, ge=1)
    sizes: tuple[int, ...] = (1, 2)
    share: float = Field(default=0.5, gt=0, lt=1)
    kind: Literal["[red]", "one"] = "one"
    undocumented: str = "x"

    presets = {"small": {"size": 1}}


class Later(GaussianEncoder):
    name = "later"
    title = "A method [bold]to come"
    reference = "Nobody 2099"
    Options = LaterConfig


@pytest.mark.parametrize(("kind", "registry"), [("likelihoods", LIKELIHOODS), ("architectures", ARCHITECTURES)])
def test_likelihoods_and_architectures_are_listed_with_every_option_explained(kind, registry, capsys):
    code, out, err = run(capsys, "methods", kind)
    assert (code, err) == (0, "")
    assert all(entry.title.split(":")[0] in out for entry in registry.values())
    _, out, _ = run(capsys, "methods", kind, "--json")
    records = json.loads(out)
    assert [record["name"] for record in records] == list(registry)
    assert all(option["help"] for record in records for option in record["options"])
    assert not [option for record in records for option in record["options"] if option["name"] == "kind"]


def test_a_method_added_later_is_listed(capsys, monkeypatch):
    monkeypatch.setitem(METHODS, "later", Later)
    _, out, _ = run(capsys, "methods")
    assert "A method [bold]to come" in out
    assert "[red], one" in out
    _, out, _ = run(capsys, "methods", "--json")
    options = {option["name"]: option for option in json.loads(out)[-1]["options"]}
    assert options["size"]["values"] == "integer ≥ 1 or none"
    assert options["sizes"] == {
        "name": "sizes",
        "default": [1, 2],
        "values": "array",
        "help": "How many of each, in order.",
    }
    assert options["share"]["values"] == "number > 0, < 1"
    assert options["undocumented"]["help"] == ""


# Errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wrong"], "wrong"),
        (["demo", "--wrong"], "--wrong"),
        (["demo", "--epochs", "many"], "many"),
        (["demo", "--epochs"], "--epochs"),
        (["demo", "surplus"], "surplus"),
        (["--wrong"], "--wrong"),
        (["demo", "--epochs", "0"], "epochs"),
        (["demo", "--seed", "-1"], "seed must be a whole number between"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert one_line(err)
    assert words in err
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_one_line_and_exit_code_1(capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for out_folder in ("file", "file/below"):
        code, out, err = run(capsys, "demo", "--out", str(tmp_path / out_folder))
        assert (code, out) == (1, "")
        assert one_line(err)
        assert "file" in err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (TrainingError("epoch 3:\nthe loss is nan"), 1, "epoch 3: the loss is nan"),
        (OSError(28, "No space left on device", "report.html"), 1, "No space left on device: report.html"),
        (OSError("odd"), 1, "unexpected OSError: odd"),
        (KeyError("x"), 1, "unexpected KeyError: 'x'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failures_are_one_line(capsys, monkeypatch, error, code, words):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("gpin.runs.demo.run_demo", fail)
    got, out, err = run(capsys, "demo")
    assert (got, out) == (code, "")
    assert one_line(err)
    assert words in err


@pytest.mark.parametrize("arguments", [["demo", "--traceback"], ["--traceback", "demo"]])
def test_traceback_shows_more(capsys, monkeypatch, arguments):
    def fail(*_, **__):
        raise TrainingError("the loss is nan")

    monkeypatch.setattr("gpin.runs.demo.run_demo", fail)
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert err.endswith("\ngpin: the loss is nan\n")


def heed_interrupts():
    """For a child process, whatever the tests were started with."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["gpin", "train", "nothing.npy"]
{start}
"""
STARTS = {
    "python -m gpin": "runpy.run_module('gpin', run_name='__main__', alter_sys=True)",
    "gpin": "from gpin.cli import main; sys.exit(main())",  # as the script that pip installs
}


@pytest.mark.parametrize("start", ["gpin", pytest.param("python -m gpin", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        "torch",
        "gpin.data",
        "nothing",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("cyclopts", "gpin.cli.runs", "torch._C", "numpy")),
    ],
)
def test_control_c_while_modules_are_imported_is_one_line(tmp_path, name, start):
    code = INTERRUPTED_IMPORT.format(name=name, start=STARTS[start])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, preexec_fn=heed_interrupts
    )
    if name == "nothing":
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "gpin: interrupted\n")


@pytest.mark.slow
def test_control_c_is_one_line_and_exit_code_130(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "gpin", "demo", "--out", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    while not any(path.read_text() for path in out.glob("runs/*/metrics.jsonl")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    (folder,) = out.glob("runs/*")
    kept = f"gpin: interrupted: the run is saved in {folder}; run the same command to resume it\n"
    assert (process.returncode, stdout, stderr) == (130, "", kept)


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "gpin", "methods", "--json"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_terminal_without_unicode_still_gets_an_answer():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "gpin", "--help"], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_shell_that_has_closed_stdout_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m gpin --version >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("error", "code"),
    [(errors.BusyError, 1), (errors.FetchError, 1), (errors.TrainingError, 1), (errors.VersionError, 2)],
)
def test_what_may_succeed_later_has_failed_and_is_not_wrong_use(error, code):
    assert _sentence(error("why")) == ("why", code)
