"""The service's page, in a real headless browser: pictures for the docs, time to the first paint, frames per second.

python -m benchmarks.page --pictures docs/images        plans two demos, then paints them in every look of `SIZES`
python -m benchmarks.page --axe PATH/axe.min.js         also asks axe-core (npm pack axe-core@4.10.3) for findings
"""

import argparse
import base64
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

from api.client import Client
from api.inputs import make_problem, read_workload
from api.service.serving import make_server
from api.settings import ClientLimits, Settings
from api.viewer import render_picture
from benchmarks.viewer import make_wide, open_browser
from planner.progress import Limits
from planner.simulation.simulate import simulate
from tests.free_ports import free_port

DEMOS = ("resnet50-two-hosts", "gpt-1.5b-zero-bubble")
QUALITY = 65
"""Of pictures for the docs, per cent: each stays below 200 kB."""

SIZES = {"light": (1440, 2300), "dark": (1440, 1300), "phone": (390, 1500), "wide": (2560, 1960)}
"""Looks of the page: the dark one follows a dark system, the others a light one."""

SLIDERS_ARE_DRAWN = """
const strips = [...document.querySelectorAll(".strip")];
return strips.length > 0 && strips.every((strip) => strip.children.length);
"""
FIRST_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
FRAMES = """
const done = arguments[0], canvas = document.getElementById("picture");
let frames = 0;
const begin = performance.now();
function frame(now) {
    if (++frames > 120) return done([frames, 1000 * (frames - 1) / (now - begin)]);
    const way = frames % 40 < 20 ? -1 : 1;
    canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: 60 * way, clientX: 700, clientY: 400, cancelable: true}));
    requestAnimationFrame(frame);
}
requestAnimationFrame(frame);
"""


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Without keys, on a free port."""
    port = free_port()
    settings = Settings(data=folder, needs_keys=False, traffic=ClientLimits())
    server = make_server(settings, host="127.0.0.1", port=port)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


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


def take_pictures(browser: Chrome, url: str, *, ids: list[str], folder: Path | None, axe: str | None = None) -> None:
    """Every look of the demos' plans; pictures of the last one, and what axe-core finds in all, if it is given."""
    for look, size in SIZES.items():
        for name, job in zip(DEMOS, ids, strict=True):
            show(browser, f"{url}/?plan={job}", scheme=look, size=size)
            if axe is not None:
                print(f"axe, {name}, {look}:", findings(browser, axe) or "no findings")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"page-{look}.webp").write_bytes(screenshot(browser))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def first_paints(browser: Chrome, url: str) -> list[float]:
    """Milliseconds from navigation on, sorted."""
    found = []
    for _ in range(9):
        browser.get(f"{url}/")
        found.append(WebDriverWait(browser, 20).until(lambda page: page.execute_script(FIRST_PAINT)))
    return sorted(found)


def frames_per_s(browser: Chrome, folder: Path) -> tuple[int, float, float]:
    """Rectangles, frames per second while zooming with the wheel, and milliseconds of the main thread per frame."""
    problem, plan = make_wide(64, 260)
    timeline = simulate(problem, plan)
    path = folder / "wide.html"
    path.write_text(render_picture(problem, plan, timeline=timeline), encoding="utf-8")
    browser.get(path.as_uri())
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    before = task_s(browser)
    frames, per_s = browser.execute_async_script(FRAMES)
    each_ms = 1000 * (task_s(browser) - before) / frames
    return sum(map(len, timeline.actions.values())), per_s, each_ms


def task_s(browser: Chrome) -> float:
    """Processor time of the page's main thread so far."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def findings(browser: Chrome, axe: str) -> list[Any]:
    """What axe-core finds on the page that is open: rule, impact, places."""
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    found = browser.execute_async_script("const done = arguments[0]; axe.run(document, {}).then(done)")
    return [(rule["id"], rule["impact"], [node["target"] for node in rule["nodes"]]) for rule in found["violations"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--axe", type=Path)
    parser.add_argument("--no-plans", action="store_true", help="only first paint and frames")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, service(Path(folder)) as url:
        ids = [] if given.no_plans else plan_demos(url, seconds=given.seconds)
        with open_browser() as browser:
            if ids:
                axe = None if given.axe is None else given.axe.read_text()
                take_pictures(browser, url, ids=ids, folder=given.pictures, axe=axe)
            paints = first_paints(browser, url)
            print(f"first paint: median {paints[len(paints) // 2]:.0f} ms, longest {paints[-1]:.0f} ms")
            count, per_s, each_ms = frames_per_s(browser, Path(folder))
            print(f"{count:,} rectangles, zooming: {per_s:.0f} frames per second, {each_ms:.1f} ms of a core per frame")


if __name__ == "__main__":
    main()
