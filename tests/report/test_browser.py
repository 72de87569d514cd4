"""The reports in a real browser: what a reader drags, sorts and opens."""

import json
import shutil

import pytest

import medic
from medic import openset
from medic.report.run_page import write_report
from medic.report.table_page import write_table_report
from medic.tables.results import collect

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def open_page(browser, path, width=1280, dark=False):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("performance")
    browser.get(path.as_uri())


def requests(browser):
    """The addresses that the page has asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


@pytest.fixture
def runs(mini, four_runs):
    found = [medic.Run(path) for path in four_runs(mini).iterdir()]
    return sorted(found, key=lambda run: (run.settings["method"], run.settings["seed"]))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_run(browser, runs, tmp_path, width, dark):
    """Dragging the threshold gives the numbers of `openset.hscore` there."""
    from selenium.webdriver import ActionChains

    run = runs[-1]
    open_page(browser, write_report(run, tmp_path / "page.html"), width, dark)
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
        assert browser.find_elements("css selector", "#gallery li")
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert requests(browser) == [(tmp_path / "page.html").as_uri()]


def test_the_keyboard_moves_the_threshold(browser, runs, tmp_path):
    open_page(browser, write_report(runs[-1], tmp_path / "page.html"))
    slider = browser.find_element("id", "slider")
    before = browser.find_element("id", "threshold").get_attribute("data-threshold")
    slider.send_keys("\ue014")  # the right arrow
    assert float(browser.find_element("id", "threshold").get_attribute("data-threshold")) > float(before)
    browser.find_element("id", "reset").click()
    assert browser.find_element("id", "threshold").get_attribute("data-threshold") == before


def test_a_name_is_text(browser, runs, tmp_path, monkeypatch):
    run = runs[-1]
    names = run.predictions["class"].astype("U40")
    names[names == "7"] = "<img src=x onerror=alert(1)>"
    monkeypatch.setitem(run.__dict__, "predictions", {**run.predictions, "class": names})
    open_page(browser, write_report(run, tmp_path / "page.html"))
    assert "<img src=x onerror=alert(1)>" in browser.find_element("id", "classes").text
    assert requests(browser) == [(tmp_path / "page.html").as_uri()]


def test_a_folder(browser, runs, tmp_path):
    page = write_table_report(collect([runs[0].path.parent]), "some runs", tmp_path / "page.html")
    open_page(browser, page)

    def labels():
        return [cell.text for cell in browser.find_elements("css selector", "#grid tbody th")]

    assert labels() == ["erm", "medic++"]
    browser.find_element("css selector", "#grid thead th:first-child button").click()
    browser.find_element("css selector", "#grid thead th:first-child button").click()
    assert labels() == ["medic++", "erm"]
    browser.find_element("id", "filter").send_keys("medic")
    assert labels() == ["medic++"]
    browser.find_element("css selector", "#grid tbody td button").click()
    listed = browser.find_element("id", "runs-list").text
    assert all(run.path.name in listed for run in runs[2:])
    assert not any(run.path.name in listed for run in runs[:2])
    browser.find_element("id", "close").click()
    assert "medic++ over erm" in browser.find_element("id", "comparison").text
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert requests(browser) == [page.as_uri()]
