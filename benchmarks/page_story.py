"""A stranger's first ten minutes with the page: `pipeplan serve` and a real browser, step by step, with pictures.

What the stranger does is written down here; what the page says, and when, is printed as it happens.

    python -m benchmarks.page_story --pictures docs/images
"""

import argparse
import base64
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from benchmarks.page import SLIDERS_ARE_DRAWN, screenshot
from benchmarks.report import line
from benchmarks.soak_site import SERVICE, SoakSite
from benchmarks.viewer import open_browser
from tests.api.service.test_page import DROP, DROP_BYTES, TRACE

WINDOW = {"width": 1200, "height": 860, "deviceScaleFactor": 1, "mobile": False}
DEMO = "vgg16-ethernet"


@dataclass
class Story:
    """What happened, when, and its picture."""

    browser: Chrome
    pictures: Path
    begin: float = field(default_factory=time.monotonic)
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def tell(self, done: str, *, read: str, picture: str | None = None, at: str | None = None) -> None:
        """A step: what was done, and where to read what the page says to it."""
        if at is not None:
            self.browser.execute_script("document.querySelector(arguments[0]).scrollIntoView({block: 'start'})", at)
            time.sleep(1.0)
        said = self.text(read)
        if picture is not None:
            self.shoot(picture)
        row = (f"{time.monotonic() - self.begin:.0f} s", done, said[:300])
        self.rows.append(row)
        print(line(row), flush=True)

    def shoot(self, name: str) -> None:
        """A picture of what can be seen."""
        (self.pictures / f"story-{name}.webp").write_bytes(screenshot(self.browser))

    def text(self, selector: str) -> str:
        """What stands there."""
        found = self.browser.execute_script("return document.querySelector(arguments[0])?.innerText", selector)
        return re.sub(r"\s+", " ", str(found or "")).strip()

    def until(self, condition: Callable[[Chrome], Any], *, seconds: float = 240.0) -> Any:
        """Wait as a person would."""
        return WebDriverWait(self.browser, seconds, poll_frequency=0.2).until(condition)

    def has(self, selector: str, *words: str) -> None:
        """Wait until it says one of the words."""
        self.until(lambda _: any(word in self.text(selector) for word in words))

    def move(self, selector: str, value: int) -> None:
        """A slider, as if it had been dragged there."""
        script = (
            "const [selector, value] = arguments; const slider = document.querySelector(selector);"
            "slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        self.browser.execute_script(script, selector, value)


def first_plan(story: Story, url: str) -> None:
    """From the empty page to a plan that is found while one watches."""
    story.browser.get(f"{url}/")
    story.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#welcome-demos button"))
    story.tell("opens the address that `pipeplan serve` printed", read=".welcome", picture="1-welcome")
    story.browser.find_element(By.CSS_SELECTOR, f".welcome [data-demo='{DEMO}']").click()
    story.has("#headline", "So far")
    story.tell(f"clicks the demo {DEMO}", read="#headline", picture="2-searching")
    story.has("#plan-state", "succeeded")
    story.until(lambda _: not story.text("#headline").startswith("So far"))
    story.tell("waits for the end of the search", read="#headline", picture="3-plan")


def looks(story: Story) -> None:
    """Baselines, what-ifs, the Pareto plot."""
    bars = story.until(lambda page: page.find_elements(By.CSS_SELECTOR, "button.bar-line"))
    story.browser.execute_script("arguments[0].click()", bars[0])
    story.until(lambda page: "plan B" in str(page.find_element(By.ID, "picture").get_attribute("aria-label")))
    story.tell("opens the first baseline beside it", read="#scrub-words", picture="4-beside", at="#timeline-card")
    story.browser.execute_script("document.getElementById('what-if').scrollIntoView()")
    story.until(lambda page: page.find_elements(By.ID, "wi-memory"))
    story.move("#wi-memory", 1)
    story.has("#what-if-body .answer", "t least", "no such plan")
    story.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#pareto-body rect.certain"))
    story.tell("takes a quarter of the memory away", read="#what-if-body .answer")
    story.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#what-if-body a:not([hidden])"))
    story.until(lambda page: page.execute_script(SLIDERS_ARE_DRAWN))
    done = "leaves the slider there until the solver has ended"
    story.tell(done, read="#what-if-body .answer", picture="5-what-if", at="#what-if")


def drops(story: Story) -> None:
    """A bad file, and a production trace."""
    story.browser.execute_script(DROP, "notes.json", '{"workload": {"format": "pipeline-workload/1", "profile": {}}}')
    story.has("#refusal", "profile")
    story.tell("drops a file that is no workload", read="#refusal")
    story.browser.execute_script(DROP_BYTES, TRACE.name, base64.b64encode(TRACE.read_bytes()).decode())
    story.has("#headline", "a step as it ran")
    story.tell("drops the trace of a production job", read="#headline", picture="6-trace", at="#article")


def live_through(story: Story, url: str) -> None:
    """All of it."""
    story.pictures.mkdir(parents=True, exist_ok=True)
    story.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WINDOW)
    first_plan(story, url)
    looks(story)
    drops(story)
    story.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def main() -> None:
    """With a service of its own, in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, open_browser() as browser:
        site = SoakSite(folder=Path(folder), retention_s=86400.0)
        story = Story(browser, given.pictures)
        site.start(SERVICE)
        try:
            print(f"ready after {site.wait_ready():.0f} s")
            live_through(story, site.url)
        finally:
            site.close()


if __name__ == "__main__":
    main()
