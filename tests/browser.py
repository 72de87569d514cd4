"""A headless browser for tests of pages."""

import json
import shutil

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="session")
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


def open_address(browser, address, width=1280, dark=False):
    """Open an address or a file, and forget what the browser has logged before."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    for kind in ("performance", "browser"):
        browser.get_log(kind)
    browser.get(address if isinstance(address, str) else address.as_uri())


def requests(browser):
    """The addresses that the page has asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "blob:"))]


BEYOND = """
const outside = (node) => !node.closest(".wide :not(.wide)") && node.getBoundingClientRect().right > innerWidth + 0.5;
const root = document.scrollingElement, wide = root.scrollWidth > innerWidth ? [root] : [];
return [...wide, ...[...document.querySelectorAll("body *")].filter(outside)].map((node) => node.outerHTML);
"""


def beyond_the_screen(browser):
    """Return the elements that reach beyond the right edge. The content of a box that scrolls may."""
    return browser.execute_script(BEYOND)
