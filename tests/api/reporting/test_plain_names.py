"""Plain names on screens: those of schedules, bounds, parts of the search, options and device types."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from api.reporting.plain_names import (
    SEARCH,
    render_bound,
    render_option,
    render_remark,
    render_schedule,
    render_source,
    render_types,
    render_unmeasured,
)
from planner.baselines.registry import METHODS
from planner.evidence import certificate
from tests.api.worlds import make_problem, make_workload

BOTH = "(balanced stages and transfers)"
TERMS = Path(__file__).parents[3] / "api" / "viewer" / "terms.js"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("data parallel", "data parallel"),
        ("SPP", "synchronous pipeline planner"),
        ("SPP, sharded optimizer", "synchronous pipeline planner, sharded optimizer"),
        ("ZB automatic (even layers)", "zero bubble by heuristic (equal layer counts)"),
        ("capped V (largest stage or transfer minimised)", "V-shaped greedy within memory " + BOTH),
        ("capped loop 1F1B x 3 (even layers)", "looped 1F1B within memory x 3 (equal layer counts)"),
        ("ZB-H1 (even layers), recomputing", "zero bubble H1 (equal layer counts), recomputing"),
        ("1F1B (given)", "1F1B (given)"),
        ("SPP.json", "SPP.json"),
        ("", ""),
    ],
)  # fmt: skip
def test_schedules(name: str, plain: str):
    """Tests that a baseline has a plain name with its cut and additions, and that other names stay."""
    assert render_schedule(name) == plain


def test_no_schedule_is_capped_on_screens():
    """Tests that no method keeps a name that only this project uses."""
    shown = [render_schedule(f"{method.name} (even layers)") for method in METHODS]
    assert not [name for name in shown if "capped" in name or "ZB" in name]
    assert len(set(shown)) == len(shown)


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        ("joint search", "search over everything at once"),
        ("balanced seeds, order search", "evenly divided layers, order search"),
        ("capped 1F1B (even layers)", "1F1B within memory (equal layer counts)"),
    ],
)
def test_sources(names: str, plain: str):
    """Tests that what found a plan is named plainly, be it a part of the search or a baseline."""
    assert render_source(names) == plain


def test_parts_of_the_search_have_one_name():
    """Tests that the command line and the page give the parts of the search the same names."""
    table = TERMS.read_text(encoding="utf-8").partition("const SEARCH = {")[2].partition("};")[0]
    assert dict(re.findall(r'"([^"]+)": "([^"]+)"', table)) == SEARCH


def test_every_bound_has_a_name():
    """Tests that each kind of certificate says what it adds up."""
    kinds = {*certificate._KINDS, *certificate._LISTED}
    assert [kind for kind in kinds if " " not in render_bound(kind)] == []
    assert render_bound("work") == "total work"


@pytest.mark.parametrize(
    ("name", "value", "phrase"),
    [
        ("recompute", True, "may recompute activations"),
        ("split_backward", False, "whole backward passes"),
        ("uneven_replication", False, "equally many replicas of all stages"),
        ("max_width", 4, "up to 4 devices per stage replica"),
        ("receive_buffers", 0, "memory of received tensors is not counted"),
        ("max_replicas", 1, "no replicas"),
        ("receive_buffers", 3, "3 buffers per received tensor"),
        ("synchronisation", "bucketed", "gradients queue with other transfers"),
        ("pinned", [1, 2], "pinned = 2 given"),
        ("unknown", True, "unknown = True"),
    ],
)
def test_options(name: str, value: object, phrase: str):
    """Tests that options beyond the defaults are phrases."""
    assert render_option(name, value) == phrase


def test_device_types():
    """Tests that devices are counted by type, and that reference devices need no name."""
    cluster = make_problem(make_workload()).cluster
    first, second = cluster.devices
    assert render_types(cluster) == "2 × toy"
    both = replace(cluster, devices=(replace(first, type="reference"), replace(second, type="reference")))
    assert render_types(both) == "2 devices"
    mixed = replace(cluster, devices=(replace(first, type="reference"), replace(second, type="reference/0.5")))
    assert render_types(mixed) == "1 device, 1 at 0.5 of that speed"


@pytest.mark.parametrize(
    ("note", "plain"),
    [
        (
            "1 layers on A100 at width 1: scaled to 1/8 of the microbatch",
            "times of 1 layer for 1/8 of a microbatch are assumed to be 1/8 of the whole",
        ),
        (
            "3 layers on A100 at width 2: interpolated to 1/4 of the microbatch",
            "times of 3 layers on 2 devices for 1/4 of a microbatch are interpolated from other sizes",
        ),
        ("anything else", "anything else"),
    ],
)
def test_unmeasured_times(note: str, plain: str):
    """Tests that a time that was not measured is told with where it comes from."""
    assert render_unmeasured(note) == plain


@pytest.mark.parametrize(
    ("note", "plain"),
    [
        ("needs 2 replicas, max_replicas = 1", "needs 2 replicas; at most 1 allowed"),
        ("needs 3 stages per device, max_stages_per_device = 2", "needs 3 stages per device; at most 2 allowed"),
        (
            "a tensor would skip from stage 0 to stage 2, skip_edges = false",
            "a tensor would skip from stage 0 to stage 2, which is not allowed",
        ),
        ("needs split_backward", "needs a backward pass in two parts"),
        ("none of its plans fits into the memory", "none of its plans fits into the memory"),
    ],
)
def test_remarks_name_no_options(note: str, plain: str):
    """Tests that why a baseline does not apply is said without the names of options, and other remarks as they are."""
    assert render_remark(note) == plain
