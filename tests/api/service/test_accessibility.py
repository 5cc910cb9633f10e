"""Every view of the page under axe-core, in a real headless browser: light and dark, wide and on a phone."""

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from api.doctor import make_toy_problem
from planner.progress import Limits
from profiles.load import load_workload
from profiles.workload import dump_workload
from tests.api.service.browsers import SLIDERS_ARE_DRAWN, findings, look_at, open_browser
from tests.api.service.servers import Running
from tests.api.service.test_http import request
from tests.api.service.test_page import DROP, DROP_BYTES, IS_DARK, TRACE, press, says, wait_for, wait_until_it_listens
from tests.long_runs import long_only, shortened

PARSERS = Path(os.environ.get("PIPEPLAN_PARSERS", Path(__file__).parents[3] / ".parsers"))
AXE = PARSERS / "axe_playwright_python" / "axe.min.js"
"""axe-core as a package of Python brings it along; `make parsers` fetches it."""

WIDE, PHONE = (1440, 900), (390, 800)
LOOKS = (("light", PHONE), ("dark", WIDE), ("light", WIDE), ("dark", PHONE))
"""Colour scheme and size of the window; `make test` asks for one of the first two, in turns."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A service with plans, and the page of it."""

    browser: Chrome
    running: Running
    plan: str
    """Of devices that have prices, and microbatches that can be cut."""
    other: str
    """Of the same question with other microbatches."""

    def open(self, query: str) -> Chrome:
        """The page at an address, once it listens."""
        self.browser.get(f"{self.running.url}/{query}")
        wait_until_it_listens(self.browser)
        return self.browser

    def open_plan(self, more: str = "") -> Chrome:
        """The page of the plan, once its picture is drawn."""
        page = self.open(f"?plan={self.plan}{more}")
        wait_for(page, lambda page: page.find_elements(By.ID, "picture"))
        wait_for(page, says("#headline", "to spare"))
        return page


@pytest.fixture(scope="module")
def scene(running: Running) -> Iterator[Scene]:
    toy, limits = make_toy_problem(), Limits(time_limit_s=20.0, max_rounds=1)
    devices = tuple(replace(device, price_per_hour=2.5) for device in toy.cluster.devices)
    profile = replace(toy.profile, microbatch_size=4)
    asked = replace(toy, profile=profile, cluster=replace(toy.cluster, devices=devices), num_microbatches=4)
    client = running.client()
    plans = [client.plan(problem, limits=limits)["id"] for problem in (asked, replace(asked, num_microbatches=7))]
    with open_browser() as browser:
        yield Scene(browser=browser, running=running, plan=plans[0], other=plans[1])


def show_start(scene: Scene) -> None:
    page = scene.open("")
    wait_for(page, lambda page: page.find_elements(By.CSS_SELECTOR, "#welcome-demos button"))


def show_plan(scene: Scene) -> None:
    page = scene.open_plan()
    wait_for(page, lambda page: page.find_elements(By.CSS_SELECTOR, "#pareto-body rect.certain"))


def show_what_if(scene: Scene) -> None:
    page = scene.open_plan("&memory=-1&batch=1&microbatches=-1")
    page.execute_script("document.getElementById('what-if').scrollIntoView()")
    wait_for(page, says("#what-if-body .answer", "At least "))
    wait_for(page, lambda page: page.execute_script(SLIDERS_ARE_DRAWN))


def show_money(scene: Scene) -> None:
    page = scene.open_plan("&axis=money")
    wait_for(page, says("#pareto-body svg", "per hour"))


def show_baseline(scene: Scene) -> None:
    page = scene.open_plan()
    press(page, "button.bar-line", Keys.ENTER)
    wait_for(page, lambda page: "plan B runs" in page.find_element(By.ID, "picture").get_attribute("aria-label"))


def show_difference(scene: Scene) -> None:
    page = scene.open_plan(f"&against={scene.other}")
    wait_for(page, says("#difference-body", "microbatches"))


def show_trace(scene: Scene) -> None:
    page = scene.open("")
    page.execute_script(DROP_BYTES, TRACE.name, base64.b64encode(TRACE.read_bytes()).decode())
    wait_for(page, says("#headline", "a step as it ran; "))


def show_file(scene: Scene) -> None:
    """The plan as a file that is not the one that the service keeps."""
    saved = json.loads(request(scene.running, "GET", f"/v1/plans/{scene.plan}/plan")[2])
    page = scene.open("")
    page.execute_script(DROP, "plan.json", json.dumps(saved, indent=1))
    wait_for(page, says("#plan-state", "checked"))


def show_refusal(scene: Scene) -> None:
    page = scene.open("")
    page.execute_script(DROP, "bad.json", '{"workload": {"format": "pipeline-workload/1", "profile": {}}}')
    wait_for(page, says("#refusal", "profile"))


def show_lost(scene: Scene) -> None:
    page = scene.open(f"?plan={'0' * 32}")
    wait_for(page, lambda page: page.execute_script("return document.body.dataset.view") == "lost")


def show_keys(scene: Scene) -> None:
    page = scene.open_plan()
    press(page, "#help-open", Keys.ENTER)
    wait_for(page, lambda page: page.find_element(By.ID, "help").is_displayed())


def show_search(scene: Scene) -> None:
    """A search that goes on, once it has told of some plans."""
    body = json.loads(dump_workload(load_workload("demo:vgg16-ethernet")))
    order = {"workload": body, "limits": {"time_limit_s": 600, "threads": 1}}
    job = json.loads(request(scene.running, "POST", "/v1/plans", order)[2])["id"]
    page = scene.open(f"?plan={job}")
    wait_for(page, says("#headline", "So far: "))
    wait_for(page, says("#search-body", "after "))


def show_history(scene: Scene) -> None:
    """The same search, stopped, and its first plan."""
    show_search(scene)
    page = scene.browser
    wait_for(page, lambda page: page.find_element(By.ID, "scrubber").is_displayed())
    press(page, "#stop", Keys.ENTER)
    wait_for(page, says("#plan-state", "succeeded"))
    press(page, "#scrub", Keys.HOME)
    wait_for(page, says("#scrub-words", "plan 1 of"))


VIEWS: dict[str, Callable[[Scene], None]] = {
    "start": show_start,
    "plan": show_plan,
    "what-if": show_what_if,
    "time against money": show_money,
    "baseline beside": show_baseline,
    "difference": show_difference,
    "trace": show_trace,
    "plan in a file": show_file,
    "refusal": show_refusal,
    "no such plan": show_lost,
    "keys": show_keys,
    "search": show_search,
    "history": show_history,
}
OFTEN = ("plan", "what-if", "difference", "trace", "refusal")
"""Those with most to see; the others are made of parts of these, or search for a model that takes a while."""

needs_axe = pytest.mark.skipif(not AXE.exists(), reason="make parsers fetches axe-core")


def looks_of(view: str) -> Sequence[tuple[str, tuple[int, int]]]:
    """Those in which a view is asked for."""
    return shortened(LOOKS[list(VIEWS).index(view) % 2 :][:1], whole=LOOKS)


@needs_axe
@pytest.mark.parametrize("view", [pytest.param(view, marks=() if view in OFTEN else long_only) for view in VIEWS])
def test_axe_finds_nothing(scene: Scene, view: str):
    """Tests that axe-core has nothing to complain about in any view, whatever the theme and the width."""
    look_at(scene.browser, scheme="light", size=WIDE)
    VIEWS[view](scene)
    for scheme, size in looks_of(view):
        look_at(scene.browser, scheme=scheme, size=size)
        wait_for(scene.browser, lambda page, dark=scheme == "dark": page.execute_script(IS_DARK) is dark)
        assert findings(scene.browser, AXE.read_text()) == [], (scheme, size)
    forget_searches(scene)


def forget_searches(scene: Scene) -> None:
    """No search goes on when the next view is shown."""
    scene.browser.get("about:blank")
    client = scene.running.client()
    for job in client.jobs():
        if job["state"] not in ("succeeded", "failed"):
            client.delete(job["id"])


@needs_axe
def test_axe_finds_what_is_wrong(scene: Scene):
    """Tests that a picture without words and letters that are too pale are found: that the others can fail."""
    page = scene.open_plan()
    page.execute_script(
        "document.getElementById('headline').style.color = 'transparent';"
        "document.getElementById('subtitle').append(new Image());"
    )
    found: list[Any] = findings(page, AXE.read_text())
    assert "image-alt" in {rule for rule, *_ in found}
