"""Settings from files, flags and assignments: one place for each option, and one sentence for each mistake."""

import json
from typing import get_args

import pytest

from gpin._core.errors import InputError
from gpin.data import DataConfig, SourceConfig
from gpin.inference import METHODS
from gpin.likelihoods import LIKELIHOODS
from gpin.networks import ARCHITECTURES
from gpin.runs import ModelSettings, RunSettings, train
from gpin.runs.settings import NONE_IS_A_CHOICE, read_settings, run_settings
from gpin.training import TrainingConfig

PARTS = (DataConfig, SourceConfig, ModelSettings, TrainingConfig)


def write(folder, content):
    path = folder / "settings.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "must contain settings as a JSON object with the parts data, model, training"),
        ({"model": 3}, "must contain settings as a JSON object"),
        ({"training": []}, "must contain settings as a JSON object"),
        ({"format": "gpin-run"}, "must contain settings as a JSON object"),
        ({"modle": {}}, "has an unknown part 'modle': did you mean 'model'?"),
        ({"model": {"options": 5}}, "option 'options' of 'model'"),
        ({"model": {"method": 3}}, "option 'method' of 'model'"),
        ({"model": {"likelihood": "bernoulli"}}, "option 'likelihood' of 'model'"),
        ({"data": {"source": 5}}, "option 'source' of 'data'"),
        ({"data": {"source": {"size": 5}}}, "option 'source.size' of 'data'"),
        ({"training": {"epoch": 3}}, "has no option 'epoch': did you mean 'epochs'?"),
        ({"training": {"epochs": "3"}}, "option 'epochs' of 'training'"),
    ],
)
def test_a_file_that_holds_no_settings_is_named(tmp_path, content, words):
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_settings(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_settings_of_a_run_that_had_a_start_need_one(tmp_path):
    path = write(tmp_path, {"format": "gpin-run", "settings": {"training": {"epochs": 3}}, "start": "1a2b"})
    with pytest.raises(InputError, match="give that model as `start`"):
        read_settings(path)
    assert read_settings(path, started=True) == {"training": {"epochs": 3}}
    path = write(tmp_path, {"format": "gpin-run", "settings": {"training": {"epochs": 3}}, "start": None})
    assert read_settings(path) == {"training": {"epochs": 3}}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"method": "gq"}, "unknown method 'gq'"),
        ({"method": "vae", "options": {"covariance": "full"}}, "method 'vae' has no option 'covariance'"),
        ({"options": {"covariance": "round"}}, "covariance"),
        ({"options": {"preset": 3}}, "no preset 3"),
        ({"likelihood": {"kind": "weibull"}}, "unknown likelihood 'weibull'"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_data_is_looked_for(model, words):
    with pytest.raises(InputError, match=words):
        train("nowhere.npy", RunSettings(model=ModelSettings(**model)))


@pytest.mark.parametrize(
    ("assignments", "options", "words"),
    [
        (["epochs=3", "epochs=4"], {}, "'epochs' is given twice, as epochs=3 and as epochs=4"),
        (["latent_dim=4"], {"latent_dim": 4}, "'latent_dim' is given twice, as `latent_dim` and as latent_dim=4"),
        (["likelihood=bernoulli", "likelihood.kind=gaussian"], {}, r"'likelihood\.kind' is given twice"),
        (["likelihood.kind=gaussian"], {"likelihood": "bernoulli"}, r"'likelihood\.kind' is given twice"),
    ],
)
def test_an_option_is_given_once(assignments, options, words):
    with pytest.raises(InputError, match=words):
        run_settings(options, assignments=assignments)


def test_options_and_assignments_override_the_rest():
    given = {"training": {"epochs": 2, "seed": 2, "batch_size": 2}}
    training = run_settings({"epochs": 3}, assignments=["seed=4"], base=given).training
    assert (training.epochs, training.seed, training.batch_size) == (3, 4, 2)


@pytest.mark.parametrize(
    ("assignment", "read"),
    [
        ("size=8", {"size": (8, 8)}),
        ("size=64x48", {"size": (64, 48)}),
        ("size=[64, 48]", {"size": (64, 48)}),
        ("size=none", {"size": None}),
        ("columns=a, b", {"columns": ("a", "b")}),
        ("columns=1.50", {"columns": ("1.50",)}),
        ("key=1", {"key": "1"}),
    ],
)
def test_options_of_the_data_are_assigned_as_their_flags_are_typed(assignment, read):
    source = run_settings(assignments=[assignment]).data.source
    assert {name: getattr(source, name) for name in read} == read


def test_a_size_that_is_none_is_refused():
    with pytest.raises(InputError, match="`size` must be a height and a width"):
        run_settings(assignments=["size=8x"])


def test_the_kind_of_an_architecture_is_assigned_by_its_name():
    model = run_settings({"architecture": "residual"}, assignments=["architecture.blocks=2"]).model
    assert model.architecture == {"kind": "residual", "blocks": 2}
    mapping = ["architecture.blocks=2", 'architecture={"kind": "residual"}']
    assert run_settings(assignments=mapping).model.architecture == {"kind": "residual", "blocks": 2}
    with pytest.raises(InputError, match="unknown architecture 'transformer'"):
        run_settings(assignments=["architecture=transformer"]).model.check()


def test_no_likelihood_is_that_which_fits_the_data():
    own = {"model": {"likelihood": {"kind": "bernoulli"}}}
    assert run_settings(base=own).model.likelihood == {"kind": "bernoulli"}
    assert run_settings(assignments=["likelihood=none"], base=own).model.likelihood is None
    both = ["likelihood.variance=fixed", "likelihood=none"]
    assert run_settings(assignments=both, base=own).model.likelihood == {"variance": "fixed"}


def test_none_is_a_value_where_an_option_has_one_of_that_name():
    found = run_settings(assignments=["method=sa", "line_search=none", "scaling=none", "limit=none"])
    assert found.model.options == {"line_search": "none"}
    assert (found.data.scaling, found.data.limit) == ("none", None)


def test_every_option_with_a_value_called_none_is_known():
    configs = [
        *(entry.Options for registry in (METHODS, LIKELIHOODS, ARCHITECTURES) for entry in registry.values()),
        *PARTS,
    ]
    fields = {name: field.annotation for config in configs for name, field in config.model_fields.items()}
    assert {name for name, kind in fields.items() if "none" in get_args(kind)} == NONE_IS_A_CHOICE


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (
            ["likelihood=5", "likelihood.variance=analytic"],
            "'variance' is an option of the likelihood, so the likelihood cannot be 5",
        ),
        (["architecture=5"], "model.architecture"),
        (["latent_dim=true"], "latent_dim"),
        (["limit=true"], "limit"),
        (["split_seed=false"], "seed"),
    ],
)
def test_what_cannot_be_a_value_is_refused(assignments, words):
    with pytest.raises(InputError) as caught:
        run_settings(assignments=assignments)
    assert words in str(caught.value)


def test_steps_are_those_of_a_method_that_has_them_and_otherwise_those_of_training():
    natural = run_settings({"method": "natural"}, assignments=["steps=2"])
    assert (natural.model.options, natural.training.steps) == ({"steps": 2}, None)
    both = run_settings({"method": "natural", "training.steps": 500}, assignments=["steps=2"])
    assert (both.model.options, both.training.steps) == ({"steps": 2}, 500)
    plain = run_settings({"method": "vae"}, assignments=["steps=300"])
    assert (plain.model.options, plain.training.steps) == ({}, 300)
    assert run_settings({"method": "natural", "epochs": 3}, assignments=["steps=2"]).training.epochs == 3
    with pytest.raises(InputError, match="two ways to say how long to train"):
        run_settings({"method": "natural", "epochs": 3, "training.steps": 500})
