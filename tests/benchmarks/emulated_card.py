"""`python -m tests.benchmarks.emulated_card`: the five minutes of `benchmarks.gpu --pace` without a card, in seconds.

An emulated card is a thread with a queue of kernels that sleep; its host sleeps while it asks for them. A profile is
taken of it as of a card, host and card apart; a plan that keeps activations and one that recomputes are run on it, and
held against their predictions, on two clocks and by the card alone.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

from benchmarks.gpu_runs import make_plan
from benchmarks.two_clocks import clocked_actions, play_alone
from planner.judge.host_pace import MOST_AHEAD
from planner.judge.reading import Reading
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device
from profiles.host_times import HostTime
from profiles.model_profile import FULL, Edge, Layer, LayerCost, ModelProfile

KIND, MICROBATCHES, REPETITIONS, STEPS = "emulated", 4, 5, 4

Kernels = tuple[tuple[float, float], ...]
"""Milliseconds of the host before it has asked for a kernel, and of the kernel."""


class EmulatedLayer(NamedTuple):
    """What a layer asks for, by action; recomputation asks for F again."""

    name: str
    kernels: dict[str, Kernels]


LAYERS = (
    EmulatedLayer("routed", {"F": ((4.0, 0.5),) * 2, "I": ((5.0, 0.5),) * 2, "W": ((2.0, 1.0),)}),
    EmulatedLayer("dense", {"F": ((0.3, 3.0),), "I": ((0.3, 3.0),), "W": ((0.3, 2.0),)}),
    EmulatedLayer("routed2", {"F": ((4.0, 0.5),) * 2, "I": ((5.0, 0.5),) * 2, "W": ((2.0, 1.0),)}),
    EmulatedLayer("head", {"F": ((0.3, 4.0),), "I": ((0.3, 3.0),), "W": ((0.3, 3.0),)}),
)
"""Two whose host is slower, two whose card is."""


class EmulatedCard:
    """A thread that works through a queue; used in a `with` block, which ends it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (kernel := self._queue.get()) is not None:
            kernel()

    def ask(self, milliseconds: float) -> None:
        """Queue a kernel."""
        self._queue.put(lambda: time.sleep(milliseconds / 1e3))

    def mark(self) -> "Mark":
        """Queue an event."""
        mark = Mark()
        self._queue.put(mark.set)
        return mark


class Mark:
    """When the card came to it."""

    def __init__(self) -> None:
        self._is_set, self._at_ns = threading.Event(), 0

    def set(self) -> None:
        """Note the time."""
        self._at_ns = time.perf_counter_ns()
        self._is_set.set()

    def wait(self) -> int:
        """Until it is reached; when that was, in ns."""
        self._is_set.wait()
        return self._at_ns


def ask_for(card: EmulatedCard, kernels: Kernels) -> None:
    """What a layer's call does: the host works, a kernel is asked for, and so on."""
    for asking, working in kernels:
        time.sleep(asking / 1e3)
        card.ask(working)


def measure(card: EmulatedCard, kernels: Kernels) -> tuple[int, int]:
    """What the host takes to ask, and the card, which other work keeps busy meanwhile; the least of all, in ns."""
    asked, worked = [], []
    for _ in range(REPETITIONS):
        card.ask(1.5 * sum(asking for asking, _ in kernels) + 1)
        begin, started = card.mark(), time.perf_counter_ns()
        ask_for(card, kernels)
        asked.append(time.perf_counter_ns() - started)
        worked.append(card.mark().wait() - begin.wait())
    return min(asked), min(worked)


def profile_card(card: EmulatedCard) -> ModelProfile:
    """The layers as `pipeplan profile` would state them."""
    layers = []
    for layer in LAYERS:
        taken = {action: measure(card, kernels) for action, kernels in layer.kernels.items()} | {
            "B": measure(card, layer.kernels["I"] + layer.kernels["W"])
        }
        work = {action: card_ns for action, (_, card_ns) in taken.items()}
        asked = {action: host_ns for action, (host_ns, _) in taken.items()} | {FULL: taken["F"][0]}
        cost = LayerCost(
            device_type=KIND,
            forward_ns=work["F"],
            input_grad_ns=work["I"],
            weight_grad_ns=work["W"],
            backward_ns=min(work["B"], work["I"] + work["W"]),
            recompute_ns=work["F"],
            host=tuple(HostTime(action=action, host_ns=ns) for action, ns in asked.items()),
        )
        layers.append(Layer(name=layer.name, costs=(cost,), parameter_bytes=1, state_bytes=4))
    edges = tuple(Edge(producer=a.name, consumer=b.name, bytes=0) for a, b in pairwise(LAYERS))
    return ModelProfile(name="emulated", layers=tuple(layers), edges=edges)


def run(card: EmulatedCard, plan: Plan) -> int:
    """An iteration as the executor runs it, two actions ahead at most; from its begin to the last end, in ns."""
    kernels = {layer.name: layer.kernels for layer in LAYERS}
    begin, ends = time.perf_counter_ns(), list[Mark]()
    for action in plan.schedule["d0"]:
        if len(ends) > MOST_AHEAD:
            ends[-MOST_AHEAD - 1].wait()
        stage = plan.stages[action.stage]
        for name in stage.layers if action.kind == "F" else stage.layers[::-1]:
            ask_for(card, _kernels_of(kernels[name], stage, kind=action.kind))
        ends.append(card.mark())
    return ends[-1].wait() - begin


def _kernels_of(own: dict[str, Kernels], stage: Stage, *, kind: str) -> Kernels:
    if kind == "F":
        return own["F"]
    return (own["F"] if stage.recompute else ()) + own["I"] + own["W"]


class Row(NamedTuple):
    """A plan and what became of it."""

    name: str
    executed_ns: int
    two_clocks_ns: int
    card_ns: int


def compare() -> list[Row]:
    """The plan that keeps, and the one that recomputes."""
    device = Device(name="d0", type=KIND, memory_bytes=2**30)
    rows = []
    with EmulatedCard() as card:
        problem = Problem(
            profile=profile_card(card),
            cluster=Cluster(name="emulated", devices=(device,), links=()),
            num_microbatches=MICROBATCHES,
            options=Options(recompute=True, recompute_in_turn=True),
        )
        for name, recompute in (("kept", False), ("recomputed", True)):
            plan = make_plan(problem, recompute=recompute)
            actions = clocked_actions(Reading(problem, plan))
            order = [f"{action.stage}{action.kind}" for action in plan.schedule["d0"]]
            executed = min(run(card, plan) for _ in range(STEPS))
            card_ns = sum(actions[each].card for each in order)
            rows.append(Row(name, executed, play_alone(order, actions)[-1].end, card_ns))
    return rows


def render(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = ["| plan | executed ms | executed / two clocks | / card alone |", "|---|---|---|---|"]
    for row in rows:
        ratios = [f"{row.executed_ns / ns:.3f}" for ns in (row.two_clocks_ns, row.card_ns)]
        lines.append(f"| {row.name} | {row.executed_ns / 1e6:.1f} | {' | '.join(ratios)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render(compare()))
