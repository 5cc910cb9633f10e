"""The other commands' reports as tables: a verdict, a timeline's figures, where the time goes, plans side by side."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from api.formatting import render_bytes, render_ms, render_of_limit, render_percent, render_ratio
from api.reporting.plain_names import render_bound, render_schedule
from api.reporting.screen import ITERATIONS, render_header, render_memory
from api.reporting.screen_table import figures, make_table
from planner.actions import KIND_NAMES
from planner.problem import Problem

if TYPE_CHECKING:
    from api.reporting.comparison import Contender
    from api.reporting.what_if import WhatIfAnswer
    from planner.evidence.check_evidence import Note, Rederivation
    from planner.simulation.explain import DeviceTime, Explanation
    from planner.simulation.simulate import Timeline
    from planner.verify import Verdict
    from planner.what_if.change import Change
    from planner.what_if.sensitivity import ShadowPrice

_MOST_NAMES = 6
"""Baselines that the summary of evidence names."""
_MAX_VIOLATIONS = 40
"""Violations that a report lists; the others are counted."""

_MAX_BINDINGS = 6
"""Resources on the critical chain, and full memories, that a report lists."""

_WORK_COLUMNS = {
    "forward_ns": "forward",
    "input_grad_ns": "input\ngrad",
    "weight_grad_ns": "weight\ngrad",
    "backward_ns": "backward",
}

_IDLE_COLUMNS = {
    "fill_ns": ("fill", "before the first action"),
    "others_ns": ("others' work", "what the next action needs was still being computed elsewhere"),
    "transfer_ns": ("transfers", "an input was on its way"),
    "link_ns": ("busy links", "an input waited for a link that was busy"),
    "memory_ns": (
        "memory",
        "a later action was ready and would have fitted into the time, but not into the memory",
    ),
    "order_ns": ("order", "a later action would have fitted into time and memory: the order has it later"),
    "synchronisation_ns": ("sync", "gradients of replicated stages were synchronised"),
    "drain_ns": ("drain", "after the last action, until the last device has ended"),
    "optimizer_ns": ("optimizer", "the optimizer step"),
}
"""By column its head, and what it means."""

_STEP_NAMES = {
    **KIND_NAMES,
    "transfer": "transfers",
    "link": "waiting for busy links",
    "synchronisation": "synchronisation",
    "optimizer": "optimizer",
    "gather": "gathering weights",
    "wait": "waiting",
}


def render_verdict(problem: Problem, verdict: "Verdict") -> RenderableType:
    """`passed`, or every violation with what was expected and what was found."""
    if verdict.passed:
        return Group(render_header(problem), Text.assemble(("✓ passed", "green"), ": no rule is broken"))
    table = make_table("rule", "where", "expected", "actual", "what is wrong")
    for violation in verdict.violations[:_MAX_VIOLATIONS]:
        said = f"{violation.message} {violation.remedy}"
        cells = (violation.rule, violation.subject, violation.expected, violation.actual, said)
        table.add_row(*(Text(str(cell)) for cell in cells))
    if len(verdict.violations) > _MAX_VIOLATIONS:
        table.add_row("…", f"{len(verdict.violations) - _MAX_VIOLATIONS} more")
    count = Text(f"✗ rejected: {len(verdict.violations)} violations", style="red")
    return Group(render_header(problem), count, "", table)


def _with_plain_names(note: "Note") -> str:
    """Its message, with the names of baselines as screens have them."""
    message = note.message
    for name in sorted(note.names, key=len, reverse=True):
        message = message.replace(name, render_schedule(name))
    return message


def _describe_extent(outcome: "Rederivation") -> str:
    """How much of the evidence is as it follows from the plan, and which rows of baselines are not known to be."""
    if outcome.has_baselines and not outcome.unchecked:
        return "every figure that follows from the plan is as stated; baselines computed again"
    count = f"{outcome.num_computed} of {outcome.num_computed + len(outcome.unchecked)} baselines computed again"
    if not outcome.has_baselines:
        return f"the plan's own figures are as stated; {count} (--baselines does)"
    shown = ", ".join(render_schedule(name) for name in outcome.unchecked[:_MOST_NAMES])
    more = len(outcome.unchecked) - _MOST_NAMES
    return f"the plan's own figures are as stated; {count}, not {shown}{f' and {more} more' if more > 0 else ''}"


def render_rederivation(problem: Problem, outcome: "Rederivation") -> RenderableType:
    """The verdict, what the certificate proves, and everything that the evidence states otherwise."""
    parts: list[RenderableType] = [render_verdict(problem, outcome.verdict)]
    if outcome.lower_bound_ns is not None and outcome.gap is not None:
        is_equal = "lower_bound_ns" not in {difference.field for difference in outcome.differences}
        proved = f"lower bound ({render_bound(outcome.bound_kind or '')}): no plan can be below "
        proved += f"{outcome.lower_bound_ns:,} ns; computed again, {'equal' if is_equal else 'NOT as stated'}"
        parts += [proved, f"gap {render_percent(outcome.gap)}, computed again from the simulated plan"]
    if outcome.least_cost is not None:
        least = f"{ITERATIONS * outcome.least_cost:,.4g} for {ITERATIONS:,} iterations"
        parts.append(f"cost: no plan on any of the devices costs less than {least}; computed again, equal")
    if outcome.bound == "not rechecked":
        parts.append("lower bound of an older release, not checked again")
    parts += [Text.assemble(("note", "yellow"), f": {_with_plain_names(note)}") for note in outcome.notes]
    if not outcome.differences:
        parts.append(Text.assemble(("✓ evidence", "green"), f": {_describe_extent(outcome)}"))
        return Group(*parts)
    table = make_table("evidence", "stated", "computed", "what is wrong")
    for difference in outcome.differences[:_MAX_VIOLATIONS]:
        cells = (difference.field, difference.stated, difference.derived, difference.message)
        table.add_row(*(Text(str(cell)[:200]) for cell in cells))
    count = Text(
        f"✗ rejected: {len(outcome.differences)} figures of the evidence do not follow from the plan", style="red"
    )
    return Group(*parts, count, "", table)


def render_simulation(problem: Problem, timeline: "Timeline") -> RenderableType:
    """The figures of a timeline, per device and together."""
    headers = ("actions", "first start ms", "last end ms", "work ms", "busy", "peak memory")
    table = make_table("device", *figures(*headers, is_whole=False), "of limit")
    for device, device_order in timeline.actions.items():
        work = sum(timed.end_ns - timed.start_ns for timed in device_order)
        limit, peak = problem.cluster.by_name[device].usable_bytes, timeline.peak_bytes[device]
        table.add_row(
            device,
            f"{len(device_order):,}",
            render_ms(device_order[0].start_ns) if device_order else "",
            render_ms(device_order[-1].end_ns) if device_order else "",
            render_ms(work),
            render_percent(work / timeline.makespan_ns if timeline.makespan_ns else 0.0),
            render_of_limit(peak, limit),
            render_memory(peak / max(1, limit)),
        )
    sent = sum(transfer.end_ns - transfer.start_ns for transfer in timeline.transfers)
    summary = (
        f"makespan {render_ms(timeline.makespan_ns)} ms   longest device {render_ms(timeline.span_ns)} ms   "
        f"bubble {render_percent(timeline.bubble)}   {len(timeline.transfers):,} transfers, {render_ms(sent)} ms"
    )
    return Group(render_header(problem), "", table, "", summary)


def render_explanation(problem: Problem, explanation: "Explanation") -> RenderableType:
    """Where every device's time goes, what the columns mean, and what the critical chain is made of."""
    shown = [name for name in _IDLE_COLUMNS if any(getattr(row, name) for row in explanation.devices)]
    names = {
        name: head for name, head in _WORK_COLUMNS.items() if any(getattr(row, name) for row in explanation.devices)
    }
    names |= {name: _IDLE_COLUMNS[name][0] for name in shown}
    table = make_table("device", *figures(*names.values(), "makespan", is_whole=False))
    for row in explanation.devices:
        times = [getattr(row, name) for name in names]
        table.add_row(row.device, *(render_ms(time) if time else "" for time in times), render_ms(row.total_ns))
    table.add_row("all", *_shares(explanation.devices, list(names)), "100.0 %", style="bold")
    meanings = Table.grid(padding=(0, 2))
    for head, meaning in map(_IDLE_COLUMNS.__getitem__, shown):
        meanings.add_row(head, Text(meaning, style="dim"))
    parts = (table, "", meanings, "", _render_path(explanation), "", _render_binds(explanation))
    return Group(render_header(problem), "", "Milliseconds per device", *parts)


def _render_binds(explanation: "Explanation") -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("What limits it:")
    total = explanation.makespan_ns or 1
    for binding in [each for each in explanation.binds if each.kind != "memory"][:_MAX_BINDINGS]:
        share = render_percent(binding.nanoseconds / total)
        table.add_row(f"  {binding.kind} {binding.subject}", f"on that chain for {share} of it")
    for binding in [each for each in explanation.binds if each.kind == "memory"][:_MAX_BINDINGS]:
        waited = f", {render_ms(binding.nanoseconds)} ms idle for it" if binding.nanoseconds else ""
        left = render_bytes(binding.headroom_bytes or 0)
        table.add_row(f"  memory of {binding.subject}", f"{left} left at the peak{waited}")
    return table


def render_prices(prices: Sequence["ShadowPrice"]) -> RenderableType:
    """What more of each resource is worth: by a plan that was found, and at most."""
    table = make_table("what if", *figures("worth at least", "worth at most", "plan found ms", is_whole=False))
    ranked = sorted(prices[1:], key=lambda price: -(price.worth_at_least or 0.0))
    for price in (*prices[:1], *ranked):
        cells = render_percent(price.worth_at_least), render_percent(price.worth_at_most), render_ms(price.objective_ns)
        table.add_row(Text(price.text), *cells)
    note = "At least: a verified plan saves so much of the present time. At most: the certified bound allows no more."
    return Group(
        "", "What more of one resource is worth (shadow prices), each by itself", table, Text(note, style="dim")
    )


def render_what_if(answer: "WhatIfAnswer") -> RenderableType:
    """A question before and after a change, and what the change saves: by a plan that was found, and at most."""
    headers = (f"{answer.objective} ms", "no plan below ms", "gap", "stages", "devices")
    table = make_table("", *figures(*headers, is_whole=False))
    for name, outcome in (("before", answer.before), ("after", answer.after)):
        cells = render_ms(outcome.objective_ns), render_ms(outcome.lower_bound_ns), render_percent(outcome.gap)
        table.add_row(name, *cells, str(outcome.num_stages), str(outcome.num_devices))
    parts: list[RenderableType] = [
        render_header(answer.problem),
        "",
        Text(f"What if: {', '.join(_describe_change(answer.change))}"),
        "",
        table,
        "",
    ]
    total = answer.before.objective_ns or 1
    verb = "saves" if answer.saved_ns >= 0 else "costs"
    saved = abs(answer.saved_ns)
    parts.append(f"the plan found {verb} {render_ms(saved)} ms ({render_percent(saved / total)})")
    most = answer.saved_at_most_ns
    if most is not None:
        device_order = "saves more" if most >= 0 else "costs less"
        limit = f"{render_ms(abs(most))} ms ({render_percent(abs(most) / total)})"
        parts.append(f"no plan with the change {device_order} than {limit}")
    if answer.batch_ratio != 1:
        slower = answer.after.objective_ns / answer.batch_ratio / total - 1
        what = f"{render_percent(abs(slower))} {'more' if slower > 0 else 'less'}"
        parts.append(f"an iteration then has {answer.batch_ratio:.4g} times the samples: each takes {what} time")
    return Group(*parts)


def _describe_change(change: "Change") -> Iterator[str]:
    if change.devices:
        plural = "" if abs(change.devices) == 1 else "s"
        yield f"{abs(change.devices)} device{plural} {'more' if change.devices > 0 else 'fewer'}"
    if change.memory_bytes:
        amount = render_bytes(abs(change.memory_bytes))
        yield f"{amount} {'more' if change.memory_bytes > 0 else 'less'} memory on every device"
    if change.link_speed != 1.0:
        yield f"links {change.link_speed:g} × as fast"
    if change.num_microbatches is not None:
        yield f"{change.num_microbatches} microbatches"
    if change.global_batch_size is not None:
        yield f"a batch of {change.global_batch_size} samples"
    if change.microbatch_size is not None:
        yield f"microbatches of {change.microbatch_size} samples"
    if change.lost:
        yield f"without {', '.join(change.lost)}"


def _shares(devices: "Sequence[DeviceTime]", names: Sequence[str]) -> list[str]:
    total = sum(row.total_ns for row in devices) or 1
    return [render_percent(sum(getattr(row, name) for row in devices) / total) for name in names]


def _render_path(explanation: "Explanation") -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify)
    table.add_row("The chain of events that sets the makespan:")
    shares = list(explanation.path_shares().items())
    for (kind, stage), nanoseconds in shares[:8]:
        where = "" if stage is None else f" of stage {stage}"
        share = nanoseconds / explanation.makespan_ns if explanation.makespan_ns else 0.0
        table.add_row(f"  {_STEP_NAMES[kind]}{where}", f"{render_ms(nanoseconds)} ms", render_percent(share))
    if len(shares) > 8:
        rest = sum(nanoseconds for _, nanoseconds in shares[8:])
        table.add_row(
            f"  {len(shares) - 8} others", f"{render_ms(rest)} ms", render_percent(rest / explanation.makespan_ns)
        )
    return table


def render_comparison(problem: Problem, contenders: "Sequence[Contender]") -> RenderableType:
    """Plans side by side, the fastest that passes ticked; ratios are to the first."""
    known = figures("makespan\nms", "ratio", "longest\ndevice ms", "bubble", "stages", "devices", "memory")
    table = make_table("", Column("plan", overflow="fold"), *known, "verdict")
    best = min((c.makespan_ns for c in contenders if c.num_violations == 0), default=None)
    for contender in contenders:
        passed = contender.num_violations == 0
        verdict = Text("passed", "green") if passed else Text(f"{contender.num_violations} violations", "red")
        table.add_row(
            "✓" if passed and contender.makespan_ns == best else "",
            render_schedule(contender.name),
            render_ms(contender.makespan_ns),
            render_ratio(contender.makespan_ns, contenders[0].makespan_ns),
            render_ms(contender.span_ns),
            render_percent(contender.bubble),
            str(contender.num_stages),
            str(contender.num_devices),
            f"{100 * contender.peak_fraction:.0f} %",
            verdict,
        )
    return Group(render_header(problem), "", table)


def render_checks(checks: Sequence[tuple[str, bool | None, str]]) -> RenderableType:
    """The doctor's findings: what, whether it is well (None: worth knowing, no more), and the detail."""
    marks = {True: Text("✓", "green"), False: Text("✗", "red"), None: Text("·", "dim")}
    table = Table.grid(padding=(0, 2))
    for what, is_well, detail in checks:
        table.add_row(marks[is_well], what, Text(detail))
    return table


def render_demos(demos: Mapping[str, str]) -> RenderableType:
    """The demo workloads, a line each."""
    table = Table.grid(padding=(0, 2))
    for name, line in demos.items():
        table.add_row(Text(f"demo:{name}", style="bold"), line)
    return table
