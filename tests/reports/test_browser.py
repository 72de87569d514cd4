"""The reports in a real browser: what a reader drags, sorts and opens."""

import itertools

import numpy as np
import pytest
import scipy.special
import scipy.stats

import medic
from medic import openset
from medic.reports.run_page import write_report
from medic.reports.table_page import write_table_report
from medic.results.runs import find_runs
from tests.browser import beyond_the_screen, needs_browser, open_address, requests
from tests.results.written import write_run

pytestmark = needs_browser


@pytest.fixture
def runs(mini, four_runs):
    finished = [medic.Run(path) for path in four_runs(mini).iterdir()]
    return sorted(finished, key=lambda run: (run.settings["method"], run.settings["seed"]))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_run(browser, runs, tmp_path, width, dark):
    """Dragging the threshold gives the numbers of `openset.hscore` there."""
    from selenium.webdriver import ActionChains

    run = runs[-1]
    open_address(browser, write_report(run, tmp_path / "page.html"), width, dark)
    output, label, _ = run.outputs("target")
    confidence, prediction = run.score(output), openset.predicted_class(output)
    seen = set()
    chart = browser.find_element("css selector", "#histogram svg")
    for offset in (0, -0.3, 0.2, 0.4):
        if offset:
            ActionChains(browser).move_to_element(chart).click_and_hold().move_by_offset(
                int(offset * chart.size["width"]), 0
            ).release().perform()
        page_values = browser.execute_script("return {...document.getElementById('threshold').dataset}")
        expected = openset.hscore(confidence, prediction, label, float(page_values["threshold"]))
        metrics = [float(page_values[name]) for name in ("accK", "accU", "h")]
        assert metrics == pytest.approx([expected.acc_k, expected.acc_u, expected.hscore], abs=1e-12)
        assert browser.find_element("id", "at-h").text == f"{100 * expected.hscore:.1f}"
        seen.add(page_values["threshold"])
    assert len(seen) == 4
    for button in browser.find_elements("css selector", "#kinds button"):
        button.click()
        said = browser.find_element("id", "shown").text
        number = len(browser.find_elements("css selector", "#gallery li"))
        assert said.startswith(f"Showing {number} of ") if number else said == "None at this threshold."
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert requests(browser) == [(tmp_path / "page.html").as_uri()]


def test_the_gallery_opens_where_images_are(browser, runs, tmp_path):
    run = medic.Run(runs[-1].path)
    label = run.predictions["label"]
    logits = np.eye(6, dtype=np.float32)[np.maximum(label, 0)] * 9  # no known image is taken for another class
    run.__dict__["predictions"] = {**run.predictions, "logits": logits}
    open_address(browser, write_report(run, tmp_path / "page.html"))
    assert browser.find_element("css selector", "#kinds [aria-pressed=true]").text != "misclassified"
    assert browser.find_elements("css selector", "#gallery li")


def test_the_keyboard_moves_the_threshold(browser, runs, tmp_path):
    open_address(browser, write_report(runs[-1], tmp_path / "page.html"))
    slider = browser.find_element("id", "slider")
    before = browser.find_element("id", "threshold").get_attribute("data-threshold")
    slider.send_keys("\ue014")  # the right arrow
    assert float(browser.find_element("id", "threshold").get_attribute("data-threshold")) > float(before)
    slider.send_keys("\ue00f" * 30)  # page down
    assert float(browser.find_element("id", "threshold").get_attribute("data-threshold")) == float(
        slider.get_attribute("min")
    )
    browser.find_element("id", "reset").click()
    assert browser.find_element("id", "threshold").get_attribute("data-threshold") == before


def test_a_name_is_text(browser, runs, tmp_path, monkeypatch):
    run = runs[-1]
    names = run.predictions["class"].astype("U40")
    names[names == "7"] = "<img src=x onerror=alert(1)>"
    monkeypatch.setitem(run.__dict__, "predictions", {**run.predictions, "class": names})
    open_address(browser, write_report(run, tmp_path / "page.html"))
    assert "<img src=x onerror=alert(1)>" in browser.find_element("id", "classes").text
    assert requests(browser) == [(tmp_path / "page.html").as_uri()]


def test_a_folder(browser, runs, tmp_path):
    page = write_table_report(find_runs([runs[0].path.parent]), "some runs", tmp_path / "page.html")
    open_address(browser, page)

    def labels():
        return [cell.text for cell in browser.find_elements("css selector", "#grid tbody th")]

    assert labels() == ["erm", "medic++"]
    browser.find_element("css selector", "#grid thead th:first-child button").click()
    browser.switch_to.active_element.send_keys("\ue007")  # enter: sorting keeps the focus
    assert labels() == ["medic++", "erm"]
    browser.find_element("id", "filter").send_keys("medic")
    assert labels() == ["medic++"]
    browser.find_element("css selector", "#grid tbody td button").click()
    listed = browser.find_element("id", "runs-list").text
    assert all(run.path.name in listed for run in runs[2:])
    assert not any(run.path.name in listed for run in runs[:2])
    browser.find_element("id", "close").click()
    assert "medic++ minus erm" in browser.find_element("id", "comparison").text
    assert "An interval requires at least three seeds to compare" in browser.find_element("id", "comparison").text
    assert "model selection" not in browser.find_element("id", "notes").text
    browser.find_element("css selector", "#rule option:last-child").click()
    assert "model selection: evaluation" in browser.find_element("id", "notes").text
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert requests(browser) == [page.as_uri()]


def test_few_pairs_are_compared_without_an_interval(browser, runs, tmp_path):
    page = write_table_report(find_runs(run.path for run in runs[::2]), "runs", tmp_path / "page.html")
    open_address(browser, page)
    titles = [head.text for head in browser.find_elements("css selector", "#grid thead th")]
    assert titles[:4] == ["method", "Acc", "H-score", "OSCR"]  # of a single target, all metrics are columns
    text = browser.find_element("id", "comparison").text
    assert "requires at least three seeds to compare: train runs with more seeds." in text
    base, other = (100 * run.metrics["oscr"] for run in runs[::2])
    assert f"OSCR {'−' if other < base else '+'}{abs(other - base):.2f}" in text.splitlines()


INSIDE = """
const box = arguments[0].getBoundingClientRect();
return box.width > 0 && box.left >= 0 && box.right <= innerWidth && getComputedStyle(arguments[0]).display !== "none";
"""


def test_a_phone_shows_numbers_of_long_names(browser, runs, tmp_path):
    """Names are cut off, not numbers; meanings are readable, and the sticky panel is small."""
    run = runs[-1]
    names = run.predictions["class"].astype("U300")
    names[names == "7"] = "x" * 300
    run.__dict__ |= {
        "predictions": {**run.predictions, "class": names},
        "settings": {**run.settings, "known": ["a class with a name of many words " * 9, *"12345"]},
    }
    open_address(browser, write_report(run, tmp_path / "page.html"), 390)
    for table in ("#confusions", "#matrix", "#classes"):
        number = browser.find_element("css selector", f"{table} tbody tr:last-child td")
        assert browser.execute_script(INSIDE, number), table
    for term in browser.find_elements("css selector", ".term"):
        term.click()
        assert browser.execute_script(INSIDE, term.find_element("css selector", ".meaning"))
    assert browser.find_element("id", "threshold").size["height"] < 100
    browser.find_element("xpath", "//button[text()='sources']").click()
    assert not browser.find_element("id", "images").is_displayed()
    assert "target domains only" in browser.find_element("id", "no-images").text


LOWEST = """
const slider = document.getElementById("slider");
slider.value = slider.min;
slider.dispatchEvent(new Event("input"));
"""


def test_a_closed_set_and_many_classes(browser, runs, tmp_path):
    """Without unknown images only known ones are rejected; of many classes the most confused ones are shown."""
    run = runs[-1]
    known = [f"class {number}" for number in range(60)]
    kept = run.predictions["label"] >= 0
    arrays = {name: values[kept] for name, values in run.predictions.items()}
    number = np.arange(kept.sum())
    arrays |= {"label": number % 60, "logits": np.eye(60, dtype=np.float32)[(number + (number % 5 == 0)) % 60]}
    arrays["class"] = np.array(known)[arrays["label"]]
    run.__dict__ |= {"predictions": arrays, "description": {**run.description, "classes": known}}
    open_address(browser, write_report(run, tmp_path / "page.html"))
    assert "30 of 60 classes with the most errors" in browser.find_element("id", "matrix-note").text
    assert len(browser.find_elements("css selector", "#matrix tbody tr")) == 30
    assert browser.find_element("css selector", "#matrix thead th:last-child").text == "unknown"
    assert len(browser.find_elements("css selector", "#classes tbody tr")) == 61
    assert [browser.find_element("id", name).text for name in ("at-acc-u", "at-h")] == ["–", "–"]
    target = arrays["split"] == "target"
    right = arrays["label"] == arrays["logits"].argmax(1)
    accepted = arrays["confidence"] >= run.record["target"]["threshold"]
    share = 100 * (right & accepted)[target].mean()
    assert browser.find_element("id", "at-acc-k").text == f"{share:.1f}"
    assert {rect.get_attribute("fill") for rect in browser.find_elements("css selector", "#histogram rect")} == {
        "var(--known)",
        "var(--wrong)",
        "var(--unknown)",
    }
    browser.execute_script(LOWEST)
    accepted = arrays["confidence"] >= float(browser.find_element("id", "threshold").get_attribute("data-threshold"))
    browser.find_element("xpath", "//button[text()='misclassified']").click()
    mistakes = int((target & accepted & ~right).sum())
    assert browser.find_element("id", "shown").text == f"Showing {min(mistakes, 24)} of {mistakes}."
    browser.find_element("css selector", "#label option:nth-child(2)").click()
    assert {card.text.splitlines()[0] for card in browser.find_elements("css selector", "#gallery li")} == {
        "true " + browser.find_element("css selector", "#label option:nth-child(2)").text
    }
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_any_two_rows_are_compared(browser, tmp_path):
    """The script tests over targets, with seeds averaged, as scipy does."""
    draw = np.random.default_rng(0).uniform(0.2, 0.9, (42, 3, 2))
    for row, column, seed in np.ndindex(draw.shape):
        method, target = f"m{row:02}", "abc"[column]
        label = f"{method}{target}{seed}"
        write_run(tmp_path / "runs", label, method, target, seed, (draw[row, column, seed], 0.1), user_settings={})
    page = write_table_report(find_runs([tmp_path / "runs"]), "runs", tmp_path / "page.html")
    open_address(browser, page, 390)
    for name, number in (("base", 40), ("other", 41)):
        browser.find_element("css selector", f"#{name} option[value='{number}']").click()
    difference = 100 * (draw[41] - draw[40]).mean(1)
    test = scipy.stats.ttest_1samp(difference, 0)
    low, high = test.confidence_interval(0.95)
    comparison = browser.execute_script("return tested(differences(table.rows[40], table.rows[41], 0))")
    expected = {"difference": difference.mean(), "low": low, "high": high, "p": test.pvalue}
    assert {name: comparison[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert "over 3 targets" in browser.find_element("id", "comparison").text
    for freedom in (1, 2, 3, 8, 29):
        quantile = browser.execute_script(f"return quantile(0.95, {freedom})")
        assert quantile == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-9)
    assert browser.execute_script(INSIDE, browser.find_element("css selector", "#grid tbody td"))


def four_seeds(folder, accuracies, targets="a"):
    """Write runs of four seeds for each accuracy by method, which varies by one point."""
    for method, target, seed in itertools.product(accuracies, targets, range(4)):
        values = (accuracies[method] + (-0.01, 0.01)[seed % 2] + 0.001 * seed, 0.1)
        write_run(folder, f"{method}-{target}-{seed}", method, target, seed, values, user_settings={})
    return find_runs([folder])


def page_of(kind, runs, tmp_path):
    """Write a page of a kind."""
    folder = tmp_path / "runs"
    file, run = tmp_path / "page.html", runs[-1]
    if kind == "folder":
        return write_table_report(find_runs([run.path.parent]), "a folder", file)
    if kind == "targets":
        return write_table_report(four_seeds(folder, {"erm": 0.5, "medic++": 0.7}, "abc"), "a folder", file)
    if kind == "paper":
        return write_table_report(four_seeds(folder, {"erm": 0.5}, "abc"), "a folder", file, paper="pacs-resnet50")
    if kind == "closed":
        kept = run.predictions["label"] >= 0
        run.__dict__["predictions"] = {name: values[kept] for name, values in run.predictions.items()}
    return write_report(run, file)


@pytest.mark.parametrize("kind", ["run", "closed", "folder", "targets", "paper"])
def test_no_page_is_wider_than_a_phone(browser, runs, tmp_path, kind):
    """Wide tables scroll in their own box; on a large screen, tables use the width of the page."""
    page = page_of(kind, runs, tmp_path)
    open_address(browser, page, 390)
    for number in browser.find_elements("css selector", "#grid tbody tr:last-child td:last-child button"):
        browser.execute_script("arguments[0].click()", number)  # also the box with the runs behind a number
    assert beyond_the_screen(browser) == []
    open_address(browser, page, 1280)
    widths = "return [...document.querySelectorAll('.wide > table')].map((table) => table.offsetWidth)"
    tables = [width for width in browser.execute_script(widths) if width]
    assert len(tables) >= 2
    assert min(tables) >= browser.execute_script("return document.body.clientWidth") - 2 * 16  # less its padding


def bold(browser):
    """The texts in bold in the table."""
    return [cell.text for cell in browser.find_elements("css selector", "#grid strong")]


def test_a_clear_lead_is_bold(browser, tmp_path):
    page = write_table_report(
        four_seeds(tmp_path / "runs", {"erm": 0.5, "medic++": 0.7}), "runs", tmp_path / "page.html"
    )
    open_address(browser, page)
    assert bold(browser) == ["70.1 ± 0.5", "17.5 ± 0.1", "35.1 ± 0.3"]
    assert "its Acc from chance (1 / known classes)" in browser.find_element("tag name", "body").text


@pytest.mark.parametrize(
    "accuracies",
    [{"erm": 0.165, "medic++": 0.17}, {"erm": 0.05, "medic++": 0.16}, {"erm": 0.7}],
    ids=["at chance", "below chance", "a single row"],
)
def test_nothing_is_bold(browser, tmp_path, accuracies):
    """Six known classes: the best accuracy of a guess is 16.7."""
    open_address(browser, write_table_report(four_seeds(tmp_path / "runs", accuracies), "runs", tmp_path / "page.html"))
    assert len(browser.find_elements("css selector", "#grid tbody td")) == 3 * len(accuracies)
    assert bold(browser) == []


def test_a_lead_within_noise_or_of_one_seed_is_not_bold(browser, tmp_path):
    for method, values in {"erm": (0.6, 0.7, 0.65), "medic++": (0.7, 0.6, 0.67)}.items():
        for seed, value in enumerate(values):
            write_run(tmp_path / "noise", f"{method}{seed}", method, "a", seed, (value, 0.1), user_settings={})
    for method, value in {"erm": 0.5, "medic++": 0.9}.items():
        write_run(tmp_path / "one", method, method, "a", 0, (value, 0.1), user_settings={})
    for folder in ("noise", "one"):
        open_address(browser, write_table_report(find_runs([tmp_path / folder]), "runs", tmp_path / "page.html"))
        assert bold(browser) == []


def test_the_average_is_compared_over_targets(browser, tmp_path):
    """A lead on three targets is bold in each column and in the average."""
    runs = four_seeds(tmp_path / "runs", {"erm": 0.5, "medic++": 0.7}, "abc")
    open_address(browser, write_table_report(runs, "runs", tmp_path / "page.html"))
    assert bold(browser) == 3 * ["35.1 ± 0.3"] + ["35.1"]


def test_a_folder_names_its_dataset_and_draws_a_chart(browser, tmp_path):
    runs = four_seeds(tmp_path / "runs", {"erm": 0.5, "medic++": 0.7}, "ab")
    open_address(browser, write_table_report(runs, "some runs", tmp_path / "page.html"))
    assert "Dataset pacs: 16 finished runs of 2 methods." in browser.find_element("tag name", "body").text
    captions = [one.text for one in browser.find_elements("css selector", "#charts figcaption")]
    assert captions == ["OSCR, a", "OSCR, b", "OSCR, Avg"]
    erm, medic_row = browser.find_elements("css selector", "#charts figure:first-child svg[role=img]")
    for strip in (erm, medic_row):
        assert len(strip.find_elements("css selector", ".one")) == 4
    places = [float(row.find_element("css selector", ".mean").get_attribute("cx")[:-1]) for row in (erm, medic_row)]
    assert places[0] < 20 < 80 < places[1]  # percent of the width
    browser.find_element("css selector", "#metrics button").click()
    assert browser.find_element("css selector", "#charts figcaption").text == "Acc, a"
    browser.find_element("id", "filter").send_keys("medic")
    assert len(browser.find_elements("css selector", "#charts figure:first-child .mean")) == 1


def test_chance_is_drawn_where_values_are_near(browser, tmp_path):
    for name, values, expected in (
        ("near", {"erm": 0.17, "medic++": 0.2}, 2),
        ("far", {"erm": 0.8, "medic++": 0.9}, 0),
    ):
        runs = four_seeds(tmp_path / name, values)
        open_address(browser, write_table_report(runs, "runs", tmp_path / "page.html"))
        assert len(browser.find_elements("css selector", "#charts figure:first-child .chance")) == expected
        assert ("chance" in browser.find_element("id", "marks").text) == bool(expected)


def test_probabilities_on_the_axis_are_round(browser, runs, tmp_path):
    open_address(browser, write_report(runs[-1], tmp_path / "page.html"))
    for ends, expected in (
        ((-0.5, 0.5), [0.4, 0.45, 0.5, 0.55, 0.6]),
        ((-1, 9), [0.5, 0.9, 0.99, 0.999]),
        ((-8, 25), [0.001, 0.5, 0.999, 1 - 1e-6, 1 - 1e-9]),
    ):
        ticks = browser.execute_script("return probabilityTicks(...arguments[0], 5)", ends)
        assert scipy.special.expit(ticks) == pytest.approx(expected, rel=1e-12)
    texts = browser.execute_script("return probabilityTicks(-8, 25, 5).map(shown)")
    assert texts == ["0.00100", "0.500", "0.999", "1 − 0.000001", "1 − 1e-9"]


def test_a_kind_has_one_colour_everywhere(browser, runs, tmp_path):
    """Blue is known and correct, orange wrong, grey unknown: in the histogram, the bars, the gallery and the matrix."""
    open_address(browser, write_report(runs[-1], tmp_path / "page.html"))

    def seen(selector, name="backgroundColor"):
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => getComputedStyle(one)[arguments[1]])"
        return list(dict.fromkeys(browser.execute_script(script, selector, name)))

    known, wrong, unknown = seen(".legend:first-of-type .swatch")
    assert (known, wrong) == ("rgb(0, 114, 178)", "rgb(213, 94, 0)")
    assert {*seen("#histogram rect", "fill")} == {known, wrong, unknown}
    assert seen("#confusions .bar i") == [wrong]
    assert seen("#classes .bar i") == [known, unknown]
    assert seen("#kinds .swatch") == [wrong, known, unknown]
    buttons = browser.find_elements("css selector", "#kinds button")
    for button, colour in zip(buttons, (wrong, known, unknown), strict=True):
        button.click()
        assert seen("#gallery img", "borderBottomColor") in ([], [colour])
    cells = """return [...document.querySelectorAll("#matrix tbody tr")].map((row) =>
      [...row.querySelectorAll("td")].map((cell) => (cell.getAttribute("style") || "").match(/--([a-z]+)/)?.[1]))"""
    for label, row in enumerate(browser.execute_script(cells)):
        right = min(label, 6)
        assert {*row[:right], *row[right + 1 :]} <= {"wrong", None}
        assert row[right] in ("known" if label < 6 else "unknown", None)
