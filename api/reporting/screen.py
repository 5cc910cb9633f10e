"""The screen that `plan` ends with: stages, the baselines considered beside our plan, bound, verdict and files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from api.formatting import (
    ABSENT,
    render_bar,
    render_groups,
    render_layers,
    render_ms,
    render_of_limit,
    render_percent,
    render_ratio,
    render_recomputed,
    render_samples,
    render_seconds,
)
from api.reporting.plain_names import (
    render_bound,
    render_option,
    render_program,
    render_remark,
    render_schedule,
    render_source,
    render_types,
    render_unmeasured,
)
from api.reporting.screen_table import ScreenTable, figures, make_table
from planner.actions import Action
from planner.evidence.certificate import make_bound
from planner.execute.model.not_compared import NOT_COMPARED
from planner.layout.costs import CostModel
from planner.option_values import Objective
from planner.plan import BaselineResult, Evidence, Plan, RentalResult, SizeResult
from planner.problem import Problem
from planner.simulation.host_waits import find_host_waits
from profiles.unlikely_figures import unlikely_parts

if TYPE_CHECKING:
    from api.progress import RunSummary

ITERATIONS = 1000
"""Money is shown for so many."""

MAX_STAGE_ROWS = 14
"""Rows of the stage table; of more stages the middle ones are left out."""

_UNSTEADY = 0.05
"""A profile that is farther than this from a run of its own is said to be."""

_MAX_NOTES = 3
"""Lines of remarks about costs that were not measured."""

_CARD_BOUND_S = 0.5
"""As much work as takes so long finds what no plan without the host's time can beat."""

_MAX_HOST_STAGES = 8
"""So many stages in which the host sets the pace are named."""

_NEARLY_FULL = 0.9
"""Devices filled by more than this part need a word about their reserve."""

_MEANINGS = (
    "makespan: time of one iteration; bubble: part of it that devices idle; input and weight grad: the backward pass; "
    "gap: what a better plan could save at most, proved for the times as given"
)
"""What the words of the screen mean, at its end."""

MAX_BASELINE_ROWS = 5
"""Rows of the table of baselines; slower cuts of the same schedule are left out first, then the slowest."""


def render_screen(problem: Problem, plan: Plan, *, run: "RunSummary") -> RenderableType:
    """Everything a person wants to know about a plan that was just made."""
    # they take the baselines along, which commands that only judge a plan do without
    from api.reporting.kinds_of_plan import render_kinds
    from planner.baselines.best_of_kinds import own_row

    evidence = plan.evidence
    assert evidence is not None, "a finished plan carries its evidence"
    sizes: list[RenderableType] = [_render_sizes(evidence.sizes), ""] if evidence.sizes else []
    return Group(
        render_header(problem),
        "",
        render_stages(problem, plan, peak_bytes=evidence.peak_bytes),
        *_explain_signs(plan),
        "",
        *sizes,
        _render_baselines(problem, evidence, ours=own_row(problem, plan)),
        "",
        *render_kinds(problem, plan, program=run.target),
        _render_outcome(problem, plan, evidence=evidence, run=run),
    )


def render_header(problem: Problem) -> RenderableType:
    """One or two lines: the workload, the machine, and what is asked for beyond the defaults."""
    profile, cluster = problem.profile, problem.cluster
    shape = "chain" if profile.is_chain else "graph"
    size = "" if profile.microbatch_size is None else f" of {profile.microbatch_size} samples"
    size = size.removesuffix("s") if profile.microbatch_size == 1 else size
    if problem.microbatches is not None:
        size = f" of {min(problem.microbatches)} to {max(problem.microbatches)} samples"
    text = Text(profile.name, style="bold")
    text.append(f"  {shape} of {len(profile.layers)} layers · {cluster.name}: {render_types(cluster)} · ")
    text.append(f"{problem.num_microbatches} microbatch{'es' if problem.num_microbatches > 1 else ''}{size}")
    if problem.batch is not None:
        text.append(f" (global batch of {problem.batch.global_batch_size})")
    asked = "; ".join(render_option(name, value) for name, value in problem.reference().options.items())
    return Group(text, Text(f"options: {asked}", style="dim")) if asked else text


def render_stages(problem: Problem, plan: Plan, *, peak_bytes: Mapping[str, int]) -> ScreenTable:
    """One row per stage: layers, devices, what a microbatch costs, and the memory of the fullest device."""
    costly = figures("forward\nms", "input\ngrad ms", "weight\ngrad ms", "peak memory")
    table = make_table(*figures("stage"), "layers", "devices", *costly, Column("of limit", no_wrap=True))
    costs = CostModel(problem)
    for number in _shortened(len(plan.stages), MAX_STAGE_ROWS):
        if number is None:
            table.add_row("…", f"{len(plan.stages) - MAX_STAGE_ROWS + 1} more", *[""] * 6, style="dim")
        else:
            table.add_row(*_stage_row(costs, plan, number=number, peak_bytes=peak_bytes))
    return table


def _offloaded(plan: Plan) -> int:
    """Microbatches of stages whose activations travel."""
    return sum(len(stage.offload) for stage in plan.stages)


def _explain_signs(plan: Plan) -> Iterator[RenderableType]:
    """One line on the signs that stand beside layers and devices."""
    signs = {
        "×: replicas that share each microbatch": any(len(stage.replicas) > 1 for stage in plan.stages),
        "↻: activations computed again in the backward pass": any(stage.recomputed for stage in plan.stages),
        f"{_offloaded(plan)} activations wait in host memory": _offloaded(plan) > 0,
        "÷: replicas divide the optimizer's state": any(stage.is_sharded for stage in plan.stages),
        f"weights are divided, too: {plan.max_active_stages} stages of a device gathered at a time": any(
            stage.is_gathered for stage in plan.stages
        ),
        "weights and gradients are divided, too: layers are gathered one by one (FSDP2)": any(
            stage.is_fully_sharded for stage in plan.stages
        ),
    }
    if shown := "; ".join(sign for sign, is_shown in signs.items() if is_shown):
        yield Text(shown, style="dim")


def _stage_row(costs: CostModel, plan: Plan, *, number: int, peak_bytes: Mapping[str, int]) -> Iterator[RenderableType]:
    stage = plan.stages[number]
    cost = costs.usual_cost(plan, number)
    devices = [costs.problem.cluster.by_name[name] for group in stage.replicas for name in group]
    fullest = max(devices, key=lambda device: peak_bytes.get(device.name, 0) / max(1, device.usable_bytes))
    peak = peak_bytes.get(fullest.name, 0)
    yield str(number)
    yield render_recomputed(stage) + render_layers(stage.layers)
    yield render_groups(stage.replicas) + render_samples(stage) + (" ÷" if stage.is_sharded else "")
    yield render_ms(cost.forward_ns)
    yield render_ms(cost.input_grad_ns)
    yield render_ms(cost.weight_grad_ns) if cost.has_weight_grad else ABSENT
    yield render_of_limit(peak, fullest.usable_bytes)
    yield render_memory(peak / max(1, fullest.usable_bytes))


def render_memory(fraction: float) -> Text:
    """A bar and a percentage, red where the limit is broken."""
    style = "red" if fraction > 1 else "yellow" if fraction > 0.95 else "green"
    return Text.assemble((render_bar(fraction), style), f" {100 * fraction:3.0f} %")


def _render_sizes(rows: Sequence[SizeResult]) -> ScreenTable:
    """The sizes of microbatches side by side: the best plan of each, its bound, and what is known of it."""
    known = figures("samples", "microbatches", "best plan ms", "lower bound ms", "best known method ms")
    table = make_table(Column(no_wrap=True), *known, "size is", *figures("searched"))
    for row in rows:
        is_best = row.state == "best"
        effort = f"{row.rounds} search rounds" if row.seconds is None else render_seconds(row.seconds)
        table.add_row(
            "✓" if is_best else "",
            str(row.microbatch_size),
            str(row.num_microbatches),
            render_ms(row.objective_ns),
            render_ms(_bound_of(row)),
            render_ms(row.baseline_ns),
            _STATES[row.state] + (f": {row.note}" if row.note else ""),
            effort,
            style="bold green" if is_best else "" if row.state == "open" else "dim",
        )
    return table


_STATES = {
    "best": "chosen",
    "better": "has a faster plan",
    "open": "open",
    "closed": "ruled out: none is better",
    "infeasible": "does not fit",
}
"""What is said of a size: closed ones have a bound that reaches the plan chosen."""


def _bound_of(row: SizeResult) -> int | None:
    """What no plan of a size is below, whatever shows it."""
    known = [each for each in (row.lower_bound_ns, row.solver_bound_ns) if each is not None]
    return None if row.objective_ns is None and row.note else max(known, default=None)


def _render_baselines(problem: Problem, evidence: Evidence, *, ours: BaselineResult) -> ScreenTable:
    """What others would have done, fastest first, with our plan among them and the one to take ticked."""
    has_span = problem.options.ranked_by == "span"
    times = ("makespan ms", "longest device ms") if has_span else ("makespan ms",)
    known = figures(*times, "vs ours", "bubble", "memory")
    table = make_table(Column(no_wrap=True), "plan", *known, Column("fits", no_wrap=True), "")
    rows, num_hidden = _ranked(problem, [row for row in evidence.baselines if not row.had_no_time])
    for row in [ours, *rows]:
        tick = "✓" if row is ours else ""
        style = "bold green" if row is ours else "" if row.fits_memory else "dim"
        table.add_row(tick, *_baseline_cells(row, ours, has_span=has_span), style=style)
    if num_hidden:
        table.add_row("", f"… {num_hidden} more in the plan's evidence", style="dim")
    return table


def _ranked(problem: Problem, rows: Sequence[BaselineResult]) -> tuple[list[BaselineResult], int]:
    """Those that fit, those that do not, those that do not apply, each fastest first; and how many are hidden."""

    def rank(row: BaselineResult) -> tuple[bool, bool, int]:
        time_ns = row.objective_ns(problem.options.objective)
        return time_ns is None, not row.fits_memory, time_ns or 0

    ranked = sorted(rows, key=rank)
    if len(ranked) <= MAX_BASELINE_ROWS:
        return ranked, 0
    best_of_schedule = {_schedule_of(row): row for row in reversed(ranked)}
    kept = [row for row in ranked if best_of_schedule[_schedule_of(row)] is row][: MAX_BASELINE_ROWS - 1]
    return kept, len(ranked) - len(kept)


def _schedule_of(row: BaselineResult) -> str:
    """What its name says before the cut, which stands in brackets."""
    return row.name.partition(" (")[0]


def _baseline_cells(row: BaselineResult, ours: BaselineResult, *, has_span: bool) -> Iterator[RenderableType]:
    yield "this plan" if row is ours else render_schedule(row.name)
    yield render_ms(row.makespan_ns)
    if has_span:
        yield render_ms(row.span_ns)
    yield render_ratio(row.span_ns, ours.span_ns) if has_span else render_ratio(row.makespan_ns, ours.makespan_ns)
    yield render_percent(row.bubble)
    yield Text(ABSENT if row.peak_fraction is None else f"{100 * row.peak_fraction:.0f} %", style=_memory_style(row))
    yield Text("yes" if row.fits_memory else ABSENT if row.makespan_ns is None else "no", style=_memory_style(row))
    is_said_by_memory = row is ours or (row.makespan_ns is not None and not row.fits_memory)
    yield Text("" if is_said_by_memory else render_remark(row.note), style="dim not bold")


def _memory_style(row: BaselineResult) -> str:
    return "red" if row.makespan_ns is not None and not row.fits_memory else ""


def _render_outcome(problem: Problem, plan: Plan, *, evidence: Evidence, run: "RunSummary") -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    objective = problem.options.objective
    if evidence.rental is not None:
        table.add_row("cost", _render_cost(problem, plan_rental=evidence.rental))
    table.add_row(
        "makespan" if objective == "cost" else objective,
        _render_result(evidence, objective=objective, program=run.target),
    )
    table.add_row("verdict", _render_verdict(evidence))
    first = "" if run.first_plan_s is None else f", first plan after {render_seconds(run.first_plan_s)}"
    table.add_row(
        "search",
        f"{render_seconds(run.elapsed_s)}{first}; {_render_end(evidence)}; found by: {render_source(evidence.source)}",
    )
    if late := [row for row in evidence.baselines if row.had_no_time]:
        table.add_row("", f"{len(late)} more known methods were not tried for lack of time (-t)")
    for what, where in (run.files or {}).items():
        table.add_row(what, where)
    doubts = [*_describe_host(problem, plan, evidence=evidence), *_describe_comparison(problem)]
    doubts += [*_describe_probe(problem), *_describe_exchanges(problem, plan)]
    doubts += unlikely_parts(problem.profile, problem.cluster)
    for note in [*doubts, *_notes(problem, evidence), *_describe_reserve(problem, evidence)]:
        table.add_row("note", Text(note, style="yellow"))
    table.add_row("", Text(_MEANINGS, style="dim"))
    return table


def _describe_timings(problem: Problem, evidence: Evidence) -> list[str]:
    """What may keep a measured profile from what will run; nothing where the profile is none of `pipeplan profile`.

    A device on its own has no neighbours, and sends no messages.
    """
    if evidence.timings.get("conditions") not in ("busy", "alone"):
        return []
    has_others = len(problem.cluster.devices) > 1
    notes = ["layers were timed alone: beside busy neighbours they take longer"]
    notes = notes if has_others and evidence.timings["conditions"] == "alone" else []
    for what in ("action_overhead", "message_overhead") if has_others else ("action_overhead",):
        if evidence.timings.get(what) == "not measured":
            notes.append(f"{what.replace('_', ' ')} not measured: what an action or message costs beyond this counts 0")
    return notes


def _describe_host(problem: Problem, plan: Plan, *, evidence: Evidence) -> list[str]:
    """Where the host sets the pace, and what can be saved there: bounds count the card's work alone."""
    waits = find_host_waits(problem, plan)
    if waits is None:
        return []
    shown = [str(number) for number in waits.stages[:_MAX_HOST_STAGES]]
    more = f" and {len(waits.stages) - len(shown)} more" if len(waits.stages) > len(shown) else ""
    saved, most = (waits.objective_ns - ns for ns in (waits.without_host_ns, _card_bound_ns(problem, evidence)))
    return [
        f"the host sets the pace in stage {', '.join(shown)}{more}: CUDA graphs save {render_ms(saved)} ms with these "
        f"orders, with any at most {render_ms(most)} ms (proved); larger microbatches need the host less often"
    ]


def _describe_exchanges(problem: Problem, plan: Plan) -> list[str]:
    """What replicas with batch norms pay for the statistics of one process."""
    if not problem.profile.has_exchanges or not any(len(stage.replicas) > 1 for stage in plan.stages):
        return []
    costs = CostModel(problem)

    def taken_ns(action: Action) -> int:
        stage = plan.stages[action.stage]
        return costs.exchange_ns(stage, costs.group_type(stage.replicas[0]), kind=action.kind)

    most = max(sum(map(taken_ns, order)) for order in plan.schedule.values())
    return [
        f"batch norms: replicas exchange statistics for up to {render_ms(most)} ms, so that losses are those of one "
        "process; DDP does not, and its losses depend on the number of replicas"
    ]


def _card_bound_ns(problem: Problem, evidence: Evidence) -> int:
    """A bound for plans whose host takes no time: the plan's own, unless it may count the host."""
    if evidence.bound_kind not in ("host", "sizes"):
        return evidence.lower_bound_ns
    free = replace(problem, profile=problem.profile.without_host_times(), batch=None)
    return make_bound(free, CostModel(free), time_limit_s=_CARD_BOUND_S).value_ns


def _describe_comparison(problem: Problem) -> list[str]:
    """Parts of a model that nobody saw train as their layers do."""
    parts = problem.profile.provenance.split("; ")
    return [part.rstrip(".") for part in parts if part.startswith(NOT_COMPARED)]


def _describe_probe(problem: Problem) -> list[str]:
    """How far a profile was from a run of its own, where that is more than plans differ by."""
    probe = problem.profile.probe
    if probe is None or abs(probe.error) <= _UNSTEADY:
        return []
    beyond = probe.measured_ns / probe.predicted_ns - 1
    more = f"{render_percent(abs(beyond))} {'more' if beyond > 0 else 'less'}"
    return [f"a run beside the profile took {more} than its figures say: smaller differences mean little"]


def _describe_reserve(problem: Problem, evidence: Evidence) -> list[str]:
    """Nobody can fill the whole of an accelerator."""
    full = [
        device.name
        for device in problem.cluster.devices
        if device.reserved_bytes is None
        and evidence.peak_bytes.get(device.name, 0) > _NEARLY_FULL * max(1, device.memory_bytes)
    ]
    lack = "is nearly full, with no memory set aside for runtime and allocator (reserved_bytes)"
    return [f"{name} {lack}" for name in full[:1]]


def _notes(problem: Problem, evidence: Evidence) -> list[str]:
    """What of a plan was not measured: what is between two sizes, what rests on `scaling: linear`, what on a guess."""
    scaled = [note for note in evidence.interpolated_costs if ": scaled to " in note]
    others = [render_unmeasured(note) for note in evidence.interpolated_costs if note not in scaled]
    notes = others + _describe_timings(problem, evidence)
    if scaled:
        more = f"; and {len(scaled) - 1} more such" if len(scaled) > 1 else ""
        notes.insert(0, f"not measured: {render_unmeasured(scaled[0])}{more}")
    if evidence.assumed_divisible:
        stages = ", ".join(map(str, evidence.assumed_divisible[:8]))
        notes.insert(
            0, f"no program runs the replicas of stage {stages}: state the profile's microbatch_size, which is null"
        )
    hidden = len(notes) - _MAX_NOTES + 1
    return notes if hidden <= 1 else [*notes[: _MAX_NOTES - 1], f"{hidden} more such"]


def _render_result(evidence: Evidence, *, objective: Objective, program: str) -> str:
    """The objective beside the best baseline and between its bounds, a line each."""
    ours = evidence.objective_ns(objective)
    lines = [f"{render_ms(ours)} ms{_render_lead(evidence, ours, objective=objective, program=program)}"]
    kind = "(at any size)" if evidence.sizes else f"({render_bound(evidence.bound_kind)})"
    if ours <= evidence.lower_bound_ns:
        return f"{lines[0]}\noptimal: no plan can be faster {kind}"
    bound = f"no plan can be below {render_ms(evidence.lower_bound_ns)} ms {kind}"
    if evidence.proved_by == "complete search":
        lines.append("optimal: a complete search found nothing faster")
        lines.append(
            f"the certified bound is lower, {render_ms(evidence.lower_bound_ns)} ms {kind}: it leaves a gap of "
            f"{render_percent(evidence.gap)}, which the complete search closed"
        )
        return "\n".join(lines)
    lines.append(f"{bound}: gap {render_percent(evidence.gap)}")
    if evidence.solver_bound_ns is not None and evidence.solver_bound_ns > evidence.lower_bound_ns:
        lines.append(_render_claim(evidence, evidence.solver_bound_ns))
    if evidence.schedule_bound_ns is not None:
        is_tight = ours <= evidence.schedule_bound_ns
        best = "faster" if is_tight else f"below {render_ms(evidence.schedule_bound_ns)} ms"
        lines.append(f"with these stages no order of the actions can be {best}")
    return "\n".join(lines)


def _render_cost(problem: Problem, plan_rental: RentalResult) -> str:
    """What an iteration costs, and what none costs less than."""
    figures = [ITERATIONS * each for each in (plan_rental.cost, plan_rental.lower_bound)]
    lines = [f"{figures[0]:,.4g} for {ITERATIONS:,} iterations, at {plan_rental.price_per_hour:g} per hour"]
    deadline = problem.options.deadline_ns
    by = "" if deadline is None else f" by the deadline of {render_ms(deadline)} ms"
    if plan_rental.gap <= 0:
        return f"{lines[0]}\noptimal: no plan on any of the devices costs less{by}"
    bound = f"no plan on any of the devices{by} costs less than {figures[1]:,.4g}: gap"
    return f"{lines[0]}\n{bound} {render_percent(plan_rental.gap)}"


def _render_claim(evidence: Evidence, claimed_ns: int) -> str:
    """What a solver says, and who says so."""
    solver = evidence.solver_versions.get("complete model")
    if solver is None and evidence.stopped_by == "complete_search":
        return "the complete search found nothing faster, but some cases only a solver closed: that is its word"
    if solver is None:
        return f"the complete search, not at its end, rules out less than {render_ms(claimed_ns)} ms"
    return f"{solver} claims that nothing is below {render_ms(claimed_ns)} ms, which is not proved here"


def _render_lead(evidence: Evidence, ours: int, *, objective: Objective, program: str) -> str:
    """How far ahead of the best baseline that fits."""
    times = {row.name: row.objective_ns(objective) for row in evidence.baselines if row.fits_memory}
    times |= {
        f"{row.baseline} with {row.microbatch_size} samples": row.baseline_ns
        for row in evidence.sizes
        if row.state != "best"
    }
    rivals = {name: time for name, time in times.items() if time}
    if not rivals:
        return ", where no baseline fits into the memory"
    best = min(rivals, key=lambda name: rivals[name])
    lead, name = 1 - ours / rivals[best], render_schedule(best)
    if lead < -0.0005:
        more = render_percent(ours / rivals[best] - 1)
        return f", {more} more than {name}, which {render_program(program)} cannot run"
    return f", as fast as {name}" if lead < 0.0005 else f", {render_percent(lead)} less than {name}, the best that fits"


def _render_end(evidence: Evidence) -> str:
    """Why the search ended."""
    if evidence.proved_by == "complete search":
        return "proved optimal (complete search)"
    return f"stopped by {_STOPS.get(evidence.stopped_by, evidence.stopped_by)}"


_STOPS = {
    "proof": "proof: nothing can be faster",
    "gap": "the requested gap",
    "time": "the time limit",
    "rounds": "the limit of search steps",
    "internal_error": "a failure inside the search; please report it",
    "no_improvement": "lack of improvement",
    "complete_search": "the end of the complete search of all plans that it covers",
    "user": "you",
    "solver_failed": "the failure of the requested solver",
    "solver": "the solver, which claims that it found the best",
}


def _render_verdict(evidence: Evidence) -> Text:
    passed = bool(evidence.verdict.get("passed"))
    if passed:
        return Text.assemble(("✓ passed", "green"), " every rule of the independent verifier")
    return Text(f"✗ {len(evidence.verdict.get('violations', []))} violations", style="red")


def _shortened(count: int, limit: int) -> list[int | None]:
    """The numbers below `count`, with None for the middle ones if there are more than `limit`."""
    if count <= limit:
        return list(range(count))
    head = limit // 2
    return [*range(head), None, *range(count - (limit - 1 - head), count)]
