"""Beside ELF, where memory is scarce: `python -m benchmarks.recomputed_chains --elf PYTHON [--seconds S] -o FILE`.

PYTHON has `elf-pipeline==0.1.0`, PuLP and torch; without it the table is ours alone.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import orders
from benchmarks.report import Table, make_parser, plan_and_check
from planner.planning import Limits
from planner.problem import Problem
from profiles.model_profile import Layer, LayerCost

STASH = 10
"""Units of a microbatch that is kept; half of them wait for W."""

SIZES = ((4, 8), (4, 16), (8, 16), (8, 32), (16, 32))
"""Stages and microbatches."""


def make_chain(times: Sequence[Sequence[int]], *, num_microbatches: int, kept: int) -> Problem:
    """One stage per device with these F, I and W, and room for `kept` microbatches; one that recomputes leaves none."""
    layers = [_layer(f"stage-{number}", *own) for number, own in enumerate(times)]
    choices = {"recompute": True, "recompute_microbatches": True}
    return orders.make_chain(layers, num_microbatches=num_microbatches, memory_bytes=kept * STASH, **choices)


def _layer(name: str, forward: int, returning: int, rest: int) -> Layer:
    cost = LayerCost(device_type="gpu", forward_ns=forward, input_grad_ns=returning, weight_grad_ns=rest)
    return Layer(
        name=name, costs=(replace(cost, recompute_ns=forward),), parameter_bytes=1, state_bytes=0,
        stash_bytes=STASH, weight_stash_bytes=STASH // 2, checkpoint_bytes=0,
    )  # fmt: skip


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Equal stages, and uneven ones, with room for one microbatch up to as many as there are stages."""
    for stages, count in SIZES[:1] if quick else SIZES:
        rng = Random(stages)
        uneven = [[rng.randint(8, 12) for _ in "FIW"] for _ in range(stages)]
        for name, times in (("equal", [[10, 10, 10]] * stages), ("uneven", uneven)):
            for kept in sorted({1, 2, 3, stages // 2, 3 * stages // 4, stages}):
                yield {"stages": name, "times": times, "microbatches": count, "kept": kept}


def ask_elf(python: Path | None, questions: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """ELF's answers; empty ones without ELF."""
    if python is None:
        yield from ({} for _ in questions)
        return
    script = Path(__file__).with_name("elf_orders.py")
    for question in questions:
        said = subprocess.run(
            [str(python), str(script)], input=json.dumps([question]), capture_output=True, text=True, check=True
        )
        yield json.loads(said.stdout.splitlines()[-1])


def main() -> None:
    """Print the table, and write it to `-o`."""
    parser = make_parser(__doc__)
    parser.add_argument("--elf", type=Path, help="a Python with elf-pipeline")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of our plans")
    given = parser.parse_args()
    preface = (
        "# Recomputation per microbatch, beside ELF",
        "",
        "One stage per device, recomputation takes as long as F, transfers are free, room for K microbatches. Best "
        f"makespan of ELF's four orders, each solved to its end, and of a plan of {given.seconds:g} s. 'Claimed': "
        "what a solver says no plan is below; 'certified': what a certificate proves.",
        "",
    )
    header = ("p", "m", "stages", "K", "ELF", "s", "ours", "ours / ELF", "certified", "gap", "claimed")
    table = Table(preface=preface, header=header, output=given.output)
    asked, met = list(rows(quick=given.quick)), 0
    for row, answer in zip(asked, ask_elf(given.elf, asked), strict=True):
        problem = make_chain(row["times"], num_microbatches=row["microbatches"], kept=row["kept"])
        planned = plan_and_check(problem, Limits(time_limit_s=given.seconds))
        assert planned.is_verified
        evidence = planned.evidence
        ours, bound = evidence.makespan_ns, evidence.lower_bound_ns
        rival = answer.get("makespan")
        ratio = None if rival is None else ours / rival
        met += ratio is None or ratio <= 1
        table.add(
            (
                str(len(row["times"])), str(row["microbatches"]), row["stages"], str(row["kept"]),
                "" if rival is None else f"{rival:g}", str(answer.get("seconds", "")), str(ours),
                "" if ratio is None else f"{ratio:.3f}", str(bound), f"{(ours - bound) / ours:.1%}",
                str(evidence.solver_bound_ns or ""),
            )
        )  # fmt: skip
    table.close(f"At most ELF's in {met} of {len(asked)} rows.")


if __name__ == "__main__":
    main()
