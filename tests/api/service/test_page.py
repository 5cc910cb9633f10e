"""The page in a real headless browser, its policy on: drop, watch, stop, look, compare, ask what if."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from api.client import workload_document
from api.doctor import make_toy_problem
from benchmarks.viewer import open_browser
from profiles.load import load_workload
from profiles.workload import dump_workload
from tests.api.service.servers import Running, serving

DROP = """
const [name, text] = arguments;
const data = new DataTransfer();
data.items.add(new File([text], name, {type: "application/json"}));
const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
document.getElementById("drop").dispatchEvent(event);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Chrome, running: Running) -> Iterator[Chrome]:
    """The page, opened anew; afterwards nothing may have gone wrong on it."""
    browser.get(f"{running.url}/")
    browser.execute_script("window.errors = []; addEventListener('error', (e) => errors.push(String(e.message)));")
    browser.execute_script("addEventListener('securitypolicyviolation', (e) => errors.push(e.violatedDirective));")
    yield browser
    assert browser.execute_script("return window.errors") == []
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
    assert complaints == []


def wait_for(page: Chrome, condition: Any, seconds: float = 120.0) -> Any:
    return WebDriverWait(page, seconds, poll_frequency=0.1).until(condition)


def figure(page: Chrome, name: str) -> str:
    """The value that stands below a name."""
    for row in page.find_elements(By.CSS_SELECTOR, "#figures div"):
        if row.find_element(By.TAG_NAME, "dt").text == name:
            return row.find_element(By.TAG_NAME, "dd").text
    return ""


def figure_is(name: str, *values: str) -> Any:
    """A condition; the row may be drawn anew at any moment."""

    def is_there(page: Chrome) -> bool:
        text = page.execute_script(
            "return [...document.querySelectorAll('#figures div')]"
            ".filter(d => d.firstChild.textContent === arguments[0]).map(d => d.lastChild.textContent)[0]",
            name,
        )
        return text in values if values else text not in (None, "–")

    return is_there


def test_drop_watch_stop_look(page: Chrome, running: Running):
    """Tests that a dropped file is solved while one watches, can be stopped early, and its picture opened."""
    page.find_element(By.ID, "seconds").clear()
    page.find_element(By.ID, "seconds").send_keys("600")
    page.execute_script(DROP, "vgg.json", dump_workload(load_workload("demo:vgg16-ethernet")))
    wait_for(page, figure_is("State", "running"))
    wait_for(page, figure_is("Makespan ms"))
    wait_for(page, lambda page: page.execute_script("return state.series.some(p => p.incumbent)"))
    page.find_element(By.ID, "stop").click()
    wait_for(page, figure_is("State", "succeeded"))
    assert figure(page, "Stopped by") == "user"
    assert figure(page, "Verdict") == "✓ passed"
    wait_for(page, lambda page: page.find_elements(By.CSS_SELECTOR, "#memory .bar"))
    wait_for(page, lambda page: page.find_elements(By.CSS_SELECTOR, "#topology .device"))
    assert page.find_elements(By.CSS_SELECTOR, "#baselines tbody tr")
    page.find_element(By.ID, "open-picture").click()
    frame = page.find_element(By.ID, "picture")
    wait_for(page, lambda _: frame.is_displayed())
    page.switch_to.frame(frame)
    wait_for(page, lambda page: page.find_elements(By.TAG_NAME, "canvas"))
    page.switch_to.default_content()


def test_compare_and_what_if_by_keyboard(page: Chrome, running: Running):
    """Tests that two plans are compared and a what-if is asked with the keyboard alone."""
    body = {"workload": workload_document(make_toy_problem()), "limits": {"time_limit_s": 20, "max_rounds": 1}}
    for seed in (41, 42):
        page.execute_script(DROP, "toy.json", json.dumps({**body, "limits": {**body["limits"], "seed": seed}}))
        wait_for(page, lambda page: page.execute_script("return state.job && state.job.state") == "succeeded")
        page.execute_script("state.seen = state.job.id; state.job = {...state.job, state: 'left'}")
    page.execute_script("refresh()")
    ids = [job["id"] for job in running.client().jobs()[:2]]
    opener = wait_for(page, lambda page: page.find_element(By.CSS_SELECTOR, f"[data-id='{ids[0]}']"))
    opener.send_keys(Keys.ENTER)
    wait_for(page, lambda page: page.execute_script("return state.job.id") == ids[0])
    page.execute_script(
        "document.querySelector(`[data-id='${arguments[0]}']`).closest('tr').querySelector('[name=beside]').focus()",
        ids[1],
    )
    page.switch_to.active_element.send_keys(Keys.SPACE)
    compare = wait_for(page, lambda page: page.find_element(By.CSS_SELECTOR, "#compare:enabled"))
    compare.send_keys(Keys.ENTER)
    wait_for(page, lambda page: "Side by side" in page.find_element(By.ID, "comparison").text)
    memory = page.find_element(By.ID, "wi-memory")
    memory.send_keys(Keys.ARROW_RIGHT)
    memory.send_keys(Keys.ENTER)
    wait_for(page, lambda page: page.find_element(By.ID, "what-if-answer").text.endswith(" ms"))
    assert "saves" in page.find_element(By.ID, "what-if-answer").text


def test_a_bad_file_is_explained(page: Chrome):
    """Tests that a file that cannot be read is refused with the place, on the page."""
    page.execute_script(DROP, "bad.json", '{"workload": {"format": "pipeline-workload/1", "profile": {}}}')
    wait_for(page, lambda page: "profile" in page.find_element(By.ID, "refusal").text)
    page.get_log("browser")  # type: ignore[no-untyped-call]  the browser notes every 4xx answer


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_light_and_dark(page: Chrome, scheme: str, is_dark: bool):
    """Tests that the page follows the system's scheme."""
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(colour.partition("(")[2].partition(",")[0])
    assert (red < 128) is is_dark


def test_the_picture_with_a_key(browser: Chrome, tmp_path: Path):
    """Tests that with a key the page shows the caller's plans and, by a ticket, the picture; without one, nothing."""
    with serving(tmp_path, needs_keys=True) as running:
        key = running.key("ours")
        body = {"workload": workload_document(make_toy_problem()), "limits": {"time_limit_s": 20, "max_rounds": 1}}
        browser.get(f"{running.url}/")
        wait_for(browser, lambda page: "Bearer" in page.find_element(By.ID, "status").text)
        box = browser.find_element(By.ID, "key")
        box.send_keys(key, Keys.TAB)
        wait_for(browser, lambda page: "recent plans" in page.find_element(By.ID, "status").text)
        browser.execute_script(DROP, "toy.json", json.dumps(body))
        wait_for(browser, figure_is("State", "succeeded"))
        wait_for(browser, lambda page: page.find_elements(By.CSS_SELECTOR, "#memory .bar"))
        browser.find_element(By.ID, "open-picture").click()
        frame = browser.find_element(By.ID, "picture")
        wait_for(browser, lambda _: frame.is_displayed())
        browser.switch_to.frame(frame)
        wait_for(browser, lambda page: page.find_elements(By.TAG_NAME, "canvas"))
        browser.switch_to.default_content()
        browser.get("about:blank")
