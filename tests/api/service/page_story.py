"""What the docs show of the page: the looks of a plan, and a stranger's first ten minutes, step by step."""

import base64
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from api.client import Client
from api.inputs import make_problem, read_workload
from planner.progress import Limits
from tests.api.service.browsers import SLIDERS_ARE_DRAWN, look_at, screenshot
from tests.api.service.test_page import DROP, DROP_BYTES, TRACE

DEMOS = ("resnet50-two-hosts", "gpt-1.5b-zero-bubble")
SIZES = {"light": (1440, 2300), "dark": (1440, 1300), "phone": (390, 1500), "wide": (2560, 1960)}
"""Looks of the page: the dark one follows a dark system, the others a light one."""

WINDOW = {"width": 1200, "height": 860, "deviceScaleFactor": 1, "mobile": False}
DEMO = "vgg16-ethernet"


def plan_demos(url: str, *, seconds: float) -> list[str]:
    """Their ids, once they are planned."""
    client, found = Client(url), []
    for name in DEMOS:
        problem = make_problem(read_workload(f"demo:{name}", cluster=None), num_microbatches=None)
        found.append(client.plan(problem, limits=Limits(time_limit_s=seconds))["id"])
    return found


def show(browser: Chrome, address: str, *, scheme: str, size: tuple[int, int]) -> None:
    """The address in a window of that size, once everything is drawn."""
    look_at(browser, scheme=scheme, size=size)
    browser.get(address)
    WebDriverWait(browser, 120).until(lambda page: page.execute_script(SLIDERS_ARE_DRAWN))
    time.sleep(0.5)


def take_pictures(browser: Chrome, url: str, *, ids: list[str], folder: Path) -> None:
    """Every look of the demos' plans; pictures of the last one."""
    for look, size in SIZES.items():
        for job in ids:
            show(browser, f"{url}/?plan={job}", scheme=look, size=size)
        (folder / f"page-{look}.webp").write_bytes(screenshot(browser))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@dataclass
class Story:
    """What happened, and its picture."""

    browser: Chrome
    pictures: Path
    rows: list[tuple[str, str]] = field(default_factory=list)

    def tell(self, done: str, *, read: str, picture: str | None = None, at: str | None = None) -> None:
        """A step: what was done, and where to read what the page says to it."""
        if at is not None:
            self.browser.execute_script("document.querySelector(arguments[0]).scrollIntoView({block: 'start'})", at)
            time.sleep(1.0)
        said = self.text(read)
        if picture is not None:
            self.shoot(picture)
        self.rows.append((done, said))

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
