"""Tables: their cells, their marks, and that every format says all of them."""

import io
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from experiments.grids import columns, experiment, pretend, protocol
from rich.cells import cell_len
from rich.console import Console

from gpin.experiments.analysis.paper import PAPER
from gpin.experiments.analysis.results import BASELINES, Results
from gpin.experiments.analysis.statistics import Summary, mark
from gpin.experiments.analysis.tables import likelihood_tables
from gpin.experiments.execution.jobs import OWN
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import EXPERIMENTS, PROTOCOLS, VARIANTS
from gpin.report.tables import FORMATS, ResultTable, show

NASTY = ResultTable(
    "50 % of {a} & b_c <i>",
    ["", "x | y", "$ # ~ ^ \\"],
    [["a & b | <b>", "−1.50 ± 0.25", "*"], ["k̂ > 0.7 {x}", "", "ρ Δ σ ‖ × – — …"]],
    {(0, 1): "red", (1, 0): "blue"},
    ["100 % & a_b | c, $5 {} ~ ^ \\"],
)


def console(width):
    return Console(file=io.StringIO(), width=width, highlight=False, markup=False)


def shown(table, width):
    where = console(width)
    show(table, where)
    return where.file.getvalue()


LACKING = [("gp-shared", 2), ("vae", 2)]
TWO = " (2 of 3 runs)"


def named(lines):
    return [VARIANTS[line.row].title + (TWO if line.row in dict(LACKING) else "") for line in lines]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Those of all rows of a table of the paper with made-up scores: of two rows a split is missing."""
    store = Store(tmp_path_factory.mktemp("made"))
    how = PROTOCOLS["desk"].model_copy(update={"splits": 3})
    one = EXPERIMENTS["mnist"]
    entries = one.entries(how, [10])
    for i, entry in enumerate(entries):
        if (entry.row, entry.split) in LACKING:
            continue
        shift = -1200.0 - 3.0 * list(VARIANTS).index(entry.row)
        drawn = columns(i, uncertain=VARIANTS[entry.row].method == "gp")
        scores = {name: column + shift * name.endswith(("likelihood", "elbo")) for name, column in drawn.items()}
        pretend(store, entry.job, scores, parameters=1_234_567)
    gathered = Results(store, entries)
    return gathered.variants("mnist", 10), likelihood_tables(one, how, gathered)


# What they say ---------------------------------------------------------------------------------------


def test_the_cells_are_the_lines(tables):
    lines, (scores, *differences, diagnostics) = tables
    assert scores.title == "MNIST, d = 10"
    assert [row[0] for row in diagnostics.rows] == named(lines)
    for line, row in zip(lines, scores.rows, strict=True):
        for cell, name in zip(row[1:3], ("log_likelihood", "refined_log_likelihood"), strict=True):
            assert cell == f"≥ {line.scores[name].mean:.2f} ± {line.scores[name].std:.2f}".replace("-", "−")
    for (baseline, words), table in zip(BASELINES.items(), differences, strict=True):
        assert table.title == f"MNIST, d = 10: difference from {words}"
        others = [line for line in lines if line.row != baseline]
        assert [row[0] for row in table.rows] == named(others)
        for line, row in zip(others, table.rows, strict=True):
            for found, cells in zip(line.differences[baseline], (row[1:4], row[4:7]), strict=True):
                numbers = [float(text.replace("−", "-")) for text in re.findall(r"[+−][\d.]+", " ".join(cells))]
                expected = [found.instances.mean, found.instances.low, found.instances.high]
                expected += [found.splits.low, found.splits.high]
                assert numbers == pytest.approx(expected, abs=0.005)
                assert cells[2].endswith(f"] {found.ahead}/{found.splits.instances}")
    for line, row in zip(lines, diagnostics.rows, strict=True):
        ess, khat = ([line.scores[before + name].mean for before in ("", "refined_")] for name in ("ess", "khat"))
        assert row[3] == f"{ess[0]:.1f} / {ess[1]:.1f}".replace("-", "−")
        assert row[4] == f"{100 * khat[0]:.0f} % / {100 * khat[1]:.0f} %"
        assert row[5] == "lower bound / lower bound"
        assert (row[6] == "") == (line.by_uncertainty is None)
        assert row[7] == str(line.by_elbo)
        assert row[8] == "1,234,567"
    assert {line.row for line in lines if line.by_uncertainty is not None} == {
        row for row in EXPERIMENTS["mnist"].rows["desk"] if VARIANTS[row].method == "gp"
    }


def test_a_score_is_a_bound_where_khat_is_large_too_often_and_only_there(tmp_path):
    """With refined proposals k̂ is above 0.7 for one instance of forty, and with those of the encoder for four."""
    store, how, one = Store(tmp_path), protocol(splits=2), experiment("vae", "gp")
    khat, refined = (np.where(np.arange(40) < count, 0.9, 0.3) for count in (4, 1))
    for entry in one.entries(how):
        pretend(store, entry.job, columns(khat=khat, refined_khat=refined, refined_mc_error=np.full(40, 0.3)))
    gathered = Results(store, one.entries(how))
    scores, _, diagnostics = likelihood_tables(one, how, gathered)
    for row in scores.rows:
        assert row[1].startswith("≥ ")
        assert row[2][0] in "−0123456789"
    assert any(note.startswith("≥: a lower bound") for note in scores.notes)
    assert [row[5] for row in diagnostics.rows] == ["lower bound / 0.05"] * 2
    variant, _ = gathered.variants("digits", 2)
    record = variant.record()
    assert record["lower_bound"] == {"encoder": True, "refined": False}
    assert record["mc_error"] == {"encoder": None, "refined": pytest.approx(0.3 / np.sqrt(40))}


def test_a_row_that_lacks_runs_says_so_and_no_other(tables):
    _, (scores, *_) = tables
    lacking = [row[0] for row in scores.rows if "runs)" in row[0]]
    assert lacking == ["VAE" + TWO, "GP, shared trunk, absolute" + TWO]


def test_the_marks_are_the_t_tests_among_methods_and_the_papers_own(tables):
    lines, (scores, *_, diagnostics) = tables
    for column, score in ((1, "log_likelihood"), (2, "refined_log_likelihood")):
        # The VAE lacks a run, and would be the best.
        methods = [line for line in lines if not VARIANTS[line.row].ablation and line.row != "vae"]
        expected = mark({line.row: line.scores[score] for line in methods})
        found = {line.row: scores.marks.get((i, column), "") for i, line in enumerate(lines)}
        assert found == {line.row: expected.get(line.row, "") for line in lines}
        assert "red" in found.values()
    for i, line in enumerate(lines):
        theirs = PAPER.log_likelihood["mnist"][10].get(line.row)
        assert scores.rows[i][3] == ("" if theirs is None else f"{theirs.mean:.1f} ± {theirs.std:.1f}")
        assert scores.marks.get((i, 3), "") == PAPER.marks["mnist"][10].get(line.row, "")
    assert diagnostics.marks == {}


def test_what_is_like_the_best_is_blue(tmp_path):
    store, how, one = Store(tmp_path), protocol(splits=4), experiment("vae", "gp", "hf-1", "vae-2x")
    means = {"vae": 1.0, "gp": 1.01, "hf-1": -5.0, "vae-2x": 99.0}
    for entry in one.entries(how):
        value = np.full(40, means[entry.row] + 0.1 * entry.split)
        pretend(store, entry.job, columns(log_likelihood=value, refined_log_likelihood=-value))
    scores, *_ = likelihood_tables(one, how, Results(store, one.entries(how)))
    assert scores.marks == {(0, 1): "blue", (1, 1): "red", (2, 2): "red"}  # the ablation is not in it
    alone = [entry for entry in one.entries(how) if entry.row in ("vae", "vae-2x")]
    assert likelihood_tables(one, how, Results(store, alone))[0].marks == {}  # the best of one is nothing to say
    summaries = {row: Summary.of([mean + 0.1 * split for split in range(4)]) for row, mean in means.items()}
    assert mark({row: summaries[row] for row in ("vae", "gp", "hf-1")}) == {"vae": "blue", "gp": "red", "hf-1": ""}


def test_notes_say_how_it_was_done_and_that_the_papers_numbers_are_of_another_protocol(tables):
    _, (scores, differences, *_) = tables
    notes = " ".join([*scores.notes, *differences.notes])
    assert "K = 100 samples" in notes
    assert "over 3 runs" in notes
    assert "same 40 test instances" in notes
    assert "Trained on 9,000 instances, scored on 40 of the test part." in notes
    assert "With so few runs this test finds few differences" in notes
    assert "not comparable with ours" in notes
    assert "The paper's supplement has different numbers: GPVAE 693.2." in notes


def test_shares_that_are_not_known_are_left_out(tmp_path):
    store, how, one = Store(tmp_path), protocol(splits=1), experiment("vae")
    (entry,) = one.entries(how)
    pretend(store, entry.job, columns(khat=np.full(40, np.nan)))
    scores, diagnostics = likelihood_tables(one, how, Results(store, [entry]))
    assert re.fullmatch(r"— / \d+ %", diagnostics.rows[0][4])
    assert scores.marks == {}  # one run can be compared with nothing
    assert not re.search("Red|paired", " ".join(scores.notes))
    assert scores.head[-1] == "log p(x), refined"  # the paper has no number for these data
    assert "±" not in scores.rows[0][1]
    assert "samples, of one training. Encoder:" in scores.notes[0]


def test_the_papers_references_are_named_where_the_table_has_no_row_for_them(tmp_path):
    store, how = Store(tmp_path), protocol(splits=1)
    found = {}
    for rows in (("natural",), ("gp",), ("gp", "vae")):
        one = experiment(*rows, dims=(10,), data=("mnist",))
        entries = one.entries(how)
        for entry in entries:
            pretend(store, entry.job, columns())
        scores, *_ = likelihood_tables(one, how, Results(store, entries))
        found[rows] = " ".join(note for note in scores.notes if "aper" in note), scores.head[-1] == "paper"
    assert found["natural",][0].startswith("Paper: VAE 685.1 ± 1.8 and GPVAE 696.5 ± 1.5, after 2000 epochs")
    assert "The paper also has VAE 685.1 ± 1.8." in found["gp",][0]
    assert "also" not in found["gp", "vae"][0]
    assert [column for _, column in found.values()] == [False, True, True]


@pytest.mark.parametrize("splits", [1, 2])
def test_marks_of_the_paper_alone_are_not_explained_as_our_own(tmp_path, splits):
    store, how = Store(tmp_path), protocol(splits=splits)
    one = experiment("vae", "gp", dims=(10,), data=("mnist",))
    entries = one.entries(how)
    for seed, entry in enumerate(entries):
        pretend(store, entry.job, columns(seed))
    scores, *_ = likelihood_tables(one, how, Results(store, entries))
    (said,) = [note for note in scores.notes if note.startswith("Red")]
    assert scores.marks[1, len(scores.head) - 1] == "blue"
    assert said.startswith("Red (bold): the best in the paper." if splits == 1 else "Red (bold): the best. Blue")


@pytest.mark.parametrize("accelerated", [False, True])
def test_rows_whose_steps_newer_versions_take_differently_are_named(tmp_path, accelerated):
    store, how, one = Store(tmp_path), protocol(splits=1), experiment("vae", "natural-0", "natural", "natural-2")
    entries = one.entries(how)
    options = {"accelerated": True} if accelerated else {}
    for entry in entries:
        model = {"model": {"options": {} if entry.row == "vae" else options}}
        count = [0, 2, OWN] if entry.row != "vae" else [OWN]
        scores = {name: np.tile(values, len(count)) for name, values in columns().items()}
        pretend(store, entry.job, {**scores, "steps": np.repeat(count, 40)}, **model)
    scores, *_ = likelihood_tables(one, how, Results(store, entries))
    said = [note for note in scores.notes if "accelerated" in note]
    expected = "From older runs, whose steps were not accelerated: Natural (2 steps). New runs differ."
    assert said == ([] if accelerated else [expected])


def test_trainings_that_have_collapsed_are_named(tmp_path):
    store, how, one = Store(tmp_path), protocol(splits=3), experiment("vae", "me-2", "hf-2")
    entries = one.entries(how)
    ess = {("vae", 1): 24.9, ("vae", 2): 24.5, ("hf-2", 0): 25.0, ("hf-2", 2): 24.8}  # of 25
    for entry in entries:
        name = "ess" if entry.row == "hf-2" else "refined_ess"
        pretend(store, entry.job, columns(**{name: np.full(40, ess.get((entry.row, entry.split), 20.0))}))
    scores, *_ = likelihood_tables(one, how, Results(store, entries))
    (note,) = [note for note in scores.notes if "Collapsed" in note]
    assert note.endswith("ignores the code): VAE on split 1; HF (2) on splits 0, 2.")


def test_the_best_of_several_initialisations_is_called_so(tmp_path):
    store, one = Store(tmp_path), experiment("vae")
    for starts, words in (
        (1, "over 2 runs."),
        (3, "over 2 runs, each the best on validation data of 3 initialisations."),
    ):
        how = protocol(initialisations=starts)
        entries = one.entries(how)
        for entry in entries:
            pretend(store, entry.job, columns())
        assert words in likelihood_tables(one, how, Results(store, entries))[0].notes[0]


def test_nothing_is_no_table(tmp_path):
    how, one = protocol(), experiment("vae")
    assert likelihood_tables(one, how, Results(Store(tmp_path), one.entries(how))) == []


# How they are written --------------------------------------------------------------------------------


def all_tables(tables):
    return [*tables[1], NASTY]


def test_markdown_has_a_cell_for_every_heading(tables):
    for table in all_tables(tables):
        lines = table.markdown().splitlines()
        assert lines[0] == f"### {table.title}"
        grid = [line for line in lines if line.startswith("|")]
        assert len(grid) == len(table.rows) + 2
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in grid} == {len(table.head) + 1}
        assert all(line == "" or line.startswith(("|", "#")) or line in table.notes for line in lines)
    text = NASTY.markdown()
    assert "| **−1.50 ± 0.25** |" in text
    assert "*k̂ > 0.7 {x}*" in text


LATEX = {
    "backslash": r"\textbackslash{}",
    "dollar": r"\$",
    "hash": r"\#",
    "percent": r"\%",
    "ampersand": r"\&",
    "underscore": r"\_",
    "braces": r"\{a\}",
    "tilde": r"\textasciitilde{}",
    "caret": r"\textasciicircum{}",
    "hat": r"$\hat k$",
    "less": "$<$",
}


def test_latex_is_whole_and_its_own_signs_are_written_out(tables):
    for table in all_tables(tables):
        text = table.latex()
        assert text.count(r"\begin{") == text.count(r"\end{") == 2
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(rows) == len(table.rows) + 1
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(table.head) - 1}
        plain = re.sub(r"\\[\\{}$&%#_|]", "", text)
        assert plain.count("{") == plain.count("}")
        assert plain.count("$") % 2 == 0
        assert not re.search(r"[%#~^_]", plain)
        if table is not NASTY:
            assert text.isascii(), sorted(set(text) - set(map(chr, range(128))))
    for what, code in LATEX.items():
        assert code in NASTY.latex(), what
    assert r"\textcolor{red}{$-$1.50 $\pm$ 0.25}" in NASTY.latex()


class Cells(HTMLParser):
    """The texts of a table's cells, row by row, and the tags that are open."""

    def __init__(self):
        super().__init__()
        self.rows, self.open, self.tags = [], [], Counter()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_html_is_well_formed_and_has_every_cell(tables):
    for table in all_tables(tables):
        parser = Cells()
        parser.feed(table.html())
        assert parser.open == []
        assert parser.rows == [list(table.head), *(list(row) for row in table.rows)]
        assert parser.tags["p"] == 1 + len(table.notes)  # the title is one of them
        assert parser.tags["i"] == parser.tags["b"] == 0


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_terminal_shows_every_cell_and_breaks_no_number(width, tables):
    for table in tables[1]:
        text = shown(table, width)
        assert max(map(cell_len, text.splitlines())) <= width
        assert "…" not in text
        words = Counter(word for row in (table.head, *table.rows) for cell in row for word in cell.split())
        missing = words - Counter(text.split())
        assert not missing
        assert all(cell in text for _, *numbers in table.rows for cell in numbers)


def test_a_screen_without_room_shows_a_table_in_equal_parts():
    table = ResultTable("t", ["", "aaaaaaaa", "b", "c", "dddddddd"], [["one two", "1", "2", "3", "4"]])
    lines = {width: [line.rstrip() for line in shown(table, width).splitlines()] for width in (60, 32, 29)}
    assert lines[60] == ["t", "         aaaaaaaa  b  c  dddddddd", "one two         1  2  3         4", ""]
    assert lines[32] == ["t", "      aaaaaaaa  b  c  dddddddd", "one          1  2  3         4", "two", ""]
    assert lines[29][1:3] == ["         aaaaaaaa  b", "one two         1  2"]
    assert lines[29][3:] == ["         c  dddddddd", "one two  3         4", ""]


def test_the_formats_are_these():
    assert {name: write(NASTY)[:3] for name, write in FORMATS.items()} == {
        "markdown": "###",
        "latex": r"\be",
        "html": "<p ",
    }
