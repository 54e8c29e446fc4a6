"""`gpin report`: one page for one or several runs, whose numbers are those of the models, shown by a browser."""

import math
import re
import shlex
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import Content, check_accessible, check_in_browser, check_self_contained, needs_browser
from scipy.stats import spearmanr

from gpin._core.errors import InputError
from gpin._core.seeding import seeded
from gpin.cli import app
from gpin.data import Rows, Scaling
from gpin.likelihoods import BernoulliOptions
from gpin.report.numbers import number, rounded
from gpin.runs import open_run, train
from gpin.runs.differences import flat_settings, short_names
from gpin.runs.report.comparison import compare, score_rows, summary, verdict
from gpin.runs.report.display import Display
from gpin.runs.report.instances import label
from gpin.runs.report.page import compose, compose_without_data, write_report
from gpin.runs.report.scored_run import column_moments, open_trained
from gpin.runs.rows import random_rows
from gpin.runs.settings import run_settings

SMALL = ["latent_dim=3", "limit=200", "batch_size=50", "architecture.channels=[]", "architecture.width=16"]
IMAGES = [*SMALL, "epochs=2"]
TABLE = ["latent_dim=2", "epochs=3", "batch_size=50", "architecture.width=16", "learning_rate=0.01"]
NAMES = ("height <cm>", "weight", "ünits & more")


def silent(sentence):
    pass


def made(data, out, *options):
    return train(data, run_settings(assignments=options), out=out, progress=False, tell=silent)[0].folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def images(folder):
    """A GP and a VAE on digits."""
    return [made("digits", folder / "runs", f"method={method}", *IMAGES) for method in ("gp", "vae")]


@pytest.fixture(scope="module")
def table(folder):
    """A GP on a table with large offsets and odd names."""
    random = np.random.default_rng(0)
    code = random.standard_normal((400, 1))
    values = code @ [[10.0, 8.0, 0.01]] + random.standard_normal((400, 3)) * [2.0, 2.0, 0.002] + [170.0, 70.0, 5.0]
    lines = [",".join(NAMES), *(",".join(f"{v:.6f}" for v in row) for row in values)]
    path = folder / "people.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return made(path, folder / "runs", *TABLE)


@pytest.fixture(scope="module")
def pages(folder, images, table):
    """Both pages, written."""
    out = {"images": folder / "pages" / "images.html", "table": folder / "table.html"}
    write_report(images, out["images"], samples=30, limit=60, tell=silent)
    write_report([table], out["table"], samples=30, tell=silent)
    return {name: path.read_text(encoding="utf-8") for name, path in out.items()}


def titles(html):
    return [unescape(title) for title in re.findall("<h2[^>]*>(.*?)</h2>", html)]


def scores(folder, limit=None):
    """What the page should say of a run, computed directly."""
    run = open_run(folder)
    vae, rows = run.load(silent), run.data().test
    x = rows[:]
    with seeded(0):
        encoder = vae.log_likelihood(x, 30)
    chosen = torch.arange(len(x))
    if limit is not None:
        chosen = torch.tensor([rows.rows.tolist().index(row) for row in random_rows(rows, limit, seed=0).rows])
    with seeded(0):
        refined = vae.log_likelihood(x[chosen], 30, "refined")
    return run, vae, x, encoder, refined, chosen


def said(value, stderr, khat=None):
    """A mean with its standard error; ≥ marks a lower bound, where more than 5 % of the k̂ of its weights are large."""
    bound = "≥ " if khat is not None and (khat > 0.7).double().mean() > 0.05 else ""
    return bound + f"{value:.2f} ± {stderr:.2f}".replace("-", "−")


# What is on the page ---------------------------------------------------------------------------------


def test_the_page_of_images_holds_every_part(pages):
    html = pages["images"]
    page = Content(html)
    assert titles(html) == [
        "In short",
        "Reconstructions",
        "Samples",
        "The latent space",
        "The hardest images",
        "How they learnt",
        "All scores",
        "Does the estimated gap find the difficult images?",
        "Do the intervals of the posteriors hold?",
        "Settings",
    ]
    space = 1 + traversed(html) + 2  # the images of the maps, traversals, an interpolation of each run
    assert page.count("img") == 3 + 2 + space + 2 * 2 * (6 + 12)  # strips, samples, tiles with two each of both runs
    assert page.count("svg") == 2 + 2 + 1 + 2 + 3  # maps, activity, curves, gaps; the last show the calibration
    assert "Two variational autoencoders trained on digits: 200 images of 8×8 pixels" in html
    assert [row[0] for row in page.tables[0]] == ["", "gp", "vae"]
    assert page.tables[1][0] == ["", "gp", "vae"]
    assert page.tables[2] == [["What differs", "gp", "vae"], ["method", "gp", "vae"]]
    assert page.row("limit", 3) == ["200"]
    assert page.row("split_seed", 3) == ["0"]
    assert page.row("covariance (gp)", 3) == ["shared_basis"]
    assert f"torch {torch.__version__}" in page.row("versions", 3)[0]


def test_the_page_of_a_table_holds_every_part(pages):
    html = pages["table"]
    page = Content(html)
    assert titles(html) == [
        "In short",
        "Samples",
        "The latent space",
        "The hardest rows",
        "Column by column",
        "Reconstructions",
        "How it learnt",
        "All scores",
        "Does the estimated gap find the difficult rows?",
        "Do the intervals of the posteriors hold?",
        "Settings",
    ]
    assert page.count("img") == 0
    assert page.count("svg") == 3 + 2 + 1 + 2 + 2  # a histogram per column, maps, activity, curve and gap, calibration
    assert "gp on people" in html
    assert "320 rows of 3 columns for training" in html


@pytest.mark.parametrize("name", ["images", "table"])
def test_the_page_needs_nothing_from_outside_and_names_no_path(pages, folder, name):
    html = pages[name]
    check_self_contained(html)
    check_accessible(html)
    assert str(folder) not in html
    assert str(Path.home()) + "/" not in html


def traversed(html):
    """The number of latent dimensions that the page of images traverses."""
    return len(re.findall('alt="Dimension \\d+ of', html))


def test_the_commands_on_the_page_are_commands_of_gpin(pages):
    found = [unescape(line) for html in pages.values() for line in re.findall("<code>(.*?)</code>", html)]
    assert {line.split()[1] for line in found} >= {"evaluate", "train"}
    for line in found:
        command, *arguments = shlex.split(line)
        assert command == "gpin"
        app.parse_args(arguments, exit_on_error=False, print_error=False)


# Its numbers -----------------------------------------------------------------------------------------


def test_scores_are_those_of_the_models(pages, images):
    page = Content(pages["images"])
    page.tables = page.tables[1:]  # the first sums up the runs
    for column, path in enumerate(images):
        run, vae, x, encoder, refined, chosen = scores(path, limit=60)
        assert page.row("Log-likelihood")[column] == said(encoder.mean, encoder.stderr, encoder.khat)
        assert page.row("Refined log-likelihood")[column] == said(refined.mean, refined.stderr, refined.khat)
        same = encoder.values[chosen]
        assert page.row("· with the encoder’s proposals, same 60")[column] == said(
            same.mean(), same.std() / math.sqrt(len(same)), encoder.khat[chosen]
        )
        bits, error = -(encoder.mean - 64 * math.log(255)) / (64 * math.log(2)), encoder.stderr / (64 * math.log(2))
        sign = "≤ " if encoder.lower_bound else ""
        assert page.row("Bits per dimension")[column] == sign + f"{bits:.3f} ± {error:.3f}".replace("-", "−")
        errors = [row[1:] for row in page.tables[0] if row[0] == "· Monte-Carlo error"]
        assert [row[column] for row in errors] == [
            "lower bound" if found.lower_bound else f"{found.mean_mc_error:.2f}" for found in (encoder, refined)
        ]
        ess = [row[1:] for row in page.tables[0] if row[0] == "· effective samples"]
        assert [row[column] for row in ess] == [
            f"{found.ess.mean():.1f} (median {found.ess.median():.1f})" for found in (encoder, refined)
        ]
        khat = [row[1:] for row in page.tables[0] if row[0] == "· Pareto-k̂ above 0.7"]
        assert [row[column] for row in khat] == [
            f"{100 * (found.khat > 0.7).double().mean():.0f} % (median {found.khat.median():.2f})".replace("-", "−")
            for found in (encoder, refined)
        ]
        with torch.no_grad(), seeded(0):
            bounds = [vae.elbo(part, samples=10) for part in x.split(128)]
        bound = torch.cat([each.value for each in bounds]).double()
        assert page.row("Training ELBO")[column] == said(bound.mean(), bound.std() / math.sqrt(len(bound)))
        terms = {"· reconstruction": "reconstruction", "· KL of z": "kl", "· KL of the weights": "weight_kl"}
        for name, term in terms.items():
            mean = torch.cat([getattr(each, term) for each in bounds]).double().mean()
            assert page.row(name)[column] == f"{mean:.2f}".replace("-", "−")
        gaps = {
            "Inference gap": refined.values - encoder.elbo[chosen],
            "· amortization gap": refined.elbo - encoder.elbo[chosen],
            "· approximation gap": refined.values - refined.elbo,
        }
        for name, gap in gaps.items():
            khat = None if name == "· amortization gap" else refined.khat
            assert page.row(name)[column] == said(gap.mean(), gap.std() / math.sqrt(60), khat)
        history, finished = run.history(silent)
        assert finished
        assert page.row("Best epoch")[column] == f"{history.best} of 2"
        assert page.row("Inference time")[column].count("×") == column  # the second has a ratio
        assert page.row("Parameters")[column] == f"{sum(p.numel() for p in vae.parameters()):,}"


def test_the_difference_is_paired(pages, images):
    first, other = (scores(path, limit=60) for path in images)
    for index in (3, 4):
        difference = other[index].values - first[index].values
        mean, stderr = difference.mean().item(), difference.std().item() / math.sqrt(len(difference))
        assert f"{'+' if mean > 0 else ''}{said(mean, stderr)} nats" in pages["images"]
    assert "on 60 of 179, chosen at random" in pages["images"]


def test_the_estimated_gap_is_set_against_the_inference_gap(pages, images):
    _, vae, x, encoder, refined, chosen = scores(images[0], limit=60)
    elbo, gap, uncertainty = encoder.elbo[chosen], vae.gap(x).values, vae.uncertainty(x).total
    guides = [gap[chosen], uncertainty[chosen], -elbo]
    expected = [f"{spearmanr(guide, refined.values - elbo).statistic:.2f}".replace("-", "−") for guide in guides]
    found = re.search(
        r"Spearman correlation (\S+) ± .* (\S+) ± \S+ for the uncertainty, (\S+) ± \S+ for the negative ELBO",
        pages["images"],
    )
    assert found
    assert list(found.groups()) == expected
    texts = re.findall('with an estimated gap in nats of (\\S*)"', pages["images"])
    ordered = gap.sort().values
    assert texts[0] == rounded(ordered[0].item(), 1)
    assert texts[11] == rounded(ordered[-1].item(), 1)
    unlikely = re.findall('alt="Original and reconstruction: image (\\d+)\n(\\S+)"', pages["images"])[:6]
    lowest = refined.values.argsort()[:6]
    rows = open_run(images[0]).data().test.rows
    assert [int(place) for place, _ in unlikely] == rows[chosen[lowest]].tolist()
    assert [value for _, value in unlikely] == [rounded(value, 1) for value in refined.values[lowest].tolist()]


def test_the_coverage_is_that_of_the_models(pages, images):
    for folder in images:
        vae = open_run(folder).load(silent)
        shares = [
            f"{100 * vae.coverage(60, **arguments).mean(0.8):.0f} % ({name})"
            for name, arguments in (("encoder", {}), ("refined", {"posterior": "refined"}))
        ]
        sentence = next(
            line for line in pages["images"].splitlines() if f"intervals of {vae.config.method} cover" in line
        )
        assert all(share in sentence for share in shares)


def test_rows_of_a_table_are_in_its_units(pages, table):
    page = Content(pages["table"])
    run, vae, x, *_ = scores(table)
    data = run.data()
    lines = (Path(run.location)).read_text(encoding="utf-8").splitlines()[1:]
    rebuilt_rows = [table for table in page.tables if table[0][1:] == ["original", "gp"]]
    assert len(rebuilt_rows) == 3
    for shown in rebuilt_rows:
        place = int(shown[0][0].removeprefix("Row "))
        original = [float(cell) for cell in lines[place].split(",")]
        index = data.test.rows.tolist().index(place)
        rebuilt = data.scaling.undo(vae.reconstruct(x[index : index + 1]))[0]
        assert [row[0] for row in shown[1:]] == list(NAMES)
        for row, value, again, digits in zip(shown[1:], original, rebuilt, (1, 2, 4), strict=True):
            assert [float(cell) for cell in row[1:]] == pytest.approx([value, again], abs=1.01 * 10**-digits)
    test = np.array([[float(cell) for cell in lines[i].split(",")] for i in data.test.rows])
    (moments,) = [table for table in page.tables if table[0] == ["mean (deviation)", "Test rows", "gp"]]
    for row, column in zip(moments[1:], test.T, strict=True):
        spread = column.std()
        assert row[1] == f"{number(column.mean(), spread)} ({number(spread, spread)})"
        assert float(row[2].split(" ")[0]) == pytest.approx(column.mean(), abs=spread)
    (errors,) = [table for table in page.tables if table[0] == ["error (variance explained)", "gp"]]
    off = ((data.scaling.undo(x) - data.scaling.undo(vae.reconstruct(x))) ** 2).mean(0)
    for row in errors[1:]:
        k = NAMES.index(row[0])
        error, share = row[1].removesuffix(" %)").split(" (")
        assert float(error) == pytest.approx(math.sqrt(off[k]), abs=test[:, k].std() / 100)
        assert float(share) == pytest.approx(100 * max(0, 1 - off[k] / test[:, k].var()), abs=0.6)
    (hardest,) = [table for table in page.tables if table[0][-1] == "furthest from the model"]
    lowest = scores(table)[4].values.argsort()[:10]
    assert [row[0] for row in hardest[1:]] == [f"Row\N{NO-BREAK SPACE}{i}" for i in data.test.rows[lowest]]
    assert [row[2] for row in hardest[1:]] == [rounded(vae.gap(x).values[i].item(), 1) for i in lowest]


def test_moments_keep_their_digits():
    values = torch.tensor(np.random.default_rng(0).standard_normal((1000, 3)) + 1e6)
    scaling = Scaling(kind="standardised", offset=(1.0, 2.0, 3.0), scale=(2.0, 2.0, 4.0))
    mean, deviation = column_moments(values.split(7), scaling)
    scale = np.array(scaling.scale)
    np.testing.assert_allclose(mean, values.numpy().mean(0) * scale + scaling.offset, rtol=1e-12)
    np.testing.assert_allclose(deviation, values.numpy().std(0) * scale, rtol=1e-8)


# Which runs ------------------------------------------------------------------------------------------


def test_runs_of_one_method_are_named_by_what_differs(images):
    gp, vae = map(open_run, images)

    def changed(**training):
        settings = gp.settings.model_copy(update={"training": gp.settings.training.model_copy(update=training)})
        return replace(gp, settings=settings)

    assert short_names([gp, vae]) == ["gp", "vae"]
    assert short_names([gp, changed(seed=1), vae]) == ["gp, seed 0", "gp, seed 1", "vae"]
    three = short_names([gp, changed(epochs=9, seed=1), changed(epochs=9, seed=2)])
    assert three == ["gp, epochs 2, seed 0", "gp, epochs 9, seed 1", "gp, epochs 9, seed 2"]
    assert short_names([gp, changed(epochs=9, learning_rate=0.1)]) == ["gp, epochs 2", "gp, epochs 9"]
    copies = short_names([gp, replace(gp, folder=Path("copy")), vae])
    assert copies == [f"gp, {gp.folder.name}", "gp, copy", "vae"]
    assert flat_settings(gp)["learning_rate"] == "0.0005"
    long = gp.model.model_copy(update={"options": {**gp.model.options, "a": list(range(99))}})
    named = short_names([gp, replace(gp, folder=Path("copy"), model=long)])
    assert named == [f"gp, {gp.folder.name}", "gp, copy"]
    other = replace(vae, location="/data/people.csv", fingerprint="another")
    assert short_names([gp, other]) == ["gp, digits", "vae, people"]
    assert short_names([other, replace(other, location="people.npy", fingerprint="b")])[1] == "vae, people.npy"


@pytest.fixture(scope="module")
def three(images, folder):
    """Three runs, compared."""
    other = made("digits", folder / "runs", "method=gp", *IMAGES, "seed=1")
    return compare([*images, other], samples=5, limit=20, tell=silent)


def test_several_runs_are_summed_up(three):
    found = three
    html = compose(found).html()
    page = Content(html)
    assert [row[0] for row in page.tables[0]] == ["", "gp, seed 0", "vae", "gp, seed 1"]
    assert [row[0] for row in page.tables[1]] == ["", "vae", "gp, seed 1"]
    assert page.tables[2][0] == ["", "gp, seed 0", "vae", "gp, seed 1"]
    assert page.row("seed", 3) == ["0", "0", "1"]
    assert re.search("better — |worse — |not significantly different — ", summary(found))
    assert "<h3>Least likely under gp, seed 1</h3>" in html
    check_accessible(html)
    assert "use at least 25" in html  # five samples are too few for k̂


def test_a_density_and_a_probability_are_not_compared(images):
    found = compare(images, samples=3, limit=5, tell=silent)
    first, other = found.scored
    binary = other.run.model.model_copy(update={"likelihood": BernoulliOptions()})
    mixed = replace(found, scored=[first, replace(other, run=replace(other.run, model=binary))])
    assert "cannot be compared" in verdict(mixed)
    assert "nats" not in verdict(mixed)


def test_other_data_is_refused(images, table, folder, tmp_path):
    def refused(folders, sentence, **options):
        with pytest.raises(InputError, match=sentence):
            write_report(folders, tmp_path / "page.html", **options, tell=silent)
        assert not list(tmp_path.iterdir())

    refused([images[0], table], rf"{images[0].name} and .*{table.name} were trained on different data")
    split = made("digits", folder / "runs", "method=vae", *SMALL, "split_seed=1", "epochs=1")
    refused([images[0], split], r"differently \(split_seed is 0 and 1\)")
    refused([images[0], images[0].parent / "." / images[0].name], "given twice")
    refused([], "at least one run")
    refused([tmp_path / "nothing"], "does not exist")
    refused(images, "samples must be", samples=0)
    refused(images, "limit must be", limit=0)
    refused(images, "seed must", seed=-1)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_report(images, tmp_path / "folder.html", tell=silent)


def test_data_that_moved_is_found_by_another_run_or_by_its_place(table, tmp_path):
    here = tmp_path / "run"
    shutil.copytree(table, here)
    moved = tmp_path / "moved.csv"
    shutil.copy(open_run(table).location, moved)
    replace(open_run(here), location=str(tmp_path / "gone.csv")).write()
    with pytest.raises(InputError, match="cannot be read"):
        compare([here], samples=2, limit=2, tell=silent)
    assert len(compare([here, table], samples=2, limit=2, tell=silent).scored) == 2
    assert len(compare([here], samples=2, limit=2, data=moved, tell=silent).scored) == 1
    with pytest.raises(InputError, match="cannot be read"):
        write_report([here], tmp_path / "page.html", data=tmp_path / "gone.csv", tell=silent)
    told = []
    write_report([here], tmp_path / "page.html", tell=told.append)
    assert "cannot be read" in told[0]
    assert "the page is written without what needs it" in told[0]
    html = (tmp_path / "page.html").read_text()
    assert titles(html) == ["In short", "How it learnt", "Settings"]
    assert "The data of this page was not found." in html
    assert str(tmp_path) not in html


def test_samples_and_traversals_need_no_data(images, tmp_path):
    run = open_run(images[1])
    trained = open_trained("vae", replace(run, location=str(tmp_path / "gone")), silent)
    html = compose_without_data([trained]).html()
    assert titles(html) == ["In short", "Samples", "The latent space", "How it learnt", "Settings"]
    assert "vae on gone" in html
    assert Content(html).count("img") == 1 + 3
    check_self_contained(html)
    check_accessible(html)


def test_a_failure_leaves_the_old_page(images, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    out.write_text("old")
    monkeypatch.setattr("gpin.runs.report.page.compose", lambda comparison: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(images[1:], out, samples=2, limit=2, tell=silent)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert out.read_text() == "old"


def test_the_same_call_gives_the_same_page(images, tmp_path):
    for name in ("a", "b"):
        write_report(images[1:], tmp_path / f"{name}.html", samples=3, limit=5, seed=4, tell=silent)
        torch.rand(3)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


# Runs that are not whole -----------------------------------------------------------------------------


def test_an_unfinished_run_says_so(tmp_path):
    def stop(number, epoch):
        if number == 2:
            raise KeyboardInterrupt

    settings = run_settings(assignments=[*SMALL, "method=vae", "epochs=5"])
    with pytest.raises(KeyboardInterrupt):
        train("digits", settings, out=tmp_path, progress=False, on_epoch=stop, checkpoint_seconds=0, tell=silent)
    (folder,) = tmp_path.iterdir()
    told = []
    html = compose(compare([folder], samples=2, limit=2, tell=told.append)).html()
    assert re.search("vae is not finished: it has trained for [12] of 5 epochs", html)
    assert "Training is not finished." in html
    assert any("not finished" in sentence for sentence in told)


def test_what_is_missing_in_a_folder_is_done_without(images, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(images[1], folder)
    shutil.rmtree(folder / "checkpoints")
    (folder / "environment.json").write_text("{")
    html = compose(compare([folder], samples=2, limit=2, tell=silent)).html()
    assert "The training history is no longer" in html
    assert "not finished" not in html
    assert Content(html).row("Best epoch") == ["—"]
    assert "Training has flattened" not in html
    assert ">versions<" not in html


def test_images_in_other_units_are_mapped(tmp_path):
    np.save(tmp_path / "dark.npy", np.random.default_rng(0).normal(-300, 40, (40, 3, 4, 5)).astype(np.float32))
    tiny = ["epochs=1", "latent_dim=2", "architecture.width=8", "architecture.channels=[]"]
    found = compare([made(tmp_path / "dark.npy", tmp_path, *tiny)], samples=2, limit=3, tell=silent)
    few = random_rows(found.data.test, 3, found.seed)
    shown = Display.of(few)(few[:])
    assert (shown.min(), shown.max()) == pytest.approx((0, 1))
    assert "<img" in compose(found).html()


def test_series_are_drawn(tmp_path):
    time = np.linspace(0, 6, 32)
    waves = np.stack([[np.sin(time + k), 90 + 5 * np.cos(time + k)] for k in range(40)])
    np.save(tmp_path / "waves.npy", waves.astype(np.float32))
    tiny = ["epochs=1", "latent_dim=2", "architecture.width=8", "architecture.channels=[]", "method=vae"]
    html = compose(compare([made(tmp_path / "waves.npy", tmp_path, *tiny)], samples=2, limit=3, tell=silent)).html()
    assert "32 series of 2 channels of length 32 for training" in html
    assert "The hardest series" in titles(html)
    assert "The 2 channels have a colour each" in html
    assert "standardised to mean 0 and variance 1 in the training part, separately for each channel" in html
    check_accessible(html)


def test_files_are_named():
    rows = Rows(np.zeros((3, 1)), np.array([2, 0]), Scaling(kind="none"), ("a.png", "b.png", "c/d.png"))
    assert [label(rows, i, "image") for i in range(2)] == ["c/d.png", "a.png"]


def test_the_test_part_is_read_in_batches(images, monkeypatch):
    sizes = []
    read = Rows.__getitems__
    monkeypatch.setattr(Rows, "__getitems__", lambda self, indices: sizes.append(len(indices)) or read(self, indices))
    compose(compare(images[:1], samples=2, limit=10, tell=silent))
    assert max(sizes) <= 128 < 179


# In a browser ----------------------------------------------------------------------------------------


@needs_browser
def test_a_wide_comparison_scrolls_in_its_own_box(three, tmp_path):
    named = [replace(one, name=f"{one.name}, architecture.width 16") for one in three.scored]
    wide = replace(three, scored=named, times={})
    check_in_browser(compose(wide).html(), tmp_path, 390, drawings=3 + 3 + 1 + 3 + 1 + 3)


@needs_browser
@pytest.mark.parametrize(("name", "width"), [("images", 1100), ("images", 390), ("table", 1100), ("table", 390)])
def test_a_browser_shows_the_report(pages, tmp_path, name, width):
    hidden, text, wide, hidden_after = check_in_browser(pages[name], tmp_path, width, drawings=10)
    assert (hidden, hidden_after) == (False, True)
    assert re.match(r"image \d+estimated gap .* nats" if name == "images" else r"row \d+", text.replace("\n", ""))
    assert wide == (128 if name == "images" else 0)  # an image of 8 pixels is enlarged sixteen times


def test_every_line_of_the_scores_has_a_cell_for_every_run(images):
    found = compare(images, samples=2, limit=None, tell=silent)
    assert {len(row) for row in score_rows(found)} == {3}
    assert "· by the encoder’s proposals" not in "".join(row[0] for row in score_rows(found))
