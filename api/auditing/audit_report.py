"""An audit as data, and as words."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from api.auditing.audit_flags import dropped_flags, flags_of, letters_of_rank, shown_stages
from api.auditing.better_degrees import BetterDegrees, degree_flags, name_of
from api.auditing.configuration_audit import Audit, PlayedRun
from api.formatting import render_bytes, render_of_limit, render_percent
from planner.simulation.explain import DeviceTime
from profiles.configurations.megatron_layout import shortened
from profiles.estimates.composed_profile import shares

_DENSE_ERRORS = {
    ("a100_sxm", "bf16"): (109, 1.14, 5.4, 47), ("b200_sxm", "bf16"): (24, 1.06, 3.7, 8),
    ("h100_sxm", "fp8"): (7, 1.17, 2.7, 15), ("gb200", "fp8"): (5, 1.11, 2.6, 6), ("gb300", "fp8"): (5, 1.09, 1.9, 4),
    ("gb200", "fp8_block"): (9, 1.18, 1.4, 4), ("gb300", "fp8_block"): (9, 1.11, 1.9, 31),
    ("gb200", "nvfp4"): (9, 1.04, 5.6, 11), ("gb300", "nvfp4"): (9, 1.0, 4.0, 7),
}  # fmt: skip
"""Of dense models by GPU and precision, as in docs/tables/estimate-errors.json: rows, measured over estimated time on
the median, and the error in percent once that factor is counted, on the median and at worst."""

_EXPERT_ERRORS = {
    ("h100_sxm", "bf16"): (8, 1.51, 5.0, 24), ("h100_sxm", "fp8"): (9, 1.21, 1.3, 41),
    ("b200_sxm", "bf16"): (4, 1.05, 2.6, 22), ("b200_sxm", "fp8_block"): (10, 1.11, 1.8, 16),
    ("b300_sxm", "bf16"): (4, 1.3, 0.7, 38), ("b300_sxm", "fp8_block"): (15, 1.24, 8.8, 46),
    ("gb200", "bf16"): (4, 1.63, 0.6, 5), ("gb200", "fp8_block"): (23, 1.21, 2.4, 26),
    ("gb300", "bf16"): (4, 1.47, 0.4, 1), ("gb300", "fp8_block"): (24, 1.18, 3.4, 23),
}  # fmt: skip
"""The same of models with experts."""

_PRECISIONS = {"bf16": "bf16", "fp8": "FP8", "fp8_block": "MXFP8", "nvfp4": "NVFP4"}
"""As pages name them."""

_MEMORY_ERROR = (
    "peaks of 24 iterations of dense models measured on B200 were 1.00 times their estimate on the median, "
    "0.99 to 1.01 at worst"
)
"""By docs/benchmarks/audits.md."""

_DEGREES = ("tensor", "context", "experts", "pipeline", "data")
WHERE_FROM = {
    "row": "come from measured rows",
    "interpolated": "are interpolated",
    "assumed": "are assumed",
    "measured": "come from the profile",
}

WAITS = {
    "fill_ns": "before its first microbatch",
    "others_ns": "for other ranks",
    "transfer_ns": "for messages",
    "link_ns": "for busy links",
    "memory_ns": "for memory",
    "order_ns": "for its order",
    "drain_ns": "at the end",
}


def summarise_audit(audit: Audit) -> dict[str, Any]:
    """Everything that was found, for programs."""
    run, played = audit.audited.run, audit.played
    better = audit.better
    return {
        "event": "done",
        "verdict": audit.verdict,
        "refusals": list(audit.refusals),
        "configuration": _configuration(audit),
        "run": None if played is None else _played(audit, played),
        "ranks": [] if played is None else _ranks(audit, played),
        "fits_with": None if audit.fitting is None else _played(audit, audit.fitting),
        "better": None if better is None or better.evidence is None else {
            "time_ns": better.evidence.makespan_ns,
            "peak_bytes": max(better.evidence.peak_bytes.values()),
            "stages": len(better.stages),
            "flags": list(flags_of(audit.audited, better)),
            "drop": list(dropped_flags(audit.audited, better)),
        },
        "slower": None if audit.at_least is None else {
            "at_least_percent": _lower_bound(audit.at_least),
            "at_most_percent": None if audit.at_most is None else _ceiling(audit.at_most),
        },
        "degrees": None if audit.degrees is None else _degrees(audit, audit.degrees),
        "lower_bound_ns": audit.lower_bound_ns,
        "certificate_checked": audit.is_checked,
        "nothing_fits": audit.is_infeasible,
        "time_from": time_from(audit),
        "times_rest_on": audit.audited.origin,
        "error": error_of(audit),
        "memory_error": _memory_error_of(audit),
        **{name: list(value) for name, value in asdict(run.notes).items() if name != "refusals"},
    }  # fmt: skip


def _degrees(audit: Audit, found: BetterDegrees) -> dict[str, Any]:
    run, evidence = found.audited.run, found.plan.evidence
    assert evidence is not None
    return {
        **{name: getattr(run, name) for name in _DEGREES},
        "time_ns": evidence.makespan_ns,
        "peak_bytes": max(evidence.peak_bytes.values()),
        "flags": [*degree_flags(run, before=audit.audited.run), *flags_of(found.audited, found.plan)],
        "drop": list(dropped_flags(audit.audited, found.plan)),
        "lower_bound_ns": found.lower_bound_ns,
        "looked_at": found.looked_at,
        "impossible": found.impossible,
        "planned": found.planned,
    }


def time_from(audit: Audit) -> dict[str, float]:
    """Shares of the blocks' time by where they are from."""
    if not audit.audited.figures:
        return {"measured": 1.0}
    blocks = [figure for figure in audit.audited.figures if figure.layer.startswith("block")]
    return {source: round(part, 4) for source, part in shares(blocks).items()}


def error_of(audit: Audit) -> str:
    """What is known of how far estimates of this kind are from runs."""
    name = audit.audited.sheet.name
    if not audit.audited.figures:
        return "layers as measured; what a run takes beside them is not known"
    run = audit.audited.run
    is_mixture, gpu = run.shape.mixture is not None, shown_gpu(name)
    models = "hybrid models" if run.shape.pattern else "models with experts" if is_mixture else "dense models"
    known = (_EXPERT_ERRORS if is_mixture else _DENSE_ERRORS).get((name, run.dtype))
    if run.shape.pattern or known is None:
        return f"no measured iterations of {models} in {_PRECISIONS[run.dtype]} on {gpu} have been compared"
    rows, factor, median, worst = known
    is_fitted = time_from(audit)["assumed"] == 1
    by_tables = " (by the measured tables; rates fitted to them: benchmarks/achieved_rates.py)" if is_fitted else ""
    return (
        f"{rows} iterations of {models} in {_PRECISIONS[run.dtype]} measured on {gpu} took {factor} times their "
        f"estimate on the median; once that is counted, estimates are {median} % off on the median, "
        f"{worst} % at worst{by_tables}"
    )


def _memory_error_of(audit: Audit) -> str:
    """What is known of how far estimated peaks are from measured ones."""
    if audit.audited.run.shape.mixture is not None or audit.audited.run.shape.pattern:
        return "no measured peaks of models with experts, or of hybrid ones, have been compared"
    is_near = audit.audited.sheet.name == "b200_sxm" and audit.audited.run.dtype == "bf16"
    return _MEMORY_ERROR if is_near else f"{_MEMORY_ERROR}; others have not been compared"


def shown_gpu(name: str) -> str:
    """`H100` of `h100_sxm`."""
    return name.removesuffix("_sxm").upper()


def _lower_bound(part: float) -> float:
    return int(part * 1000) / 10


def _ceiling(part: float) -> float:
    return -int(-part * 1000 // 1) / 10


def _configuration(audit: Audit) -> dict[str, Any]:
    run = audit.audited.run
    return {
        "program": run.program,
        "model": run.shape.name,
        "gpu": audit.audited.sheet.name,
        "reserved_bytes": audit.audited.problem.cluster.devices[0].reserved_bytes,
        "network_bytes_per_s": audit.audited.sheet.outside,
        "devices": run.devices,
        **{name: getattr(run, name) for name in _DEGREES},
        "stages_per_rank": run.chunks,
        "layout": shortened("|".join(shown_stages(run))) if run.stages else None,
        "order": run.order,
        "micro_batch": run.micro_batch,
        "global_batch": run.global_batch,
        "microbatches": run.num_microbatches,
        "sequence": run.sequence,
        "dtype": run.dtype,
        "recompute": None if run.recompute is None else run.recompute.blocks or "all",
        "shards": run.shards,
    }


def _played(audit: Audit, played: PlayedRun) -> dict[str, Any]:
    run, time_ns = audit.audited.run, played.timeline.makespan_ns
    return {
        "time_ns": time_ns,
        "tokens_per_s_per_device": round(run.global_batch * run.sequence / (time_ns / 1e9) / run.devices, 1),
        "bubble": round(played.timeline.bubble, 4),
        "peak_bytes": max(played.timeline.peak_bytes.values()),
        "recompute_blocks": None if played.recompute is None else played.recompute.blocks or "all",
    }


def _ranks(audit: Audit, played: PlayedRun) -> list[dict[str, Any]]:
    assert audit.explanation is not None
    cluster, total = audit.audited.problem.cluster.by_name, audit.explanation.makespan_ns
    return [
        {
            "rank": number,
            "stages": list(letters_of_rank(audit.audited.run, number)),
            "peak_bytes": played.timeline.peak_bytes[time.device],
            "limit_bytes": cluster[time.device].usable_bytes,
            "work": round(time.work_ns / total, 4),
            "waits": {name.removesuffix("_ns"): round(getattr(time, name) / total, 4) for name in WAITS},
        }
        for number, time in enumerate(sorted(audit.explanation.devices, key=lambda each: int(each.device[4:])))
    ]


def render_audit(audit: Audit) -> str:
    """The audit as text for people."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    run = audit.audited.run
    yield (
        f"{run.program}: {run.shape.name} on {run.devices} {shown_gpu(audit.audited.sheet.name)} "
        f"(tensor {run.tensor}, context {run.context}, pipeline {run.pipeline} x {run.chunks}, data {run.data}), "
        f"{run.num_microbatches} microbatches of {run.micro_batch} x {run.sequence} tokens, {run.dtype}"
    )
    yield from _verdict(audit)
    if audit.played is not None:
        yield from _time(audit, audit.played)
    yield from _better(audit)
    if audit.degrees is not None:
        yield from _other_degrees(_degrees(audit, audit.degrees), name_of(audit.degrees.audited.run))
    yield from _basis(audit)


def _verdict(audit: Audit) -> Iterator[str]:
    if audit.verdict == "does not start":
        yield "DOES NOT START:"
        yield from (f"  {reason}" for reason in audit.refusals)
    elif audit.played is not None and audit.played.over_bytes:
        worst = max(audit.played.over_bytes.items(), key=lambda each: each[1])[0]
        peak, limit = audit.played.timeline.peak_bytes[worst], audit.audited.problem.cluster.by_name[worst].usable_bytes
        needed = f"{render_bytes(peak)} ({peak / 1e9:.1f} GB)"
        yield f"DOES NOT FIT: {worst} needs {needed}, and {render_bytes(limit)} are usable"
        if (fitting := audit.fitting) is not None:
            yield f"  {_recomputing(fitting)} it fits, and takes {seconds(fitting.timeline.makespan_ns)}"
    else:
        yield "RUNS"


def _recomputing(played: PlayedRun) -> str:
    blocks = None if played.recompute is None else played.recompute.blocks
    what = "every block" if blocks is None else "the first block" if blocks == 1 else f"the first {blocks} blocks"
    return f"with {what} of every stage recomputed"


def seconds(nanoseconds: int) -> str:
    """`30.6 s`, `0.85 s`."""
    return f"{nanoseconds / 1e9:.3g} s" if nanoseconds < 10**11 else f"{nanoseconds / 1e9:.0f} s"


def _time(audit: Audit, played: PlayedRun) -> Iterator[str]:
    said = _played(audit, played)
    fits = "" if audit.verdict == "runs" else " if it fitted"
    yield (
        f"  an iteration takes {seconds(said['time_ns'])}{fits}, {said['tokens_per_s_per_device']:,.0f} tokens/s per "
        f"GPU, bubble {100 * said['bubble']:.1f} %"
    )
    yield "  rank   work  waits                                  memory              stages"
    assert audit.explanation is not None
    times = {time.device: time for time in audit.explanation.devices}
    for rank in _ranks(audit, played):
        stages = " | ".join(shortened(stage) for stage in rank["stages"])
        waits = _waiting(times[f"rank{rank['rank']}"], played)
        yield (
            f"  {rank['rank']:>4} {100 * rank['work']:5.1f}%  {waits:<38} "
            f"{render_of_limit(rank['peak_bytes'], rank['limit_bytes']):<19} {_cut(stages)}"
        )
    busiest = max(_ranks(audit, played), key=lambda rank: rank["work"])["rank"]
    idlest = min(_ranks(audit, played), key=lambda rank: rank["work"])["rank"]
    if busiest != idlest:
        yield f"  rank {busiest} has the most work; rank {idlest} waits most"


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _waiting(time: DeviceTime, played: PlayedRun) -> str:
    total = played.timeline.makespan_ns
    parts = sorted(((getattr(time, name), what) for name, what in WAITS.items()), reverse=True)
    return ", ".join(f"{100 * part / total:.0f}% {what}" for part, what in parts[:1] if part > total / 200)


def _better(audit: Audit) -> Iterator[str]:
    better = audit.better
    if audit.is_infeasible:
        what = "cut and recomputation" if audit.audited.problem.options.recompute else "cut"
        yield f"NOTHING FITS at these degrees, whatever the {what}: use more ranks, or shard more"
        return
    if better is None or better.evidence is None:
        yield "no other plan was found in the time limit; give more (--time-limit)"
        return
    if audit.at_least is not None:
        most = "" if audit.at_most is None else f" and at most {_ceiling(audit.at_most):.1f} %"
        yield f"at least {_lower_bound(audit.at_least):.1f} %{most} slower than the best possible at these degrees"
    bound, best = audit.lower_bound_ns or 0, better.evidence.makespan_ns
    gap = render_percent(1 - bound / best)
    yield (
        f"best found: {seconds(best)}; none can take less than {seconds(bound)}: gap {gap} "
        f"({'certificate checked' if audit.is_checked else 'not certified'})"
    )
    if audit.at_least is None or audit.at_least >= 0.001:
        peak = max(better.evidence.peak_bytes.values())
        yield f"flags for it ({render_bytes(peak)} on the fullest rank):"
        flags = flags_of(audit.audited, better)
        yield from (f"    {line}" for line in flags)
        if any("schedule.csv" in line for line in flags):
            yield "  schedule.csv is written with -o FOLDER, and by `pipeplan export torchtitan`"
        yield from (f"  without {name}" for name in dropped_flags(audit.audited, better))


def _other_degrees(found: dict[str, Any], name: str) -> Iterator[str]:
    least = "" if found["lower_bound_ns"] is None else f"; none can take less than {seconds(found['lower_bound_ns'])}"
    yield (
        f"best of {found['looked_at']} choices of degrees: {name}, {seconds(found['time_ns'])}{least} "
        f"({found['impossible']} cannot fit, {found['planned']} were planned for)"
    )
    yield f"flags for it ({render_bytes(found['peak_bytes'])} on the fullest rank):"
    yield from (f"    {line}" for line in found["flags"])
    yield from (f"  without {name}" for name in found["drop"])


def _basis(audit: Audit) -> Iterator[str]:
    parts, run, sheet = time_from(audit), audit.audited.run, audit.audited.sheet
    told = ", ".join(f"{100 * part:.0f} % {WHERE_FROM[source]}" for source, part in parts.items())
    yield f"what the certificate does not cover: of the blocks' time {told}"
    yield f"  times: {audit.audited.origin}; {error_of(audit)}"
    yield f"  memory: {_memory_error_of(audit)}"
    device = audit.audited.problem.cluster.devices[0]
    reserve = f"{render_bytes(device.reserved_bytes or 0)} of a GPU kept by its runtime"
    network = f"{sheet.outside / 1e9:g} GB/s of a GPU to other nodes"
    if sheet.is_stated:
        yield f"  network: {network}, as stated"
    is_assumed = run.devices > sheet.node and not sheet.is_stated
    for title, entries in (
        ("assumed, not stated", [*run.notes.assumed, reserve, *([network] if is_assumed else [])]),
        ("read, but not in the estimate", run.notes.not_counted),
        ("under conditions that are not met, left out", run.notes.left_out),
        ("NOT KNOWN", run.notes.unknown),
    ):
        if entries:
            yield f"{title}: {'; '.join(entry[:160] for entry in entries)}"
