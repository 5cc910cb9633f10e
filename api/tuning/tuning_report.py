"""What `pipeplan tune` says in the end: a table for people, the same as data."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from api.formatting import ABSENT, render_ms, render_percent, render_seconds
from api.reporting.plain_names import render_schedule
from api.reporting.screen_table import figures, make_table
from api.tuning.tuning_loop import Trial, TuningLimits, TuningResult
from planner.plan import Plan

_REASONS = {
    "agreement": "the plan that the planner prefers takes what is predicted, and none that was run is faster",
    "time limit": "the time limit; a longer --time-limit allows more rounds",
    "nothing new": "the planner proposes nothing that has not been run",
    "interrupt": "Ctrl+C; what is chosen is the fastest so far",
}


def describe_stages(plan: Plan) -> str:
    """Stages x replicas, and layers per stage: `2 x 1 (3-5)`; one number per stage where replicas differ."""
    counts = [len(stage.replicas) for stage in plan.stages]
    replicas = str(counts[0]) if len(set(counts)) == 1 else "(" + " ".join(map(str, counts)) + ")"
    return f"{len(counts)} x {replicas} ({'-'.join(str(len(stage.layers)) for stage in plan.stages)})"


def render_result(result: TuningResult, *, limits: TuningLimits, elapsed_s: float) -> RenderableType:
    """The table, what was chosen, and why it ended."""
    return Group(_render_trials(result), "", *_describe(result, limits=limits, elapsed_s=elapsed_s))


def _render_trials(result: TuningResult) -> Table:
    known = figures("predicted", "measured", "runs", "spread", "error", "calibrated", "error", is_whole=False)
    table = make_table("", *figures("round", is_whole=False), "plan", "stages x replicas (layers)", *known)
    for trial in sorted(result.trials, key=lambda each: each.measured_ns or 2**63):
        is_chosen = trial is result.chosen
        table.add_row("✓" if is_chosen else "", *_cells(trial), style="bold green" if is_chosen else "")
    return table


def _cells(trial: Trial) -> list[str]:
    first, now = trial.candidate.predicted_ns, trial.predicted_ns
    return [
        str(trial.round),
        render_schedule(trial.candidate.name),
        describe_stages(trial.candidate.plan),
        render_ms(first),
        "failed" if trial.failure else render_ms(trial.measured_ns),
        str(len(trial.runs)),
        render_percent(trial.spread),
        _signed(trial.error(first)),
        render_ms(now),
        _signed(trial.error(now)),
    ]


def _signed(fraction: float | None) -> str:
    return ABSENT if fraction is None else f"{100 * fraction:+.1f} %"


def _describe(result: TuningResult, *, limits: TuningLimits, elapsed_s: float) -> list[str]:
    chosen = result.chosen
    lines = [
        f"{render_schedule(trial.candidate.name)}: failed: {trial.failure}" for trial in result.trials if trial.failure
    ]
    if chosen.measured_ns is None:
        lines.append("chosen    what the planner prefers; no plan was run to its end, give a longer --time-limit")
    else:
        error = _signed(chosen.error(chosen.predicted_ns))
        lines.append(
            f"chosen    {render_schedule(chosen.candidate.name)}: {render_ms(chosen.measured_ns)} ms measured, "
            f"{render_ms(chosen.predicted_ns)} predicted by the calibrated profile ({error})"
        )
    if chosen.causes:
        lines.append(f"          before its figures were taken over, {chosen.causes}")
    if chosen is not result.preferred:
        preferred = render_schedule(result.preferred.candidate.name)
        lines.append(f"note      the planner still prefers {preferred}; measurements decide")
    if (spread := max((t.spread or 0.0 for t in result.trials), default=0.0)) > limits.within:
        lines.append(
            f"note      runs of one plan differ by up to {render_percent(spread)}, more than --within "
            f"{100 * limits.within:g}: this machine is too noisy for it"
        )
    rounds = f"{result.rounds} round{'s' if result.rounds > 1 else ''}"
    lines.append(f"ended by  {_REASONS[result.stopped_by]}; {rounds}, {render_seconds(elapsed_s)}")
    return lines


def summarise_result(result: TuningResult, *, files: Mapping[str, str], elapsed_s: float) -> dict[str, Any]:
    """Everything as JSON-ready data."""
    return {
        "event": "done",
        "stopped_by": result.stopped_by,
        "rounds": result.rounds,
        "elapsed_s": round(elapsed_s, 3),
        "files": dict(files),
        "chosen": result.chosen.candidate.key,
        "preferred": result.preferred.candidate.key,
        "plans": [_summarise(trial) for trial in result.trials],
    }


def _summarise(trial: Trial) -> dict[str, Any]:
    plan = trial.candidate.plan
    return {
        "key": trial.candidate.key,
        "name": trial.candidate.name,
        "round": trial.round,
        "layers": [len(stage.layers) for stage in plan.stages],
        "replicas": [len(stage.replicas) for stage in plan.stages],
        "predicted_ns": trial.candidate.predicted_ns,
        "predicted_now_ns": trial.predicted_ns,
        "measured_ns": trial.measured_ns,
        "spread": trial.spread,
        "runs_ns": [list(run.durations_ns) for run in trial.runs],
        "error": trial.error(trial.candidate.predicted_ns),
        "error_now": trial.error(trial.predicted_ns),
        "causes": trial.causes,
        "failure": trial.failure,
    }
