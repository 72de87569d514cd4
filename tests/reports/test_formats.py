"""A table of results as text: every format, references and wrapping."""

import csv
import io
import json
from dataclasses import replace

import pytest

from medic.metrics import METRICS
from medic.results.runs import find_runs
from medic.results.table import FORMATS, Entry, Reference, print_table, written
from medic.results.tabulate import tabulate
from tests.results.written import write_run


@pytest.fixture
def table(tmp_path):
    for seed, value in enumerate((0.84, 0.86)):
        write_run(tmp_path, f"a{seed}", "erm", "a", seed, (value, 0.1), user_settings={})
        write_run(tmp_path, f"b{seed}", "erm", "b", seed, (value, 0.1), user_settings={})
    write_run(tmp_path, "c", "medic++", "a", 0, (0.9, 0.1), user_settings={})
    made = tabulate(find_runs([tmp_path]).finished, metrics=[METRICS["acc"]])
    return replace(made, title="A title", notes=("a note",))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Entry(None), "–"),
        (Entry(84.12), "84.1"),
        (Entry(84.12, 0.26), "84.1 ± 0.3"),
        (Entry(84.12, None, Reference(80.0)), "84.1 (80.0, +4.1)"),
        (Entry(None, None, Reference(80.0)), "– (80.0)"),
        (Entry(84.12, None, Reference(80.0, ("lr",))), "84.1 (80.0, lr)"),
        (Entry(84.12, None, Reference(80.0, tuple("abcd"))), "84.1 (80.0, a, b, c, …)"),
    ],
)
def test_a_cell(entry, text):
    assert written(entry) == text


def test_text(table):
    assert table.to_text().splitlines() == [
        "A title",
        "Acc",
        "                  a           b   Avg",
        "erm      85.0 ± 0.7  85.0 ± 0.7  85.0",
        "medic++        90.0           –     –",
        "note: a note",
    ]


def test_labels_are_wrapped(table):
    label = "erm: " + ", ".join(f"setting {number}" for number in range(9))
    wide = replace(table, rows=(replace(table.rows[0], label=label),))
    lines = wide.to_text(width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-2].endswith("85.0 ± 0.7  85.0 ± 0.7  85.0")
    assert " ".join(" ".join(lines[3:-1]).split()).startswith("erm: setting 0, setting 1")


def test_markdown(table):
    named = replace(table, rows=(replace(table.rows[0], label="a|b"),))
    assert FORMATS["markdown"](named, None).splitlines() == [
        "A title",
        "",
        "| Acc | a | b | Avg |",
        "| --- | ---: | ---: | ---: |",
        "| a\\|b | 85.0 ± 0.7 | 85.0 ± 0.7 | 85.0 |",
        "",
        "Note: a note.",
    ]


def test_latex_escapes_names(table):
    named = replace(table, rows=(replace(table.rows[0], label="a_b & 5 %"),), metrics=(METRICS["step_time"],))
    lines = named.to_latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}"
    assert lines[3] == r" & " + r" & ".join([r"seconds per iteration $\downarrow$"] * 3) + r" \\"
    assert lines[5].startswith(r"a\_b \& 5 \% & 0.1 $\pm$ 0.0 &")


def test_programs_read_cells_with_their_runs(table):
    def against(metric, row, column):
        return Reference(80.0, ("lr",)) if column == "a" else None

    rows = table.cells(against)
    assert [row["target"] for row in rows] == ["a", "b", "Avg"] * 2
    assert (rows[0]["mean"], rows[0]["paper"], rows[0]["not comparable"]) == (pytest.approx(85.0), 80.0, "lr")
    assert len(rows[0]["runs"]) == 2
    assert (rows[4]["mean"], rows[4]["runs"]) == (None, [])
    parsed = list(csv.DictReader(io.StringIO(FORMATS["csv"](table, against))))
    assert [row["paper"] for row in parsed] == ["80.0", "", ""] * 2
    document = json.loads(FORMATS["json"](table, None))
    assert (document["title"], document["selection"], document["notes"]) == ("A title", "validation", ["a note"])


def test_notes_of_a_csv_are_logged(table, capsys, caplog):
    print_table(table, None, "csv")
    assert "a note" not in capsys.readouterr().out
    assert "a note" in caplog.text


def test_names_cannot_write_markup(table):
    evil = "a\n\\input{x}<script>[b](c)|`d`\x1b"
    named = replace(
        table, title=evil, notes=(evil,), columns=(evil,), rows=(replace(table.rows[0], label=evil, cells={}),)
    )
    plain = FORMATS["latex"](replace(named, title="t", notes=("n",), columns=("c",)), None)
    latex = FORMATS["latex"](named, None)
    assert "\\input" not in latex
    assert latex.count("\n") == plain.count("\n")
    markdown = FORMATS["markdown"](named, None)
    assert "<script>" not in markdown
    assert "\n\\input" not in markdown
    assert markdown.count("\\[b\\](c)\\|\\`d\\`") == 4
    assert "\x1b" not in latex + markdown + FORMATS["text"](named, None)
