"""Analyses of small real runs, and of written ones."""

import json

import numpy as np
import pytest
import torch

import medic.analysis.gradients as gradients_module
from medic.analysis import ANALYSES, boundary, cost, embed, errors, gradients, openness, separation, tasks
from medic.analysis.figures import FIGURES, methods_side_by_side, one_three_nine
from medic.analysis.load import repeated
from medic.analysis.result import MissingRuns
from medic.analysis.style import WIDTH, letter, new_figure
from medic.errors import MedicError
from medic.results.runs import find_runs
from tests.messages import naming
from tests.results.written import seal, write_run


def drawn(name, result):
    """Draw a figure completely, so that everything in it is laid out."""
    figure = result.draw()
    figure.draw_without_rendering()
    assert figure.get_size_inches()[0] == WIDTH
    json.dumps(result.as_dict(), allow_nan=False)
    assert len({tuple(row) for row in result.rows()}) <= 1  # a table has the same columns in every row
    return figure


def assert_titles_inside(figure):
    for axes in figure.axes:
        if title := axes.get_title("left"):
            assert axes._left_title.get_window_extent().x1 <= figure.bbox.x1, title


def test_letters_of_panels():
    figure = new_figure(1)
    titles = []
    for index in (0, 25, 26, 701, 702):
        axes = figure.subplots()
        letter(axes, index, "panel")
        titles.append(axes.get_title("left"))
    assert titles == ["(a) panel", "(z) panel", "(aa) panel", "(zz) panel", "(aaa) panel"]


def assert_same_weights(run, trainer):
    expected = run.model.state_dict()
    for name, tensor in trainer.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0, msg=name)


@pytest.mark.slow
def test_repeated_training_ends_with_the_weights_of_the_run(make_run, monkeypatch):
    run = make_run("medic++")
    seen = []
    monkeypatch.setattr(gradients_module, "_look", lambda *a, look=gradients_module._look: seen.append(a) or look(*a))
    result = gradients.measure([run], moments=2)
    assert result.tracks[0].iterations.tolist() == [2, 4]
    assert len(seen) == 2
    assert_same_weights(run, seen[-1][0].trainer)  # although gradients were measured on the way
    (track,) = result.tracks
    assert track.domains == tuple(run.settings["sources"])
    assert track.classes == tuple("012345")
    assert all(-1 <= value <= 1 for kind in gradients.KINDS for value in track.cosine[kind])
    assert any("training was replayed up to iteration 4" in note for note in result.notes())
    half = "half the paper's coefficient, and only on average over step orders"
    assert half in " ".join(result.notes())
    assert half in drawn("gradients", result).get_supxlabel().replace("\n", " ")
    part = gradients.measure([run], moments=1, iterations=2)
    assert part.tracks[0].regularisation[0] == track.regularisation[0]  # the beginning of the same training
    with pytest.raises(MedicError, match=naming("--iterations 5 4")):
        gradients.measure([run], iterations=5)


def test_runs_with_other_losses_are_noted(make_run):
    result = gradients.measure(
        [make_run("erm", objective="ce"), make_run("medic++")], moments=1, iterations=1, images=2
    )
    assert any("different losses" in note for note in result.notes())
    assert not any("different cells" in note for note in result.notes())


def test_runs_with_other_cells_are_noted(make_run):
    runs = [make_run("erm", known=[str(digit) for digit in range(5)]), make_run("erm", target="printed")]
    result = gradients.measure(runs, moments=1, iterations=1, images=2)
    assert [len(track.classes) for track in result.tracks] == [5, 6]
    assert [note for note in result.notes() if "different cells" in note and "street" in note]
    assert not any("domains ×" in note for note in result.notes())


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_one_source_has_no_pairs_of_domains(make_run):
    result = gradients.measure([make_run("medic++", sources=["printed"])], moments=1, iterations=1, images=2)
    (track,) = result.tracks
    assert np.isnan([track.cosine["same class"][0], track.cosine["both other"][0], track.regularisation[0]]).all()
    assert not np.isnan(track.cosine["same domain"][0])
    (row,) = result.rows()
    assert row["L_reg"] == row["cos same class"] == "–"
    assert result.as_dict()["tracks"][0]["regularisation"] == [None]
    drawn("gradients", result)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_runs_without_unknown_classes(make_run):
    run = make_run("erm", known=[str(digit) for digit in range(10)])
    result = errors.measure(run)
    assert result.unknown == ()
    drawn("errors", result)
    assert np.isnan(embed.measure([run]).runs[0].overlap)


def test_images_that_changed_are_refused(make_run):
    run = make_run("erm")
    run.description["provenance"]["images"] = "other"
    with pytest.raises(MedicError, match="different images"), repeated(run):
        pass


def test_recording_tasks_changes_nothing(make_run, monkeypatch):
    run = make_run("medic++", iterations=8, evaluate_every=8)
    kept = []
    monkeypatch.setattr(tasks, "Recording", lambda *a, make=tasks.Recording: kept.append(a[0]) or make(*a))
    result = tasks.measure(run)
    assert result.iterations == 8
    assert result.splits == 3 * (8 - kept[0].lag)  # splits before have no confusion
    assert np.allclose(result.confusion.sum(1), 1)
    assert (result.chance_neighbours, result.chance_apart) == pytest.approx((1 / 3, 0.8))
    assert result.neighbours[np.triu_indices(6, 1)].sum() == pytest.approx(5)  # of a chain of six
    assert (result.apart >= result.neighbours).all()
    assert_titles_inside(drawn("tasks", result))
    with pytest.raises(MedicError, match=naming("confusion --iterations")):
        tasks.measure(run, iterations=1)
    with pytest.raises(MedicError, match=naming("'random' adaptive")):
        tasks.measure(make_run("medic"))


def test_boundary_agrees_with_the_metrics_of_the_run(make_run):
    runs = [make_run("erm"), make_run("medic++")]
    result = boundary.measure(runs)
    for run, one in zip(runs, result.runs, strict=True):
        assert (one.mean_p, one.mean_n) == pytest.approx((run.metrics["conf_p"], run.metrics["conf_n"]))
        assert np.nanmean(one.balance) == pytest.approx(run.metrics["balance"])
        odds = run.outputs("target").output.log_odds().double()
        label = run.outputs("target").label
        assert one.conf_n[2] == pytest.approx(1 - float(odds[(label >= 0) & (label != 2), 2].sigmoid().mean()))
    assert result.positive != result.negative
    drawn("boundary", result)
    chosen = boundary.measure(runs, classes=["3", "5"])
    assert (chosen.positive, chosen.negative) == ("3", "5")
    with pytest.raises(MedicError, match="unknown class '8'"):
        boundary.measure(runs, classes=["3", "8"])
    with pytest.raises(MedicError, match=naming("one-vs-all --objective ce+ova")):
        boundary.measure([make_run("erm", objective="ce")])


def test_features_are_kept_or_computed_again(make_run):
    run = make_run("medic++", save_features=False)
    for name in ("separation", "boundary", "embed"):
        with pytest.raises(MedicError, match=naming(f"{run.path.name} --rerun --save-features")):
            ANALYSES[name].measure([run])
    again, kept = (separation.measure([one], rerun=rerun) for one, rerun in ((run, True), (make_run("medic++"), False)))
    assert np.allclose(again.runs[0].differences, kept.runs[0].differences, rtol=1e-3)


def test_separation_orders_runs_by_steps(make_run):
    runs = [make_run("medic++", steps=[1] * 9), make_run("medic++", steps=[9]), make_run("medic++")]
    result = separation.measure(runs)
    assert [one.steps for one in result.runs] == [1, 3, 9]
    assert [result.matched[steps - 1] for steps in (1, 2, 3, 9)] == [0, 20, 27, 36]
    assert result.runs[1].accuracy == pytest.approx(runs[2].record["validation"]["acc"])
    figure = drawn("separation", result)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert [title.replace("\n", " ").partition(", mean")[0] for title in titles[:3]] == [
        "(a) MEDIC++, 1 step", "(b) MEDIC++, 3 steps", "(c) MEDIC++, 9 steps",
    ]  # fmt: skip
    assert_titles_inside(figure)
    with pytest.raises(MedicError, match=naming("'source-unknown' --split")):
        separation.measure(runs, split="source-unknown")
    with pytest.raises(MedicError, match="unknown split 'tarjet'"):
        separation.measure(runs, split="tarjet")
    assert one_three_nine(find_runs([runs[0].path.parent]).finished)


def test_embed_draws_known_and_unknown_images(make_run):
    result = embed.measure([make_run("erm")])
    (one,) = result.runs
    assert one.points.shape == (100, 2)
    assert (~one.known).sum() == 40
    drawn("embed", result)


@pytest.mark.slow
def test_embed_notes_runs_with_other_images(make_run):
    runs = [make_run("erm"), make_run("medic++"), make_run("erm", target="printed")]
    assert embed.measure(runs[:2]).same_images
    result = embed.measure(runs[1:])
    assert result.notes()[-1] == "the runs use different images, so their numbers are not comparable"
    assert embed.measure([make_run("erm", seed=1), runs[0]]).same_images  # another validation split
    assert not embed.measure([make_run("erm", seed=1), runs[0]], split="validation").same_images


def test_errors_name_classes(make_run):
    run = make_run("medic++")
    result = errors.measure(run)
    arrays = run.predictions
    target = arrays["split"] == "target"
    assert set(run.true_classes[target & (arrays["label"] < 0)]) == {"6", "7", "8", "9"}
    for one in result.confusions:
        rows = target & (arrays["label"] == int(one.true))
        taken = arrays["logits"][rows].argmax(1) == int(one.taken_for)
        assert (one.images, one.of, one.target) == (taken.sum(), rows.sum(), taken.mean())
        rows = (arrays["split"] == "validation") & (arrays["label"] == int(one.true))
        assert one.source == (arrays["logits"][rows].argmax(1) == int(one.taken_for)).mean()
    assert [one.excess for one in result.confusions] == sorted((one.excess for one in result.confusions), reverse=True)
    for one in result.unknown:
        rows = target & (run.true_classes == one.name)
        assert (one.accepted, one.images) == ((arrays["prediction"][rows] >= 0).mean(), 10)
        rows = (arrays["split"] == "source-unknown") & (run.true_classes == one.name)
        assert one.accepted_in_sources == (arrays["prediction"][rows] >= 0).mean()
    assert "before rejection" in result.notes()[0]
    drawn("errors", result)


def test_only_significant_confusions_are_shown():
    """2 of 120 images rank nowhere, and neither does 1 of 1."""
    common = ("ERM", "erm", "run", ("street",))
    few = [errors.Confusion("1", "7", 2 / 120, 0.0, 2, 120, 100), errors.Confusion("2", "7", 1.0, 0.0, 1, 1, 100)]
    many = errors.Confusion("3", "8", 0.25, 0.1, 30, 120, 100)
    result = errors.Errors(*common, (*few[1:], many, *few[:1]), ())
    assert [row["class"] for row in result.rows()] == ["3"]
    assert result.notes()[-1] == (
        "2 confusions between known classes not listed: at most two standard errors more frequent than in the sources"
    )
    nothing = errors.Errors(*common, tuple(few), ())
    assert nothing.rows() == []
    assert nothing.notes()[:2] == [
        "ERM, target street: no known class is confused with another significantly more often than in the sources",
        "ERM, target street: the target has no unknown classes",
    ]
    drawn("errors", nothing)


def test_the_column_of_classes_goes_before_folders(make_run):
    run = make_run("erm")
    run.predictions["class"] = np.array(["dog"] * len(run.predictions["path"]))
    assert set(run.true_classes) == {"dog"}
    assert {one.name for one in errors.measure(run).unknown} == {"dog"}


def written(folder, name, method, value, user_settings=None, **settings):
    """Write a run with an OSCR of `value` / 2."""
    usual = {"objective": "ce+ova", "steps": [1], "batch_size": 9, "unknown": ["u"], "domain_splits": None,
             "class_splits": None, "save_features": False, "iterations": 2}  # fmt: skip
    return write_run(folder, name, method, "a", settings.pop("seed", 0), [value, 0.0],
                     user_settings=user_settings or {}, **{**usual, **settings})  # fmt: skip


def test_openness_averages_runs_that_differ_in_known_classes(tmp_path):
    for count, value in ((3, 0.8), (5, 0.4)):
        for seed in (0, 1):
            known = {"known": ["k"] * count, "unknown": ["u"] * (10 - count)}
            user_settings = {"known": known["known"]}
            written(tmp_path, f"m{count}{seed}", "medic++", value + 0.2 * seed, user_settings, **known, seed=seed)
            written(tmp_path, f"e{count}{seed}", "erm", value / 2, user_settings, **known, seed=seed)
    written(tmp_path, "alone", "fish", 0.9)
    result = openness.measure(find_runs([tmp_path]).finished)
    assert [row.label for row in result.table] == ["MEDIC++", "ERM"]
    assert result.table[0].known.tolist() == [3, 5]
    assert result.table[0].oscr.tolist() == pytest.approx([45, 25])
    assert result.table[0].error.tolist() == pytest.approx([5 / 2**0.5] * 2)
    assert result.table[1].oscr.tolist() == pytest.approx([20, 10])
    assert result.classes == 10
    first, second = result.notes()
    assert first.endswith("averaged over a and seeds")
    assert second == "1 run is left out: settings trained with only one number of known classes"
    drawn("openness", result)


def test_openness_compares_the_same_targets(tmp_path):
    """Targets a and b with three known classes, a and c with five: a alone is in both; other datasets do not count."""
    for count, targets in ((3, "ab"), (5, "ac")):
        known = {"known": ["k"] * count, "unknown": ["u"] * (10 - count)}
        for value, target in zip((0.8, 0.2), targets, strict=True):
            user_settings = {"known": known["known"]}
            written(tmp_path, f"{target}{count}", "medic++", value, user_settings, **known, target=[target])
    written(tmp_path, "elsewhere", "erm", 0.5, dataset="vlcs")
    result = openness.measure(find_runs([tmp_path]).finished)
    assert [(row.targets, row.oscr.tolist()) for row in result.table] == [(("a",), pytest.approx([40, 40]))]
    assert result.notes()[1:] == [
        "1 run is left out: from another dataset",
        "2 runs are left out: targets without a run for every number of known classes",
    ]
    for target in ("b", "c"):  # a target of its own for every number
        written(
            tmp_path,
            f"e{target}",
            "erm",
            0.5,
            {"known": ["k"]},
            known=["k"] * (3 + 2 * (target == "c")),
            target=[target],
        )
    assert [row.method for row in openness.measure(find_runs([tmp_path]).finished).table] == ["medic++"]


def test_cost_compares_runs_that_differ_in_steps(tmp_path):
    for steps, time in (([9], 0.1), ([3, 3, 3], 0.3)):
        path = written(
            tmp_path, f"m{len(steps)}", "medic++", 0.5, user_settings={"steps": steps}, steps=steps, batch_size=8
        )
        text = (path / "results.jsonl").read_text()
        last = text.replace('"step_time": 0.1', f'"step_time": {time}, "mem_gb": 2.0')
        warming = last.replace(f'"step_time": {time}', '"step_time": 7.0')
        (path / "results.jsonl").write_text(warming + last)
        seal(path)
    with_adam = {"user_settings": {"steps": [9], "lr": 1.0}, "lr": 1.0}
    written(tmp_path, "other", "medic++", 0.5, steps=[9], batch_size=8, **with_adam)
    result = cost.measure(find_runs([tmp_path]).finished)
    assert (result.steps.tolist(), result.seconds.tolist(), result.gib.tolist()) == ([1, 3], [0.1, 0.3], [2, 2])
    way = "--method erm --dataset pacs --target a --backbone resnet50 --objective ce+ova --iterations 2 --images 72"
    assert result.notes()[1:] == [f"found no ERM run: train one with {way}"]
    drawn("cost", result)
    written(tmp_path, "close-set", "erm", 0.5, batch_size=72, objective="ce")
    assert cost.measure(find_runs([tmp_path]).finished).notes()[1:] == [
        "found no ERM run to compare with; the closest (close-set) differs in objective (ce, not ce+ova): "
        f"train one with {way}"
    ]
    written(tmp_path, "erm", "erm", 0.5, batch_size=70)
    result = cost.measure(find_runs([tmp_path]).finished)
    assert (result.erm_seconds, result.images) == (0.1, 72)
    assert "ERM uses 70 images per iteration" in result.notes()
    assert result.rows()[-1]["over ERM"] == "3.00"


@pytest.mark.parametrize(("analysis", "table"), [(openness, "officehome-openness"), (cost, "time-memory")])
def test_missing_runs_are_named_with_the_command(analysis, table, tmp_path):
    written(tmp_path, "alone", "erm", 0.5)
    for results in (find_runs([tmp_path]).finished, ()):
        with pytest.raises(MissingRuns, match=f"medic reproduce {table}"):
            analysis.measure(results)


def test_methods_of_a_figure_share_their_problem(tmp_path):
    features = {"save_features": True}
    nine = {"steps": [3, 3, 3], "domain_splits": 3, "class_splits": 3}
    two = {"sources": ["b", "c", "d"], **features}
    written(tmp_path, "erm", "erm", 0.5, **two)
    with pytest.raises(MissingRuns, match=naming("MEDIC++ separation")):
        methods_side_by_side(find_runs([tmp_path]).finished)
    written(tmp_path, "medic", "medic++", 0.5, **{**two, **nine})
    written(tmp_path, "another", "medic++", 0.5, **{**two, **nine, "steps": [9]}, user_settings={"steps": [9]})
    written(tmp_path, "seed", "fish", 0.5, **two, seed=1)
    runs = methods_side_by_side(find_runs([tmp_path]).finished)
    assert [result.path.name for result in runs] == ["erm", "medic"]
    with pytest.raises(MissingRuns, match=naming("MEDIC++ 9 --save-features")):
        one_three_nine(find_runs([tmp_path]).finished)
    assert {figure.analysis for figure in FIGURES.values()} <= ANALYSES.keys()
