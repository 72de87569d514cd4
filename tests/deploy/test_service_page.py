"""The page of the service in a real browser: choose images, read the decision, move the threshold."""

import dataclasses
import math
import re

import pytest

pytest.importorskip("fastapi")

from medic.openset import Threshold
from tests.browser import needs_browser, open_address, requests
from tests.deploy.served import Service

pytestmark = needs_browser

DROP = """
const [name, bytes] = arguments, transfer = new DataTransfer();
transfer.items.add(new File([new Uint8Array(bytes)], name));
document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true}));
"""
MOVE = """
const slider = document.getElementById("slider");
slider.value = arguments[0];
slider.dispatchEvent(new Event("input", {bubbles: true}));
"""


def cards(browser, count):
    """The cards of the page, once it has this many answers."""
    from selenium.webdriver.support.ui import WebDriverWait

    chosen = "#list li:not(.waiting)"
    WebDriverWait(browser, 20).until(lambda _: len(browser.find_elements("css selector", chosen)) == count)
    return browser.find_elements("css selector", chosen)


BAR = """
const [card] = arguments, box = (name) => card.querySelector(name).getBoundingClientRect(), scale = box(".scale");
return [box("i").width / scale.width, (box("b").left - scale.left) / scale.width];
"""


def label(card):
    return card.find_element("css selector", ".label").text


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_images_are_named(browser, trained, images, tmp_path, width, dark):
    paths = sorted(images.glob("z/*/*.png"))[::3]
    (tmp_path / "bad <b>.png").write_bytes(b"no image")
    expected = trained.predictor.predict(paths)
    with Service(trained.predictor) as service:
        open_address(browser, service.url, width, dark)
        about = browser.find_element("id", "about").text
        assert ", ".join(trained.predictor.classes) in about
        threshold = float(re.search(r"at least ([\d.]+\d)", about)[1])
        assert threshold == pytest.approx(trained.predictor.display_threshold, abs=1e-3)
        chosen = [*paths, tmp_path / "bad <b>.png"]
        browser.find_element("id", "files").send_keys("\n".join(map(str, chosen)))
        listed = cards(browser, len(chosen))
        for card, prediction in zip(listed, expected, strict=False):
            assert label(card) == prediction.label
            assert float(re.search(r"score (\S+)", card.text)[1]) == pytest.approx(prediction.score, rel=1e-2, abs=1e-3)
            nearest = [cell.text for cell in card.find_elements("css selector", "td:first-child")]
            assert nearest == [name for name, _ in prediction.top]
        assert "not in a supported image format" in label(listed[-1])
        assert "bad <b>.png" in listed[-1].text
        browser.execute_script(DROP, "dropped.png", list(paths[0].read_bytes()))
        assert label(cards(browser, len(chosen) + 1)[-1]) == expected[0].label
        browser.save_screenshot(str(tmp_path / "page.png"))

        browser.execute_script(MOVE, 16)
        assert {label(card) for card in listed[:-1]} == {"unknown"}
        browser.execute_script(MOVE, -16)
        assert [label(card) for card in listed[:-1]] == [prediction.top[0][0] for prediction in expected]
        assert browser.find_element("id", "known").text == str(len(paths) + 1)
        browser.find_element("id", "reset").click()
        assert [label(card) for card in listed[:-1]] == [prediction.label for prediction in expected]
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        addresses = set(requests(browser))
        assert addresses == {f"{service.url}/", f"{service.url}/predict?top=5"}
        severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert all("422" in message for message in severe)  # the browser itself reports the bad image
        assert len(severe) == 1
        browser.find_element("id", "clear").click()
        assert browser.find_elements("css selector", "#list li") == []


def test_bars_have_the_scale_of_the_score(browser, trained, images):
    """A probability of 0.36 fills a third of its bar, and a threshold of 0.91 is near its end."""
    path = sorted(images.glob("z/*/*.png"))[0]
    for at in (0.36, 0.91):
        chosen = Threshold.of(math.log(at / (1 - at)), "fixed", True)
        predictor = dataclasses.replace(trained.predictor, threshold=chosen)
        with Service(predictor) as service:
            open_address(browser, service.url, 390, False)
            browser.find_element("id", "files").send_keys(str(path))
            (card,) = cards(browser, 1)
            (prediction,) = predictor.predict(path)
            assert browser.execute_script(BAR, card) == pytest.approx([prediction.score, at], abs=0.01)
            browser.execute_script(MOVE, math.log(0.25 / 0.75))
            assert browser.execute_script(BAR, card) == pytest.approx([prediction.score, 0.25], abs=0.01)


def test_a_token_is_asked_for(browser, trained, images):
    path = sorted(images.glob("z/*/*.png"))[0]
    with Service(trained.predictor, token="secret") as service:
        open_address(browser, service.url, 390, False)
        assert not browser.find_element("id", "about").is_displayed()
        assert '"classes"' not in browser.page_source
        browser.find_element("id", "files").send_keys(str(path))
        assert "token" in label(cards(browser, 1)[0])
        browser.find_element("id", "token").send_keys("secret")
        browser.find_element("id", "files").send_keys(str(path))
        assert label(cards(browser, 2)[1]) == trained.predictor.predict(path)[0].label
