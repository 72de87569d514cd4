"""The reports in a real browser: what a reader drags, sorts and opens."""

import numpy as np
import pytest
import scipy.stats

import medic
from medic import openset
from medic.report.run_page import write_report
from medic.report.table_page import write_table_report
from medic.tables.results import collect
from tests.browser import needs_browser, open_address, requests
from tests.tables.written import write_run

pytestmark = needs_browser


@pytest.fixture
def runs(mini, four_runs):
    found = [medic.Run(path) for path in four_runs(mini).iterdir()]
    return sorted(found, key=lambda run: (run.settings["method"], run.settings["seed"]))


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
        shown = browser.execute_script("return {...document.getElementById('threshold').dataset}")
        expected = openset.hscore(confidence, prediction, label, float(shown["threshold"]))
        found = [float(shown[name]) for name in ("accK", "accU", "h")]
        assert found == pytest.approx([expected.acc_k, expected.acc_u, expected.hscore], abs=1e-12)
        assert browser.find_element("id", "at-h").text == f"{100 * expected.hscore:.1f}"
        seen.add(shown["threshold"])
    assert len(seen) == 4
    for button in browser.find_elements("css selector", "#kinds button"):
        button.click()
        said = browser.find_element("id", "shown").text
        number = len(browser.find_elements("css selector", "#gallery li"))
        assert said.startswith(f"Showing {number} of ") if number else said == "None at this threshold."
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert requests(browser) == [(tmp_path / "page.html").as_uri()]


def test_the_gallery_opens_where_images_are(browser, runs, tmp_path):
    run = medic.Run(runs[-1].path)
    label = run.predictions["label"]
    logits = np.eye(6, dtype=np.float32)[np.maximum(label, 0)] * 9  # no known image is taken for another class
    run.__dict__["predictions"] = {**run.predictions, "logits": logits}
    open_address(browser, write_report(run, tmp_path / "page.html"))
    assert browser.find_element("css selector", "#kinds [aria-pressed=true]").text != "mistakes"
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
    page = write_table_report(collect([runs[0].path.parent]), "some runs", tmp_path / "page.html")
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
    assert "medic++ over erm" in browser.find_element("id", "comparison").text
    assert "over the seeds of one target" in browser.find_element("id", "comparison").text
    assert "model selection" not in browser.find_element("id", "notes").text
    browser.find_element("css selector", "#rule option:last-child").click()
    assert "model selection: evaluation" in browser.find_element("id", "notes").text
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert requests(browser) == [page.as_uri()]


def test_one_pair_is_compared_without_an_interval(browser, runs, tmp_path):
    page = write_table_report(collect(run.path for run in runs[::2]), "runs", tmp_path / "page.html")
    open_address(browser, page)
    titles = [head.text for head in browser.find_elements("css selector", "#grid thead th")]
    assert titles[:4] == ["method", "Acc", "H-score", "OSCR"]  # of a single target, all metrics are columns
    text = browser.find_element("id", "comparison").text
    assert "One run each" in text
    base, other = (100 * run.metrics["oscr"] for run in runs[::2])
    assert f"OSCR {'−' if other < base else '+'}{abs(other - base):.2f} – – 1 pair" in text


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


def test_a_closed_set_and_many_classes(browser, runs, tmp_path):
    """Without unknown images nothing is rejected; of many classes the most confused ones are shown."""
    run = runs[-1]
    known = [f"class {number}" for number in range(60)]
    kept = run.predictions["label"] >= 0
    arrays = {name: values[kept] for name, values in run.predictions.items()}
    number = np.arange(kept.sum())
    arrays |= {"label": number % 60, "logits": np.eye(60, dtype=np.float32)[(number + (number % 5 == 0)) % 60]}
    run.__dict__ |= {"predictions": arrays, "settings": {**run.settings, "known": known}}
    open_address(browser, write_report(run, tmp_path / "page.html"))
    assert "30 classes with the most errors, of 60" in browser.find_element("id", "matrix-note").text
    assert len(browser.find_elements("css selector", "#matrix tbody tr")) == 30
    assert "unknown" not in browser.find_element("id", "matrix").text
    assert len(browser.find_elements("css selector", "#classes tbody tr")) == 61
    target = arrays["split"] == "target"
    mistakes = int((target & (arrays["label"] != arrays["logits"].argmax(1))).sum())
    assert browser.find_element("id", "shown").text == f"Showing {min(mistakes, 24)} of {mistakes}."
    browser.find_element("css selector", "#label option:nth-child(2)").click()
    assert {card.text.splitlines()[0] for card in browser.find_elements("css selector", "#gallery li")} == {
        "is " + browser.find_element("css selector", "#label option:nth-child(2)").text
    }
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_any_two_rows_are_compared(browser, tmp_path):
    """The script tests over targets, with seeds averaged, as scipy does."""
    draw = np.random.default_rng(0).uniform(0.2, 0.9, (42, 3, 2))
    for row, column, seed in np.ndindex(draw.shape):
        method, target = f"m{row:02}", "abc"[column]
        label = f"{method}{target}{seed}"
        write_run(tmp_path / "runs", label, method, target, seed, (draw[row, column, seed], 0.1), asked={})
    page = write_table_report(collect([tmp_path / "runs"]), "runs", tmp_path / "page.html")
    open_address(browser, page, 390)
    for name, number in (("base", 40), ("other", 41)):
        browser.find_element("css selector", f"#{name} option[value='{number}']").click()
    difference = 100 * (draw[41] - draw[40]).mean(1)
    test = scipy.stats.ttest_1samp(difference, 0)
    low, high = test.confidence_interval(0.95)
    found = browser.execute_script("return tested(differences(table.rows[40], table.rows[41], 0))")
    expected = {"difference": difference.mean(), "low": low, "high": high, "p": test.pvalue}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert "over targets" in browser.find_element("id", "comparison").text
    assert "3 targets" in browser.find_element("css selector", "#comparison tbody").text
    for freedom in (1, 2, 3, 8, 29):
        quantile = browser.execute_script(f"return quantile(0.95, {freedom})")
        assert quantile == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-9)
    assert browser.execute_script(INSIDE, browser.find_element("css selector", "#grid tbody td"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
