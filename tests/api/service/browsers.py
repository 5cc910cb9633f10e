"""A real headless browser for tests of page and picture: started, looked at, photographed, judged by axe-core."""

import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")

QUALITY = 65
"""Of pictures for the docs, per cent: each stays below 200 kB."""

SLIDERS_ARE_DRAWN = """
const strips = [...document.querySelectorAll(".strip")];
return strips.length > 0 && strips.every((strip) => strip.children.length);
"""


@contextmanager
def open_browser(*, width: int = 1440, height: int = 1000) -> Iterator[Chrome]:
    """Debian's chromium without a screen, with a profile of its own and no network."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ChromeOptions()
        options.binary_location = str(CHROMIUM)
        switches = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
        for switch in (*switches.split(), "disable-component-update", "disable-sync", "hide-scrollbars"):
            options.add_argument(f"--{switch}")
        options.add_argument(f"--window-size={width},{height}")
        options.add_argument(f"--user-data-dir={folder}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = Chrome(options=options, service=ChromeService(str(DRIVER)))
        try:
            yield browser
        finally:
            browser.quit()


def look_at(browser: Chrome, *, scheme: str, size: tuple[int, int]) -> None:
    """A theme, and a window of a size."""
    features = [{"name": "prefers-color-scheme", "value": "dark" if scheme == "dark" else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def screenshot(browser: Chrome) -> bytes:
    """What can be seen, as WebP."""
    made = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    return base64.b64decode(made["data"])


def findings(browser: Chrome, axe: str) -> list[Any]:
    """What axe-core finds on the page that is open: rule, impact, places."""
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    found = browser.execute_async_script("const done = arguments[0]; axe.run(document, {}).then(done)")
    return [(rule["id"], rule["impact"], [node["target"] for node in rule["nodes"]]) for rule in found["violations"]]
