"""Certificates made to cost whoever checks them: each is checked soon and in little memory, or refused by its size."""

import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner.bounds.loop import cuts_bound
from planner.bounds.order import windows_bound as windows
from planner.evidence.certificate import _KINDS, check_certificate
from planner.problem import Options, Problem
from tests.long_runs import shortened
from tests.planner.evidence.test_certificate import make_chain

MOST_S, MOST_MB = 2.0, 200
"""Processor time, and memory beyond what was held before."""

BUSY = shortened(2.0, whole=1.0)
"""How much more processor time may be taken where three others compute on the same two cores (measured: 1.2)."""

LAYERS, DEVICES = 40, 8

FAR_NS = 10**9
"""Some times what the plans take: nothing is out of reach there, so that nothing ends early, and 64 bits hold it."""


def chain(num_microbatches: int = 64, **options: Any) -> Problem:
    """Unlike layers on equal devices, with memory that binds nobody: the most that is left open."""
    rng = Random(1)
    times = [tuple(1000 * rng.randint(50, 150) for _ in "FIW") for _ in range(LAYERS)]
    return make_chain(
        times,  # type: ignore[arg-type]
        num_devices=DEVICES,
        num_microbatches=num_microbatches,
        memory=2**34,
        stash=(2**26, 2**24),
        state=2**28,
        gradient=2**20,
        edge_bytes=2**16,
        options=Options(receive_buffers=1, **options),
    )


def placed(num_microbatches: int, **options: Any) -> Problem:
    """Five layers on every device."""
    size = LAYERS // DEVICES
    return chain(
        num_microbatches,
        partition=tuple(tuple(f"l{size * d + n}" for n in range(size)) for d in range(DEVICES)),
        placement=tuple(((f"d{d}",),) for d in range(DEVICES)),
        max_replicas=1,
        **options,
    )


EACH_ALONE = [[f"d{number}"] for number in range(DEVICES)]
SINGLE = {"max_replicas": 1, "max_stages_per_device": 1}
FREE = {"max_stages_per_device": 2}

NEAR_NS = 120_000_000
"""Somewhat above what all work takes: whole plans are few."""


def cases(*, rounds: int) -> list[Any]:
    """As many cases as a packing certificate may have, with so many rounds of prices that show nothing."""
    prices, found = [[0] * (LAYERS + 1)] * rounds, list[Any]()

    def split(place: int, depth: int) -> None:
        found.append([prices, [place, 0] if depth else []])
        for _ in range(2 if depth else 0):
            split(place % (LAYERS - 1) + 1, depth - 1)

    split(LAYERS // 2, 7)
    return found


HOSTILE: list[tuple[str, Problem, Mapping[str, Any]]] = [
    ("work", chain(**FREE), {"weights": {f"type-{number}": 1 for number in range(100_000)}}),
    ("recomputation", chain(recompute=True, **FREE), {"weights": {"gpu": 1 << 40}, "memory_price": 1 << 40}),
    ("layer", chain(**FREE), {"layer": "l0"}),
    ("host", chain(**FREE), {}),
    ("path", chain(**FREE), {}),
    ("pipeline", chain(**FREE), {"price": {"weights": {"gpu": 0}, "memory": 0, "shift": 0}}),
    ("pipeline", chain(**FREE), {"price": {"weights": {"gpu": 1 << 40}, "memory": 1 << 40, "shift": 62}}),
    ("groups", chain(max_stages_per_device=1), {}),
    ("classes", chain(64, **SINGLE), {"classes": EACH_ALONE}),
    ("classes", chain(256, **SINGLE), {"classes": EACH_ALONE}),
    ("packing", chain(**FREE), {"cases": cases(rounds=4)}),
    ("packing", chain(max_replicas=4, **FREE), {"cases": cases(rounds=4)}),
    ("packing", chain(max_replicas=2, **FREE), {"cases": cases(rounds=0)}),
    ("packing", chain(max_replicas=1, **FREE), {"cases": cases(rounds=4), "value_ns": NEAR_NS}),
    ("counting", chain(**SINGLE), {"unit": 1, "special": ["l0", "l1", "l2"]}),
    (
        "loop",
        chain(order="looped", split_backward=False, max_replicas=1, **FREE),
        {"ways": [{"width": 1, "replicas": 1, "unit": 1, "special": ["l0", "l1", "l2"]}]},
    ),
    (
        "loop",
        chain(order="looped", split_backward=False, **FREE),
        {"ways": [{"width": 1, "replicas": r + 1, "unit": 1, "special": ["l0"]} for r in range(DEVICES)]},
    ),
    (
        "cuts",
        chain(order="looped", split_backward=False, max_replicas=1, **FREE),
        {"effort": cuts_bound.MAX_EFFORT},
    ),
    ("cuts", chain(order="looped", split_backward=False, **FREE), {"effort": cuts_bound.MAX_EFFORT}),
    ("schedule", placed(256), {}),
    ("windows", placed(256), {"probes": windows.MAX_PROBES}),
    ("windows", placed(256), {"probes": windows.MAX_PROBED // (DEVICES * 512**2)}),
    ("time-indexed", placed(256, recompute=True), {"cell_ns": 1, "multipliers": [[1, 1]]}),
    ("time-indexed", placed(256, recompute=True), {"cell_ns": 16_000, "multipliers": [[0, 1]] * 100_000}),
    ("refutation", chain(**FREE), {"effort": 2_000_000, "trees": [[0] * 200_000]}),
    ("orders", placed(256), {"rules": 3, "tree": [1] * 99_999 + [0] * 100_000}),
    ("orders", placed(8), {"rules": 3, "tree": [1] * 99_999 + [0] * 100_000}),
    ("shared", chain(**FREE), {"rest": {"kind": "work", "value_ns": 1, "weights": {"gpu": 1}}}),
]


def peak_bytes() -> int:
    """The most memory that this process has held since the last reset."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=[f"{kind}{n}" for n, (kind, _, _) in enumerate(HOSTILE)])
def test_it_costs_little(number: int):
    """Tests that a certificate whose value is far beyond what it proves is refused within 2 s and 200 MB."""
    kind, problem, fields = HOSTILE[number]
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    held, begin = peak_bytes(), time.process_time()
    with pytest.raises(ValueError, match=r"^certificate: "):
        check_certificate(problem, {"kind": kind, "value_ns": FAR_NS, **fields})
    assert time.process_time() - begin < BUSY * MOST_S
    assert peak_bytes() - held < MOST_MB * 2**20


def test_every_kind_is_tried():
    """Tests that no kind of certificate is left out."""
    assert {kind for kind, _, _ in HOSTILE} == set(_KINDS)
