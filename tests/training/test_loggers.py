"""Loggers: every epoch once, in one run, whatever happens; with small stand-ins for W&B and MLflow."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import gpin
from gpin.training import LOGGERS, Logger
from gpin.training.trainer import Trainer

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
NAMES = {"elbo/train", "elbo/validation", "score", "learning_rate"}


def fit(folder=None, **options):
    vae = gpin.build((3,), "vae", 1, architecture={"width": 4}, seed=0)
    options = {"epochs": 3, "batch_size": 20, "calibrate": False, "progress": False, "checkpoint_seconds": 0, **options}
    return gpin.fit(vae, X[:30], X[30:], folder=folder, **options)


class Stopped(BaseException):
    """As sudden as a kill."""


@contextmanager
def stopped(monkeypatch, update):
    """A context in which training is stopped before a step."""
    step = Trainer._step

    def step_or_stop(self, *arguments):
        if self.updates == update:
            raise Stopped
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", step_or_stop)
        with pytest.raises(Stopped):
            yield


class Own:
    """A logger of one's own that remembers its calls."""

    def __init__(self, last=None):
        self.calls, self.last = [], last

    def start(self, config):
        self.calls.append(("start", config))
        return self.last

    def log(self, metrics, step):
        self.calls.append((step, metrics))

    def finish(self):
        self.calls.append(("finish", None))

    @property
    def order(self):
        return [name for name, _ in self.calls]


class FakeWandb:
    """What gpin uses of W&B, and its server."""

    def __init__(self, offline=False):
        self.server, self.run, self.inits, self.offline = {}, None, [], offline

    def init(self, *, id, resume, **options):  # noqa: A002
        assert resume == "allow"
        self.inits.append({"id": id, **options})
        rows = {} if self.offline else self.server.setdefault(id, {})
        self.server[id] = rows
        logged = SimpleNamespace(config=SimpleNamespace(values={}), step=max(rows, default=-1) + 1)
        logged.config.update = lambda values, allow_val_change: logged.config.values.update(values)

        def log(metrics, step):
            assert step not in rows, "logged twice"
            rows[step] = metrics

        def finish():
            self.run = None

        logged.log, logged.finish = log, finish
        self.run = logged
        return logged


class FakeMLflow:
    """What gpin uses of MLflow, and its store."""

    def __init__(self):
        self.store, self.active, self.parameters = {}, None, {}

    def active_run(self):
        return self.active

    def start_run(self, run_id, run_name):
        if run_id is not None and run_id not in self.store:
            raise RuntimeError(f"Run with id={run_id} not found.\nmore")
        run_id = run_id or f"run{len(self.store)}"
        self.store.setdefault(run_id, {"name": run_name, "rows": {}})
        self.active = SimpleNamespace(info=SimpleNamespace(run_id=run_id))
        return self.active

    def log_params(self, parameters):
        assert not self.parameters, "parameters cannot be changed"
        self.parameters = parameters

    def log_metrics(self, metrics, step, run_id):
        assert step not in self.store[run_id]["rows"], "logged twice"
        self.store[run_id]["rows"][step] = metrics

    def end_run(self):
        self.active = None

    def MlflowClient(self):  # noqa: N802
        def history(run_id, key):
            return [SimpleNamespace(step=step) for step in self.store[run_id]["rows"]]

        return SimpleNamespace(get_metric_history=history)


@pytest.fixture
def wandb(monkeypatch):
    for name in ("WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_NAME", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def mlflow(monkeypatch):
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


def test_a_logger_of_ones_own_gets_config_and_every_epoch():
    own, other = Own(), Own()
    assert isinstance(own, Logger)
    history = fit(log=[own, other])
    assert own.order == other.order == ["start", 1, 2, 3, "finish"]
    config = own.calls[0][1]
    assert config["model"]["method"] == "vae"
    assert (config["training"]["epochs"], config["training"]["learning_rate"]) == (3, 5e-4)
    assert config["instances"] == {"train": 30, "validation": 10}
    rows = [metrics for _, metrics in own.calls[1:-1]]
    assert all(set(row) == NAMES for row in rows)
    assert [row["elbo/train"] for row in rows] == history.train
    assert [row["score"] for row in rows] == history.scores


def test_it_is_finished_when_training_fails_and_its_errors_are_seen(monkeypatch):
    own = Own()
    with pytest.raises(RuntimeError, match="my bug"):
        fit(log=own, on_epoch=lambda number, result: (_ for _ in ()).throw(RuntimeError("my bug")))
    assert own.order == ["start", 1, "finish"]
    monkeypatch.setattr(own, "log", lambda metrics, step: {}["missing"])
    with pytest.raises(KeyError):
        fit(log=own)


def test_after_a_kill_it_gets_what_it_does_not_have(tmp_path, monkeypatch):
    with stopped(monkeypatch, 3):  # in the second epoch
        fit(tmp_path)
    fresh, knowing = Own(), Own(last=0)
    fit(tmp_path, log=[fresh, knowing])
    assert fresh.order == ["start", 2, 3, "finish"]
    assert knowing.order == ["start", 1, 2, 3, "finish"]
    fit(tmp_path, log=fresh)  # of a finished run it hears nothing
    assert fresh.order == ["start", 2, 3, "finish"]


@pytest.mark.parametrize("offline", [False, True])
def test_a_resumed_run_continues_its_run_in_wandb(tmp_path, wandb, monkeypatch, offline):
    wandb.offline = offline
    with stopped(monkeypatch, 4):  # after the second epoch, which is trained again
        fit(tmp_path, log="wandb", checkpoint_seconds=1e9)
    wandb.run = None  # the process is gone
    history = fit(tmp_path, log=["wandb", "wandb"])
    ((identifier, rows),) = wandb.server.items()
    assert [row["elbo/validation"] for _, row in sorted(rows.items())] == history.validation
    options = {"id": identifier, "project": "gpin", "name": tmp_path.name, "dir": str(tmp_path)}
    assert wandb.inits == [options, options]
    assert wandb.run is None
    fit(tmp_path, log="wandb")  # finished and recorded
    assert len(wandb.inits) == 2


def test_the_environment_and_an_active_run_decide_in_wandb(tmp_path, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_NAME", "my run")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    fit(tmp_path, log="wandb")
    assert wandb.inits == [{"id": "mine", "dir": str(tmp_path)}]
    active = wandb.init(id="sweep", resume="allow")
    fit(log="wandb")
    assert set(wandb.server["sweep"]) == {1, 2, 3}
    assert active.config.values["model"]["method"] == "vae"
    assert wandb.run is active  # not ours to finish


def test_a_resumed_run_continues_its_run_in_mlflow(tmp_path, mlflow, monkeypatch):
    with stopped(monkeypatch, 4):
        fit(tmp_path, log="mlflow", checkpoint_seconds=1e9)
    mlflow.active = None
    history = fit(tmp_path, log="mlflow")
    ((_, run),) = mlflow.store.items()
    assert run["name"] == tmp_path.name
    assert [row["score"] for _, row in sorted(run["rows"].items())] == history.scores
    assert mlflow.parameters["model.method"] == "vae"
    assert mlflow.parameters["training.epochs"] == 3
    assert mlflow.active is None


def test_a_run_is_recorded_in_a_tracker_afterwards(tmp_path, wandb, mlflow):
    fit(tmp_path)
    assert not (tmp_path / "loggers.json").exists()
    for _ in range(2):
        fit(tmp_path, log=["wandb", "mlflow"])
    assert [set(rows) for rows in wandb.server.values()] == [{1, 2, 3}]
    assert [set(run["rows"]) for run in mlflow.store.values()] == [{1, 2, 3}]


def test_an_active_run_of_mlflow_is_used_and_left_open(mlflow):
    active = mlflow.start_run(None, "mine")
    fit(log="mlflow")
    assert [(run["name"], set(run["rows"])) for run in mlflow.store.values()] == [("mine", {1, 2, 3})]
    assert mlflow.active is active


def test_a_tracker_that_fails_does_not_end_training(tmp_path, mlflow, monkeypatch):
    def fail(metrics, step, run_id):
        raise ConnectionError("no answer.\nmore")

    said = []
    monkeypatch.setattr(mlflow, "log_metrics", fail)
    assert len(fit(tmp_path, log="mlflow", tell=said.append).epochs) == 3
    assert said == ["logging to mlflow failed: no answer; training continues without it"]


def test_one_that_cannot_start_is_one_sentence(tmp_path, wandb, mlflow, monkeypatch):
    def fail(**options):
        raise RuntimeError("No API key configured.")

    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(gpin.InputError, match=r"^W&B cannot start: No API key configured; with WANDB_MODE=offline it "):
        fit(tmp_path / "a", log="wandb")
    assert not (tmp_path / "a" / "loggers.json").exists()
    fit(tmp_path / "b", log="mlflow", epochs=1)
    mlflow.store.clear()
    with pytest.raises(gpin.InputError, match=r"not found; remove .*loggers.json to begin a new run$"):
        LOGGERS["mlflow"](tmp_path / "b").start({})
    (tmp_path / "b" / "loggers.json").write_text("torn")
    with pytest.raises(gpin.InputError, match=r"loggers.json is damaged: remove it"):
        fit(tmp_path / "b", log="mlflow", epochs=1)


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_is_written(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(gpin.InputError, match=rf"^the package {package} is missing: pip install 'gpin\[{package}\]'$"):
        fit(tmp_path / "run", log=package)
    assert not (tmp_path / "run").exists()


def test_what_is_no_logger_is_refused():
    for wrong in ("wanbd", Own, 3):
        with pytest.raises(
            gpin.InputError, match=r"use tensorboard, wandb or mlflow, or an object with start\(config\)"
        ):
            fit(log=wrong)
    with pytest.raises(gpin.InputError, match="needs a `folder`"):
        fit(log="tensorboard")
