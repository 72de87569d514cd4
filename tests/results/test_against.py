"""The paper's numbers beside ours: a difference where the conditions are the same, and what differs where not."""

import re

import pytest

from medic.cli import main
from medic.config.resolve import resolve
from medic.data.dataset import Generated
from medic.reports.against import AgainstPaper
from medic.results.paper import PaperCell, published, published_table
from medic.results.paper_tables import reproduction
from medic.results.runs import find_runs
from medic.results.table import written
from medic.results.tabulate import find_row
from tests.results.written import write_run


def paper_value(table, metric, method, column, variant=""):
    return published_table(table)[PaperCell(metric, variant, method, column)]


class TestThePapersNumbers:
    def test_all_are_there(self):
        assert sum(map(len, published().values())) == 1128
        assert len(published()) == 12
        assert {cell.metric for cell in published_table("pacs-resnet50")} == {"Acc", "H-score", "OSCR"}
        assert paper_value("pacs-resnet50", "Acc", "MEDIC++", "Photo") == 97.58

    def test_beside_ours(self, tmp_path, capsys):
        for title in ("Photo", "Art"):
            write_like(tmp_path, "pacs-resnet50", "ERM", title)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        value = paper_value("pacs-resnet50", "Acc", "ERM", "Photo")
        said = capsys.readouterr()
        assert f"80.0 ({value:.1f}, {80 - value:+.1f})" in said.out
        average = paper_value("pacs-resnet50", "Acc", "ERM", "Avg")
        assert f"80.0 ({average:.1f}, columns)" in said.out  # of two columns, not of four
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50", "--metrics", "acc"]) == 0
        assert f"80.0 ({value:.1f}, {80 - value:+.1f})" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"backbone": "tf_efficientnet_lite0"}, "backbone"),
            ({"iterations": 2000}, "iterations"),
            ({"known": ["dog", "elephant"]}, "classes"),
            ({"sources": ["cartoon", "sketch"]}, "sources"),
            ({"optimizer": "adam", "lr": 1e-4}, "optimizer, lr"),
            ({"image_size": 112, "batch_size": 8}, "image_size, batch_size"),
            ({"partial": {"sketch": ["dog"]}}, "partial"),
            ({"label_noise": 0.2}, "label_noise"),
            ({"weights": None}, "weights"),
            ({"validation": "domainbed"}, "validation"),
            ({"validation": "official", "holdout": None, "seed": 3}, None),
            ({"evaluate_every": 100, "on_bad_image": "skip"}, "on_bad_image, evaluate_every"),
            ({"counts": {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3928}}, None),
            ({"counts": {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3900}}, "images"),
            ({"formats": [".jpg", ".png"]}, None),
            ({"formats": [".jpg", ".webp"]}, "images"),
            ({"dataset": "digits"}, "dataset"),
            ({"computed_in": "fp32"}, None),
            ({"computed_in": "bf16"}, "precision"),
        ],
    )
    def test_no_difference_between_unlike_things(self, tmp_path, capsys, changes, words):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", **changes)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        said = capsys.readouterr().out
        value = paper_value("pacs-resnet50", "Acc", "ERM", "Photo")
        assert f"80.0 ({value:.1f}, {words or f'{80 - value:+.1f}'})" in said
        assert (words is not None) == ("note: differences from the paper: " in said)

    def test_a_note_names_the_source_of_a_value(self, tmp_path, capsys):
        """The source is the paper if it states the value and both protocols agree; otherwise the nearer protocol."""
        write_like(tmp_path, "pacs-resnet50", "MEDIC++", "Photo", iterations=2000, image_size=112, batch_size=8)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        said = capsys.readouterr().out
        assert "image_size 112 (both protocols: 224)" in said
        assert "batch_size 8 (paper: 16)" in said
        assert "iterations 2000 (authors' code: 6000)" in said
        write_like(tmp_path / "text", "pacs-resnet50", "MEDIC++", "Photo", protocol="paper", iterations=2000)
        assert main(["table", str(tmp_path / "text"), "--paper", "pacs-resnet50"]) == 0
        assert "note: differences from the paper: iterations 2000 (paper: 5000)" in capsys.readouterr().out

    def test_latex_of_settings_with_an_underscore(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", image_size=112)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50", "--format", "latex"]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("erm &")]
        assert len(rows) == 1
        assert r", image\_size)" in rows[0]
        assert not re.search(r"(?<!\\)_", rows[0])

    def test_every_run_of_a_cell_counts(self, tmp_path, capsys):
        """Of two seeds the second has fewer sources, which does not make it another row."""
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo")
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", seed=1, sources=["sketch", "cartoon"])
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        assert ", sources)" in capsys.readouterr().out

    def test_the_rule_of_selection(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo")
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50", "--selection", "last"]) == 0
        assert ", selection)" in capsys.readouterr().out

    def test_columns_are_exact_names(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", target=["photograph"])
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        said = capsys.readouterr().out
        assert "80.0\n" in said
        assert "no column matches a column of pacs-resnet50" in said

    def test_hard_decisions_are_read_as_they_are(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "OpenMax", "Photo")
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo")
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        said = capsys.readouterr().out
        for method, ours in (("OpenMax", 20.0), ("ERM", 80 / 3)):
            theirs = paper_value("pacs-resnet50", "H-score", method, "Photo")
            assert f"{ours:.1f} ({theirs:.1f}, {ours - theirs:+.1f})" in said

    def test_variants_are_told_by_their_settings(self, tmp_path, capsys):
        for variant in ("5 4", "3 3 3"):
            write_like(tmp_path, "tasks-per-step", f"MEDIC++, {variant}", "Sketch")
        assert main(["table", str(tmp_path), "--paper", "tasks-per-step"]) == 0
        said = capsys.readouterr().out
        for variant in ("5 4", "3 3 3"):
            value = paper_value("tasks-per-step", "Acc", "MEDIC++", "Sketch", variant)
            assert f"80.0 ({value:.1f}, {80 - value:+.1f})" in said

    def test_variants_that_settings_do_not_tell(self, tmp_path, capsys):
        """Two rows of this table are made of the same runs."""
        write_like(tmp_path, "classifiers", "ERM, train ce+ova, infer cls", "Sketch")
        assert main(["table", str(tmp_path), "--paper", "classifiers"]) == 0
        assert (
            "several rows of classifiers match the settings of erm: create the table with `medic reproduce classifiers`"
            in capsys.readouterr().out
        )


@pytest.mark.parametrize(
    ("column", "weights", "changes", "words"),
    [
        ("PACS", "w", {}, None),
        ("CMNIST", None, {}, None),
        ("CMNIST", "w", {}, "weights"),
        ("TerraIncognita", "w", {"iterations": 5000}, "iterations"),
        ("VLCS", "w", {"lr": 1.8e-3}, "lr"),
    ],
)
def test_every_dataset_of_domainbed_has_settings_of_its_own(tmp_path, column, weights, changes, words):
    """A cell is the mean over its targets; the run of the last one is changed."""
    variant = "own hyper-parameters, with binary head"
    table, label = reproduction("domainbed"), f"MEDIC++, {variant}"
    last = len(table.columns[column]) - 1
    paths = [
        write_like(tmp_path, "domainbed", label, column, 0, weights, part, **(changes if part == last else {}))
        for part in range(last + 1)
    ]
    names = {(label, column): [path.name for path in paths]}
    made = table.tabulate(names, {result.path.name: result for result in find_runs([tmp_path]).finished})
    said = written(made.entry(find_row(made, label), column, made.metrics[0], AgainstPaper(made, table)))
    value = paper_value("domainbed", "Acc", "MEDIC++", column, variant)
    assert said == f"80.0 ({value:.1f}, {words or f'{80 - value:+.1f}'})"


def write_like(folder, table, label, title, seed=0, weights="w", part=0, protocol="authors", **changes):
    """A run with the settings of a cell of one of the paper's tables, but for some changes."""

    def described(bench, root, seed):
        return Generated(bench.name, bench.domains, bench.classes, None)

    user_settings = reproduction(table, protocol=protocol).runs()[label, title][part]
    settings = {**resolve(user_settings, described).config.identity, "seed": seed, **changes}
    name = f"{label}-{title}-{part}-{seed}".replace(" ", "")
    return write_run(folder, name, settings.pop("method"), "a", settings.pop("seed"), (0.8, 0.1), weights=weights,
                     **settings)  # fmt: skip
