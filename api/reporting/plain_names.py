"""Plain names on screens for what documents name briefly: schedules, cuts, bounds, parts of the search, device types.

Documents, options and metrics keep the short names.
"""

import re
from collections import Counter

from planner.decisions.choices import switches
from profiles.cluster import Cluster

_SCHEDULES = {
    "capped greedy": "greedy within memory",
    "capped 1F1B": "1F1B within memory",
    "capped loop 1F1B": "looped 1F1B within memory",
    "capped loop": "looped greedy within memory",
    "capped V 1F1B": "V-shaped 1F1B within memory",
    "capped V": "V-shaped greedy within memory",
    "ZB automatic": "zero bubble by heuristic",
    "ZB-H1": "zero bubble H1",
    "ZB-H2": "zero bubble H2",
    "ZB-V": "zero bubble V",
    "interleaved ZB": "interleaved zero bubble",
    "SPP": "synchronous pipeline planner",
    "OOO fast-forward": "out-of-order backward, fast-forward",
    "OOO modulo": "out-of-order backward, modulo",
}
"""How the names of baselines begin."""

_CUTS = {
    " (even layers)": " (equal layer counts)",
    " (largest stage minimised)": " (balanced stages)",
    " (largest stage or transfer minimised)": " (balanced stages and transfers)",
}
"""How a baseline divides the layers."""

SEARCH = {
    "baselines": "known methods",
    "bound": "proof of a limit",
    "balanced seeds": "evenly divided layers",
    "dynamic programme": "best division of layers",
    "sequential planner": "one decision after the other",
    "stages near the bound": "divisions near the limit",
    "joint search": "search over everything at once",
    "exact search": "complete search",
    "looped layouts": "several stages per device",
}
"""Phases and parts of the search."""

_BOUNDS = {
    "work": "total work",
    "host": "total time of the hosts to ask",
    "recomputation": "total work with recomputation",
    "layer": "slowest layer",
    "path": "one microbatch through all layers",
    "pipeline": "work, fill and drain",
    "schedule": "order of these stages",
    "windows": "order of these stages",
    "time-indexed": "work and memory over time",
    "groups": "devices counted for groups",
    "classes": "work of each device type",
    "packing": "whole stages on whole devices",
    "counting": "layers counted per device",
    "loop": "layers counted per device",
    "cuts": "every cut into looped stages",
    "refutation": "every case ruled out",
    "orders": "every order of these stages ruled out",
    "shared": "shared layers",
    "listed work": "total work",
    "listed layer": "slowest layer",
    "listed path": "the longest microbatch through all layers",
    "dealt": "balanced microbatches",
}
"""What a lower bound adds up."""

_OPTIONS: dict[str, dict[object, str]] = {
    "split_backward": {False: "whole backward passes"},
    "uneven_replication": {False: "equally many replicas of all stages"},
    "skip_edges": {False: "tensors pass between neighbouring stages only"},
    "idle_devices": {False: "every device holds a stage"},
    "synchronisation": {"bucketed": "gradients queue with other transfers"},
    "objective": {
        "span": "minimised: the longest busy stretch of a device",
        "cost": "minimised: the cost of the devices used",
    },
    "max_stages_per_device": {1: "one stage per device", "else": "up to {} stages per device"},
    "max_replicas": {1: "no replicas", "else": "up to {} replicas per stage"},
    "receive_buffers": {0: "memory of received tensors is not counted", "else": "{} buffers per received tensor"},
}
"""Options beside decisions: what their values say."""

_BASELINE = re.compile(r"(.*?)( x \d+)?( \(.*\))?(, .*)?", re.DOTALL)
"""Method, stages per device, cut, and what was added to it."""

_REMARKS = {
    r"needs (.*), max_replicas = (\d+)": r"needs \1; at most \2 allowed",
    r"needs (.*), max_stages_per_device = (\d+)": r"needs \1; at most \2 allowed",
    r"(.*), skip_edges = false": r"\1, which is not allowed",
    r"needs split_backward": "needs a backward pass in two parts",
    r"needs split_placement": "needs gradients on other devices",
    r"needs synchronisation = bucketed": "needs gradients that queue with other transfers",
}
"""Why a baseline does not apply, as documents have it and as screens do."""

_UNMEASURED = re.compile(r"(\d+) layers on .* at width (\d+): (\w+) to (\d+/\d+) of the microbatch")


def render_schedule(name: str) -> str:
    """The plain name of a baseline with its cut, e.g. `zero bubble H1 (balanced stages)`; other names as they are."""
    found = _BASELINE.fullmatch(name)
    assert found is not None, "a pattern whose parts may all be empty"
    method, chunks, cut, more = found.groups(default="")
    return f"{_SCHEDULES.get(method, method)}{chunks}{_CUTS.get(cut, cut)}{more}"


def render_remark(note: str) -> str:
    """Why a baseline does not apply, without names of options."""
    for form, plain in _REMARKS.items():
        if re.fullmatch(form, note):
            return re.sub(form, plain, note)
    return note


def render_source(names: str) -> str:
    """What found a plan: a part of the search, several with commas between them, or a baseline."""
    if names.partition(" (")[0] != names:
        return render_schedule(names)
    return ", ".join(SEARCH.get(name) or render_schedule(name) for name in names.split(", "))


def render_bound(kind: str) -> str:
    """What a lower bound of this kind adds up."""
    return _BOUNDS.get(kind, kind.replace("_", " "))


def render_option(name: str, value: object) -> str:
    """An option beyond the defaults as a phrase."""
    switch = switches().get(name)
    says = "" if switch is None else switch.says if isinstance(switch.says, str) else switch.says.get(value, "")
    if says:
        return says.format(value)
    if isinstance(value, str | int) and (known := _OPTIONS.get(name)):
        return known.get(value, known.get("else", f"{name} = {str(value).lower()}")).format(value)
    return f"{name} = {f'{len(value)} given' if isinstance(value, list) else value}"


def render_types(cluster: Cluster) -> str:
    """The devices of each type: `8 × H100`; or `4 devices, 2 at 0.5 of their speed` where times are of a reference."""
    counts = Counter(device.type for device in cluster.devices)
    return ", ".join(_of_type(counts[kind], kind) for kind in cluster.device_types)


def _of_type(count: int, kind: str) -> str:
    if kind == "reference":
        return f"{count} device{'s' if count > 1 else ''}"
    speed = kind.removeprefix("reference/")
    return f"{count} × {kind}" if speed == kind else f"{count} at {speed} of that speed"


def render_unmeasured(note: str) -> str:
    """Where a time comes from that was not measured: how many layers, and by what it was divided."""
    found = _UNMEASURED.fullmatch(note)
    if found is None:
        return note
    layers, width, source, share = found.groups()
    wide = "" if width == "1" else f" on {width} devices"
    origin = "interpolated from other sizes" if source == "interpolated" else f"assumed to be {share} of the whole"
    plural = "s" if layers != "1" else ""
    return f"times of {layers} layer{plural}{wide} for {share} of a microbatch are {origin}"


def render_program(name: str) -> str:
    """The program that is to run a plan, within a sentence."""
    return "the executor" if name == "executor" else name
