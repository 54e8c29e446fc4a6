"""`gpin train`: settings from everywhere, what it says, resuming, and what it refuses."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpin._core.errors import InputError
from gpin.cli.train import ASSIGNED
from gpin.runs import open_run
from gpin.training import TrainingConfig
from gpin.training.checkpoints import Checkpoints

SMALL = ["--latent-dim", "2", "--set", "architecture.width=16"]


def test_a_run_says_where_it_is_and_again_that_it_is_done(gpin, files, tmp_path):
    command = ["train", files / "table.csv", *SMALL, "--epochs", "1", "--out", tmp_path / "runs"]
    first = gpin(*command)
    assert (first.code, first.remarks) == (0, [])
    assert list(first.understood) == ["data", "columns", "scaling", "model", "likelihood", "training", "time"]
    folder = next((tmp_path / "runs").iterdir())
    where, result, meaning, more = first.out.splitlines()
    assert where == f"done: {folder}"
    assert re.fullmatch(r"best epoch 1 of 1 by its validation score of \S+ nats, validation ELBO \S+ nats", result)
    assert meaning == "both are lower bounds of log p(x), mean over instances"
    assert more.startswith("the best epoch is the last one, so more training may help; to go on: gpin train ")
    again = gpin(*command)
    assert (again.code, again.err) == (0, "")
    assert again.out == first.out.replace("done:", "already done:")


def test_json(gpin, files, tmp_path):
    said = gpin("train", files / "pictures", "--grey", *SMALL, "--epochs", "1", "--out", tmp_path, "--json")
    assert (said.code, said.remarks) == (0, [])
    record = json.loads(said.out)
    assert record["understood"] == said.understood
    assert record["understood"]["data"] == "pictures: 24 pictures for training, 3 for validation, 3 for testing"
    assert record["understood"]["colours"] == "30 of 30 pictures are coloured and are read in grey"
    assert record["understood"]["sizes"] == "all pictures have 12×10 pixels (height×width)"
    assert record["shape"] == [1, 12, 10]
    assert (record["began"], record["epochs"], record["best_epoch"]) == ("new", 1, 1)
    assert (record["scaling"], record["method"]) == ("pixels", "gp")
    assert isinstance(record["validation_elbo"], float)
    assert open_run(record["run"]).location == record["data"] == str(files / "pictures")


def test_assignments_and_flags_override_the_config(gpin, files, tmp_path, monkeypatch):
    asked = []

    def stop(data, settings, **_):
        asked.append(settings)
        raise InputError("enough")

    monkeypatch.setattr("gpin.runs.train", stop)
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model": {"method": "vae", "latent_dim": 3},
                "training": {"epochs": 7, "seed": 5, "batch_size": 16},
                "data": {"source": {"columns": ["a", "b"]}},
            }
        )
    )
    gpin("train", "x.csv", "--config", config, "--epochs", "8", "--set", "seed=9", "limit=10")
    gpin("train", "--set", "ema=0.5", "x.csv", "--method", "gp", "--set", "covariance=full", "--columns", "b, c")
    gpin("train", "x.csv", "--scaling", "none", "--size", "64x48", "--grey", "--key", "x")
    first, second, third = asked
    assert (first.model.method, first.model.latent_dim) == ("vae", 3)
    assert (first.training.epochs, first.training.seed, first.training.batch_size) == (8, 9, 16)
    assert (first.data.source.columns, first.data.limit) == (("a", "b"), 10)
    assert (second.training.ema, second.model.options) == (0.5, {"covariance": "full"})
    assert (second.training.auto, second.model.latent_dim) == (
        ("epochs", "batch_size", "learning_rate", "patience"),
        10,
    )
    assert second.data.source.columns == ("b", "c")
    assert (third.data.scaling, third.data.source.size, third.data.source.grey) == ("none", (64, 48), True)
    assert third.data.source.key == "x"


def test_a_run_can_be_repeated_from_its_own_settings(gpin, files, runs, tmp_path):
    config = Path(runs["table"]) / "run.json"
    said = gpin("train", files / "table.csv", "--config", config, "--out", tmp_path, "--json")
    assert Path(json.loads(said.out)["run"]).name == Path(runs["table"]).name
    assert (
        open_run(json.loads(said.out)["run"]).load(print).checksum() == open_run(runs["table"]).load(print).checksum()
    )


def test_a_warm_start(gpin, files, runs, tmp_path):
    options = ["--epochs", "1", "--latent-dim", "2", "--set", "architecture.width=16", "--out", tmp_path, "--json"]
    said = gpin("train", files / "table.npy", *options, "--start", runs["plain"])
    assert said.code == 0, said.err
    folder = json.loads(said.out)["run"]
    assert open_run(folder).start == open_run(runs["plain"]).load(print).checksum()
    command = ["train", files / "table.npy", "--config", Path(folder) / "run.json", "--out", tmp_path, "--json"]
    forgotten = gpin(*command)
    assert (forgotten.code, forgotten.out) == (2, "")
    assert "give that model as --start" in forgotten.err
    again = json.loads(gpin(*command, "--start", runs["plain"]).out)
    assert (again["run"], again["began"]) == (folder, "done")


@pytest.mark.parametrize(
    "content", [{"model": 3}, {"model": {"options": 5}}, {"training": []}, {"data": {"source": 5}}, {"model": None}]
)
def test_a_config_that_holds_something_else_is_one_line(gpin, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(content))
    said = gpin("train", "x.csv", "--config", "config.json", "--columns", "a", "--set", "covariance=full")
    assert (said.code, said.out) == (2, "")
    assert said.one_line
    assert "config.json" in said.err


def test_a_text_column_is_refused_with_advice_that_works(gpin, files, tmp_path):
    said = gpin("train", files / "mixed.csv", *SMALL, "--epochs", "1", "--out", tmp_path)
    assert said.code == 2
    assert said.one_line
    assert "--exclude name" in said.err
    assert gpin("train", files / "mixed.csv", *SMALL, "--epochs", "1", "--out", tmp_path, "--exclude", "name").code == 0


def test_a_header_of_numbers_is_told_of_for_it_is_read_as_data(gpin, files, tmp_path):
    lines = (files / "table.csv").read_text().splitlines()
    (tmp_path / "years.csv").write_text("\n".join(["1990,1991,1992", *lines[1:]]))
    command = ["train", tmp_path / "years.csv", *SMALL, "--epochs", "1", "--out", tmp_path / "runs"]
    said = gpin(*command)
    assert said.code == 0
    remark, *extremes = said.remarks
    assert "years.csv is all numbers, so it is read as data; the columns are called 1, 2, …" in remark
    assert "column '1' has 1 extreme value; the farthest is 1990 in row 0" in extremes[0]
    assert gpin(*command).err == ""
    assert gpin(*command, "--columns", "1,2,3").remarks == extremes


def test_data_that_has_moved_is_found_in_its_new_place(gpin, files, tmp_path):
    shutil.copy(files / "table.csv", tmp_path / "table.csv")
    options = [*SMALL, "--epochs", "1", "--out", tmp_path / "runs", "--json"]
    folder = Path(json.loads(gpin("train", tmp_path / "table.csv", *options).out)["run"])
    (folder / "environment.json").write_text("of the machine that it was trained on")
    (tmp_path / "new").mkdir()
    (tmp_path / "table.csv").rename(tmp_path / "new" / "table.csv")
    assert gpin("evaluate", folder, "--samples", "2").code == 2
    again = json.loads(gpin("train", tmp_path / "new" / "table.csv", *options).out)
    assert (again["run"], again["began"]) == (str(folder), "done")
    assert open_run(folder).location == str(tmp_path / "new" / "table.csv")
    assert gpin("evaluate", folder, "--samples", "2").code == 0
    assert (folder / "environment.json").read_text() == "of the machine that it was trained on"


def test_two_processes_do_not_train_one_run(gpin, files, tmp_path):
    command = ["train", files / "table.csv", *SMALL, "--epochs", "100000", "--out", tmp_path]
    process = subprocess.Popen(
        [sys.executable, "-m", "gpin", *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not any(path.read_text() for path in tmp_path.glob("*/metrics.jsonl")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        said = gpin(*command)
    finally:
        process.kill()
        process.communicate()
    (folder,) = tmp_path.iterdir()
    assert (said.code, said.out) == (1, "")
    assert said.err == f"gpin: {folder} is being trained by another process: wait for it, or stop it first\n"


def test_tensorboard_device_and_how_often_checkpoints_are_written(gpin, files, tmp_path, monkeypatch):
    written, write = [], Checkpoints.write

    def count(self, number, checkpoint):
        written.append(number)
        write(self, number, checkpoint)

    monkeypatch.setattr(Checkpoints, "write", count)
    command = ["train", files / "table.csv", *SMALL, "--epochs", "3", "--device", "cpu", "--json"]
    rare = json.loads(gpin(*command, "--out", tmp_path / "rare", "--checkpoint-seconds", "1000").out)["run"]
    assert written == [0, 3, 4]  # before the first step, the last state, and the best weights
    written.clear()
    often = gpin(*command, "--out", tmp_path / "often", "--checkpoint-seconds", "0", "--tensorboard")
    often = json.loads(often.out)["run"]
    assert {0, 1, 2, 3} <= set(written)
    assert not (Path(rare) / "tensorboard").exists()
    assert list((Path(often) / "tensorboard").glob("events.*"))
    assert open_run(rare).load(print).checksum() == open_run(often).load(print).checksum()


def test_logs_go_where_they_are_asked_to_before_anything_is_begun(gpin, files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    command = ["train", files / "table.csv", *SMALL, "--epochs", "1", "--out", tmp_path / "runs"]
    said = gpin(*command, "--log", "tensorboard", "--log", "mlflow")
    assert (said.code, said.err) == (2, "gpin: the package mlflow is missing: pip install 'gpin[mlflow]'\n")
    assert not (tmp_path / "runs").exists()
    assert gpin(*command, "--log", "tensorboard").code == 0
    assert len(list((tmp_path / "runs").glob("*/tensorboard/events.*"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "--log", "wanbd"], "wanbd"),
        (["nothing.csv"], "nothing.csv does not exist"),
        (["digitz"], "did you mean 'digits'?"),
        (["digits", "--method", "gq"], "unknown method 'gq'"),
        (["digits", "--epochs", "0"], "training.epochs"),
        (["digits", "--latent-dim", "0"], "latent_dim"),
        (["digits", "--set", "learning_rat=1"], "did you mean 'learning_rate'?"),
        (["digits", "--set", "covariance"], "expected key=value"),
        (["digits", "--set", "covariance=round"], "covariance"),
        (["digits", "surplus"], "unexpected 'surplus'"),
        (["digits", "--columns", "a"], "--columns"),
        (["digits", "--size", "64x"], "--size"),
        (["digits", "--size", "0"], "--size"),
        (["digits", "--scaling", "wrong"], "scaling"),
        (["digits", "--config", "none.json"], "none.json"),
        (["digits", "--start", "nowhere"], "nowhere"),
        (["digits", "--set", "epochs=3", "--set", "epochs=4"], "'epochs' is given twice"),
        (["digits", "--epochs", "3", "--set", "epochs=4"], "'epochs' is given twice, as --epochs and as epochs=4"),
        (["digits", "--set", "size=8"], "--size is an option of folders of pictures"),
        (["nothing.csv", "--method", "vae", "--set", "covariance=full"], "no option 'covariance'"),
        (["digits", "--device", "abacus"], "no device 'abacus'"),
        (["digits", "--device", "meta"], "no device 'meta'"),
        (["digits", "--checkpoint-seconds", "soon"], "soon"),
        (["digits", "--checkpoint-seconds", "-1"], "--checkpoint-seconds"),
        ([], "DATA"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(gpin, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    said = gpin("train", *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.one_line
    assert words in said.err
    assert not list(tmp_path.iterdir())


def test_other_processes_than_the_first_say_nothing(gpin, files, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    said = gpin("train", files / "table.csv", *SMALL, "--epochs", "1", "--out", tmp_path, "--json")
    assert said == (0, "", "")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert gpin("train", files / "nothing.csv") == (2, "", "")


def test_a_training_error_is_exit_code_1(gpin, files, tmp_path):
    said = gpin("train", files / "table.csv", *SMALL, "--epochs", "1", "--set", "learning_rate=1e30", "--out", tmp_path)
    assert said.code == 1
    (remark,) = said.remarks
    assert "smaller learning_rate" in remark


def test_control_c_keeps_the_run_and_the_same_command_finishes_it(gpin, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", str(files / "table.csv"), *SMALL, "--epochs", "300"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gpin", *command, "--checkpoint-seconds", "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever the tests were started with
    )
    while not any(path.read_text() for path in Path().glob("runs/*/metrics.jsonl")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    folder = next(Path("runs").iterdir())
    kept = f"gpin: interrupted: the run is saved in {folder}; run the same command to resume it"
    assert (process.returncode, out, err.splitlines()[-1]) == (130, "", kept)

    half = gpin("evaluate", folder, "--limit", "5", "--samples", "2", "--json")
    assert half.code == 0
    assert half.err == f"gpin: {folder} is not finished: these are the best weights so far\n"

    done = gpin(*command)
    assert done.code == 0
    # On a slow machine, training also says by the minute how far it is.
    (remark,) = (line for line in done.remarks if not line.startswith("epoch "))
    assert re.fullmatch(rf"resuming at epoch \d+ of 300: {folder}", remark)
    assert done.out.startswith(f"done: {folder}\n")
    history, finished = open_run(folder).history(print)
    assert finished
    assert len(history.epochs) == 300


def test_the_budget_is_said_and_recorded_and_the_command_that_continues_can_be_pasted(gpin, files, tmp_path):
    out = tmp_path / "my runs"
    command = ["train", files / "table.csv", *SMALL, "--steps", "3", "--out", out, "--checkpoint-seconds", "0"]
    said = gpin(*command)
    assert said.code == 0
    chosen = "2 epochs of 2 steps each, with batches of 32 and a learning rate of 0.001; chosen by the size of the data"
    assert chosen in said.err
    (folder,) = out.iterdir()
    training = open_run(folder).settings.training
    assert (training.epochs, training.batch_size, training.learning_rate, training.patience) == (2, 32, 0.001, 250)
    longer = said.out.splitlines()[-1].partition("may help; to go on: ")[2]
    assert longer.endswith(f"--out '{out}' --checkpoint-seconds 0 --steps 8")
    assert json.loads(gpin(*command, "--json").out)["continue"] == longer.replace(" --steps", " --json --steps")
    again = gpin(*shlex.split(longer)[1:])
    assert again.code == 0
    assert f"going on after step 4 of {folder}" in again.err
    assert "resuming at epoch 3 of 4" in again.err
    assert "of 4 by its validation score" in again.out


def test_a_run_stops_when_its_time_is_up_and_the_same_command_resumes_it(gpin, files, tmp_path):
    command = ["train", files / "table.csv", *SMALL, "--epochs", "2", "--out", tmp_path]
    paused = gpin(*command, "--max-time", "0.000001s")
    assert paused.code == 0
    (folder,) = tmp_path.iterdir()
    assert paused.out == f"stopped after 0 of 2 epochs because time is up: {folder}\nthe same command resumes it\n"
    assert not (folder / "model").exists()
    rest = gpin(*command, "--max-time", "1h", "--json")
    assert json.loads(rest.out)["finished"]
    assert gpin(*command).out.startswith(f"already done: {folder}\n")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--batch-size", "3"], "there is no option --batch-size: use --set batch_size=…"),
        (["--lr=0.1"], "there is no option --lr: use --set learning_rate=…"),
        (["--set", "lr=0.1"], "did you mean 'learning_rate'?"),
        (["--epoch", "3"], "Did you mean --epochs?"),
        (["--max-time", "30"], "--max-time must be a positive time with a unit, such as 30m, 90s or 1h30m, got '30'"),
        (["--max-time", "0m"], "--max-time must be a positive time"),
        (["--epochs", "3", "--steps", "9"], "--epochs and --steps are two ways to say how long to train"),
    ],
)
def test_hints_for_options(gpin, files, tmp_path, options, hint):
    said = gpin("train", files / "table.csv", "--out", tmp_path, *options)
    assert said.code == 2
    assert said.one_line
    assert hint in said.err
    assert not list(tmp_path.iterdir())


def test_training_that_stopped_early_says_how_to_go_on(gpin, files, tmp_path):
    options = [
        "--epochs",
        "9",
        "--set",
        "patience=1",
        "learning_rate=0.5",
        "--out",
        tmp_path,
        "--checkpoint-seconds",
        "0",
    ]
    said = gpin("train", files / "table.csv", *SMALL, *options)
    *_, last = said.out.splitlines()
    assert last.startswith("training stopped early, after 1 epoch without a better one; to go on: gpin train ")
    longer = last.partition("to go on: ")[2]
    assert longer.endswith("--checkpoint-seconds 0 --set patience=2")
    assert "going on after step" in gpin(*shlex.split(longer)[1:]).err


def test_the_command_that_goes_on_keeps_the_steps_of_a_method(gpin, files, tmp_path):
    options = ["--method", "natural", "--set", "steps=2", "--steps=2", "--out", tmp_path, "--json"]
    said = gpin("train", files / "table.csv", *SMALL, *options)
    longer = json.loads(said.out)["continue"]
    assert longer.endswith(f"--method natural --set steps=2 --out {tmp_path} --json --steps 4")


def test_the_options_that_have_no_flag_are_options_of_training():
    assert set(ASSIGNED) < set(TrainingConfig.model_fields)


def test_a_run_out_of_time_after_divergence_is_not_simply_advised_to_resume():
    from gpin.cli.train import _has_diverged
    from gpin.training import History
    from gpin.training.history import Epoch

    rising = [Epoch(10.0 * n, 9.0 * n, 1.0, score=9.0 * n) for n in range(4)]
    parting = [Epoch(30 + 10.0 * n, 27 - 2.0 * n, 1.0, score=27 - 2.0 * n) for n in range(1, 8)]
    assert not _has_diverged(History(rising, 4, paused=True))
    assert _has_diverged(History([*rising, *parting], 4, paused=True))
