"""Every method's schedule as text: equal times, no time on links, four devices.

The drawings of GPipe, 1F1B, interleaved 1F1B and the zero-bubble methods H1, H2, V and automatic came with the first
baselines and were compared with the papers' figures then. The others were drawn by this code when the method was added:
they show what a change alters, no more. That each is a pipeline, and what memory it takes, is read off the text.
"""

import re
from pathlib import Path
from typing import NamedTuple

from benchmarks.zero_bubble import METHOD_OF, Setting, make_problem, play
from planner.baselines.layouts import LOOPED
from planner.simulation.drawing import draw_schedule

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NUM_DEVICES = 4

MORE_THAN_1F1B = {"GPipe", "breadth-first", "interleaved 1F1B", "interleaved ZB", "ZB-H2", "ZB automatic"}
"""The methods that hold more than one microbatch per device on some device."""


class Box(NamedTuple):
    """An action in a drawing, in ticks."""

    device: int
    start: int
    end: int


def golden(method: str, num_microbatches: int) -> str:
    """The drawing as it was kept."""
    name = method.lower().replace(" ", "-")
    return (GOLDEN / f"{name}-s4-m{num_microbatches}.txt").read_text(encoding="utf-8")


def read(text: str, *, is_looped: bool) -> dict[tuple[str, int, int], Box]:
    """The boxes of a drawing by kind, stage and microbatch; each must be there once."""
    found: dict[tuple[str, int, int], Box] = {}
    for device, line in enumerate(text.splitlines()[1:]):
        for match in re.finditer(r"([FIWBfiwb])(\d)(-*)", line.split("| ")[1]):
            letter, microbatch, dashes = match.groups()
            second = NUM_DEVICES + device if is_looped else 2 * NUM_DEVICES - 1 - device
            key = letter.upper(), device if letter.isupper() else second, int(microbatch)
            assert key not in found
            found[key] = Box(device, match.start() // 3, match.start() // 3 + 1 + len(dashes) // 3)
    return found


def most_held(boxes: dict[tuple[str, int, int], Box], *, device: int) -> int:
    """The most microbatches of its stages that a device holds, each from its F to the end of its B or W."""
    taken = [(box.start, 1) for (kind, *_), box in boxes.items() if box.device == device and kind == "F"]
    given = [(box.end, -1) for (kind, *_), box in boxes.items() if box.device == device and kind in "BW"]
    held = most = 0
    for _, change in sorted(taken + given):
        held += change
        most = max(most, held)
    return most


def drawing(method: str, num_microbatches: int) -> str:
    """F = I = W = 1 tick per stage, or half that per stage where a device has two; memory as the method is given it."""
    setting = Setting(
        model="unit",
        hidden_size=0,
        num_heads=0,
        num_devices=4,
        num_microbatches=num_microbatches,
        forward_us=1,
        input_grad_us=1,
        weight_grad_us=1,
        transfer_us=0,
    )
    problem = make_problem(setting, limit=2 if method == "ZB automatic" else 1)
    return draw_schedule(play(problem, method), tick_ns=1000 // METHOD_OF[method].placement.chunks)


def require_as_kept(method: str) -> None:
    """The method's schedules are the ones in its golden files, and pipelines that fit, by the text alone."""
    for num_microbatches in (4, 8):
        assert drawing(method, num_microbatches) == golden(method, num_microbatches)
        _require_pipeline(method, num_microbatches)


def _require_pipeline(method: str, num_microbatches: int) -> None:
    """Each action comes after what it waits for, and fits."""
    boxes = read(golden(method, num_microbatches), is_looped=METHOD_OF[method].placement is LOOPED)
    num_stages = NUM_DEVICES * METHOD_OF[method].placement.chunks
    for microbatch in range(num_microbatches):
        back = "B" if ("B", 0, microbatch) in boxes else "I"
        for stage in range(num_stages):
            forward, backward = boxes["F", stage, microbatch], boxes[back, stage, microbatch]
            assert stage == 0 or boxes["F", stage - 1, microbatch].end <= forward.start
            after = forward if stage == num_stages - 1 else boxes[back, stage + 1, microbatch]
            assert max(forward.end, after.end) <= backward.start
            assert back == "B" or backward.end <= boxes["W", stage, microbatch].start
    assert len(boxes) == num_stages * num_microbatches * (2 if back == "B" else 3)
    held = max(most_held(boxes, device=device) for device in range(NUM_DEVICES))
    limit = num_stages if method not in MORE_THAN_1F1B else 2 * num_stages
    assert held <= (num_stages * num_microbatches if method in {"GPipe", "breadth-first"} else limit)
