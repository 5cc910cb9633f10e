"""A picture of many devices and microbatches, and how fast a real browser paints it."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome

from planner.baselines.layouts import EVEN
from planner.baselines.registry import METHODS, make_method_plan
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

ZOOM_STEPS = 12


def make_wide(num_devices: int, num_microbatches: int) -> tuple[Problem, Plan]:
    """A chain of unequal layers, one per device, in the order of ZB-H1: stage s runs W s microbatches after its I."""
    problem = Problem(
        profile=make_profile(num_devices), cluster=make_cluster(num_devices), num_microbatches=num_microbatches
    )
    method = next(each for each in METHODS if each.name == "ZB-H1")
    return problem, make_method_plan(CostModel(problem), method, cut=EVEN)


def make_profile(num_layers: int) -> ModelProfile:
    layers = tuple(
        Layer(
            name=f"block.{number}",
            costs=(
                LayerCost(
                    device_type="A100",
                    forward_ns=2_000_000 + 137_000 * (number % 5),
                    input_grad_ns=2_300_000 + 151_000 * (number % 5),
                    weight_grad_ns=1_700_000 + 101_000 * (number % 5),
                ),
            ),
            parameter_bytes=2**26,
            state_bytes=2**30,
            stash_bytes=2**27,
            weight_stash_bytes=2**25,
        )
        for number in range(num_layers)
    )
    edges = tuple(
        Edge(producer=f"block.{number}", consumer=f"block.{number + 1}", bytes=12 * 2**20)
        for number in range(num_layers - 1)
    )
    return ModelProfile(name="wide", layers=layers, edges=edges)


def make_cluster(num_devices: int) -> Cluster:
    devices = tuple(
        Device(name=f"node{number // 8}/gpu{number % 8}", type="A100", memory_bytes=40 * 2**30)
        for number in range(num_devices)
    )
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=25 * 10**9, latency_ns=10_000) for a, b in pairwise(devices)
    )
    return Cluster(name=f"{num_devices} A100", devices=devices, links=links)


def paint_times(browser: Chrome, page: Path, *, tries: int = 3) -> dict[str, float]:
    """The best of a few loads, in milliseconds: from navigation to the first paint, a repaint, a repaint zoomed in."""
    measured: list[dict[str, float]] = []
    for _ in range(tries):
        browser.get(page.as_uri())
        times: dict[str, Any] = {
            "first paint": browser.execute_script("return pipeplanFirstPaintMs"),
            "repaint": browser.execute_script("return pipeplanPaint()"),
        }
        browser.execute_script(
            "for (let i = 0; i < arguments[0]; i++) document.getElementById('zoom-in').click()", ZOOM_STEPS
        )
        times["zoomed repaint"] = browser.execute_script("return pipeplanPaint()")
        measured.append(times)
    return {name: min(times[name] for times in measured) for name in measured[0]}
