"""Whether a plan is a pipeline, why, and the best of every other kind beside it."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from api.formatting import ABSENT, render_ms, render_percent, render_ratio
from api.reporting.plain_names import render_program, render_remark, render_schedule
from api.reporting.screen_table import figures, make_table
from planner.baselines.best_of_kinds import (
    KINDS,
    ONE_PROCESS,
    OWN,
    Kind,
    KindResult,
    best_of_kinds,
    kind_of_stages,
    why_no_replicas,
)
from planner.export.targets import TARGETS
from planner.plan import Plan
from planner.problem import Problem

_SECONDS = 2.0
"""Most that the other kinds may take to be found; then smaller microbatches are left out."""

_LABELS: dict[Kind, str] = {
    "one process": "one process",
    "data parallel at once": "DDP, the batch at once",
    "data parallel, accumulating": "DDP, accumulating",
    "fully sharded": "FSDP2 (fully sharded)",
    "pipeline": "pipeline",
    "mixed": "pipeline with replicas",
}

_PIPELINES: tuple[Kind, ...] = ("pipeline", "mixed")
_REPLICATED: tuple[Kind, ...] = ("data parallel at once", "data parallel, accumulating")


def render_kinds(problem: Problem, plan: Plan, *, program: str) -> Iterator[RenderableType]:
    """A line that says why the plan is (not) a pipeline, and a row for the best of each kind.

    Nothing where microbatches differ in size.
    """
    best = _find(problem, plan, program=program)
    ours = kind_of_stages(plan.stages, num_microbatches=problem.num_microbatches)
    if ours not in best:
        return
    yield Text(why_this_kind(best, ours))
    table = make_table("best of its kind", *figures("ms", "vs ours", "microbatches", "memory"), "")
    for kind in KINDS:
        style = "bold green" if kind == ours else "" if kind in best else "dim"
        found = best.get(kind)
        cells = _absent(kind, problem, program=program) if found is None else _cells(found, best[ours], program=program)
        table.add_row(_LABELS[kind], *cells, style=style)
    yield table
    yield ""


def summarise_kinds(problem: Problem, plan: Plan, *, program: str) -> list[dict[str, Any]]:
    """The same as data, times in nanoseconds."""
    return [
        {
            "kind": kind,
            "name": found.row.name,
            "makespan_ns": found.row.makespan_ns,
            "num_microbatches": found.problem.num_microbatches,
            "microbatch_size": found.problem.profile.microbatch_size,
            "peak_fraction": found.row.peak_fraction,
            "fits_memory": found.row.fits_memory,
            "note": _note(found, program=program),
        }
        for kind, found in _find(problem, plan, program=program).items()
    ]


def _find(problem: Problem, plan: Plan, *, program: str) -> dict[Kind, KindResult]:
    started, fit = time.monotonic(), TARGETS[program].fit
    return best_of_kinds(problem, plan, fit=fit, has_time=lambda: time.monotonic() - started < _SECONDS)


def why_this_kind(best: Mapping[Kind, KindResult], ours: Kind) -> str:
    """One line: what the plan is, and what the nearest other way to share the work among devices costs."""
    if ours in _PIPELINES:
        return f"a pipeline: {_why_no_copies(best, best[ours])}"
    if ours == "one process":
        return f"one process, no pipeline: {_against(best, best[ours], kinds=(*_REPLICATED, *_PIPELINES))}"
    if ours == "fully sharded":
        what = "weights, gradients and optimizer state are divided among all devices"
        return f"fully sharded data parallel, no pipeline: {what}; {_against(best, best[ours], kinds=_PIPELINES)}"
    row = best[ours].row
    wait = render_ms((row.makespan_ns or 0) - (row.span_ns or 0))
    copies = f"gradients and the optimizer's step add {wait} ms"
    return f"data parallel, no pipeline: {copies}; {_against(best, best[ours], kinds=_PIPELINES)}"


def _against(best: Mapping[Kind, KindResult], ours: KindResult, *, kinds: tuple[Kind, ...]) -> str:
    found = min((best[kind] for kind in kinds if kind in best), key=lambda each: each.rank, default=None)
    what = "pipeline" if kinds == _PIPELINES else "use of several devices"
    if found is None or not found.row.fits_memory:
        return f"no {what} was found that fits into memory"
    idle = f", idle for {render_percent(found.row.bubble)} of it" if found.kind in _PIPELINES else ""
    ratio = render_ratio(found.row.makespan_ns, ours.row.makespan_ns)
    return f"the best {what} found takes {render_ms(found.row.makespan_ns)} ms ({ratio}){idle}"


def _why_no_copies(best: Mapping[Kind, KindResult], ours: KindResult) -> str:
    found = min((best[kind] for kind in _REPLICATED if kind in best), key=lambda each: each.rank, default=None)
    if found is None:
        reason = why_no_replicas(ours.problem) or "there is no room for replicas"
        return f"data parallelism does not apply: {render_remark(reason)}"
    row = found.row
    if not row.fits_memory:
        return f"a copy of the whole model needs {row.peak_fraction or 0:.2f} × the memory of a device"
    if found.breaks:
        return f"data parallelism {found.breaks}"
    wait = render_ms((row.makespan_ns or 0) - (row.span_ns or 0))
    ratio = render_ratio(row.makespan_ns, ours.row.makespan_ns)
    took = f"data parallelism takes {render_ms(row.makespan_ns)} ms ({ratio})"
    return f"{took}, {wait} of them for gradients and the optimizer's step"


def _absent(kind: Kind, problem: Problem, *, program: str) -> Iterator[RenderableType]:
    """No plan of a kind, and why, where that is known."""
    yield from (ABSENT, ABSENT, "", "")
    reason = "" if kind in _PIPELINES else why_no_replicas(problem)
    if reason and problem.options.max_replicas == TARGETS[program].limits.get("max_replicas") == 1:
        takes = "takes it with --fully-shard" if "fully_shard" in TARGETS[program].decisions else "runs no copies"
        reason = f"{render_program(program)} {takes}"
    if not reason and kind == "data parallel at once" and problem.batch is None:
        reason = f"pinned to {problem.num_microbatches} microbatches; --global-batch opens this"
    batch = problem.batch
    if (
        not reason
        and kind == "data parallel, accumulating"
        and batch
        and batch.microbatch_sizes == (batch.global_batch_size,)
    ):
        reason = f"pinned to one microbatch of {batch.global_batch_size}; -b N pins another size"
    yield _remark(render_remark(reason) or "none was found")


def _cells(found: KindResult, ours: KindResult, *, program: str) -> Iterator[RenderableType]:
    row = found.row
    yield render_ms(row.makespan_ns)
    yield render_ratio(row.makespan_ns, ours.row.makespan_ns)
    size = found.problem.profile.microbatch_size
    yield f"{found.problem.num_microbatches}" + ("" if size is None else f" of {size}")
    yield Text(f"{100 * (row.peak_fraction or 0):.0f} %", style="" if row.fits_memory else "red")
    yield _remark(_note(found, program=program))


def _remark(text: str) -> Text:
    return Text(text, style="dim not bold")


def _note(found: KindResult, *, program: str) -> str:
    """Why nobody can take it as it is, or else what made it."""
    if found.row.name == OWN:
        return OWN
    if not found.row.fits_memory:
        return "does not fit into memory"
    if found.refused:
        return f"{render_program(program)} cannot run it: {found.refused}"
    if found.breaks:
        return f"excluded by an option: {found.breaks}"
    return render_schedule(found.row.name) + _unknown_threads(found)


def _unknown_threads(found: KindResult) -> str:
    """Where layers were timed in one thread while the host's other cores were at work: all cores may be quicker."""
    profile, devices = found.problem.profile, found.problem.cluster.by_name
    (group, *_) = found.plan.stages[0].replicas
    cores = sum((each.host or each.name) == (devices[group[0]].host or group[0]) for each in devices.values())
    is_known = found.row.name != ONE_PROCESS or profile.conditions != "busy" or cores == 1
    return "" if is_known else f" of one thread, an estimate; profile --widths 1,{cores} measures all cores"
