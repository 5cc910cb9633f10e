"""What a picture shows, as plain data: names once, times and bytes as flat lists of small integers.

Times are written as differences, so that most numbers are short; `model.js` is the reader of every list made here.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from api.formatting import render_recomputation
from api.reporting.plain_names import render_bound, render_schedule
from planner.actions import KINDS
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import LaidOut, lay_out
from planner.plan import BaselineResult, Evidence, Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import Direction, MemoryPoint, TimedAction, TimedTransfer, Timeline
from planner.what_if.change import other_cuts
from profiles.cluster import Cluster, Device

_TransferKey = tuple[str, str, int, int, Direction]
"""Sender, receiver, their stages, and the direction: everything that the transfers of one channel share."""

_NUMBER = re.compile(r"[0-9]+")

_KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}


def problem_content(problem: Problem) -> dict[str, Any]:
    """What all plans of a picture share."""
    return {
        "profile": problem.profile.name,
        "provenance": problem.profile.provenance,
        "cluster": problem.cluster.name,
        "numMicrobatches": problem.num_microbatches,
        "microbatchSize": problem.profile.microbatch_size,
        "microbatchSizes": list(other_cuts(problem)),
        "objective": problem.options.objective,
        "machine": _machine(problem.cluster),
    }


def _machine(cluster: Cluster) -> dict[str, Any]:
    """Devices, switches, and links as [end, other end, bytes per second, whether each direction is a link]."""
    devices = [cluster.by_name[name] for name in machine_order(cluster)]
    return {
        "devices": [[device.name, device.type, device.host, device.usable_bytes] for device in devices],
        "hasPrices": all(device.price_per_hour is not None for device in cluster.devices),
        "switches": list(cluster.switches),
        "links": [[link.a, link.b, link.bandwidth_bytes_per_s, link.duplex] for link in cluster.links],
    }


def machine_order(cluster: Cluster) -> list[str]:
    """Devices host by host and number by number; hosts and devices of other names stay as the cluster lists them."""
    hosts, kinds = (
        list(dict.fromkeys(_split_numbers(name)[0] for name in names))
        for names in ([device.host for device in cluster.devices], [device.name for device in cluster.devices])
    )

    def place(device: Device) -> tuple[int, tuple[int, ...], int, tuple[int, ...]]:
        (host, host_numbers), (kind, numbers) = _split_numbers(device.host), _split_numbers(device.name)
        return hosts.index(host), host_numbers, kinds.index(kind), numbers

    return [device.name for device in sorted(cluster.devices, key=place)]


def _split_numbers(name: str) -> tuple[str, tuple[int, ...]]:
    """What a name is without its numbers, and these: `node2/gpu10` is ("node#/gpu#", (2, 10))."""
    return _NUMBER.sub("#", name), tuple(map(int, _NUMBER.findall(name)))


def used_devices(plan: Plan, timeline: Timeline) -> set[str]:
    """Devices with a stage, or with anything else to do."""
    return {*plan.devices, *timeline.actions}


def plan_content(
    problem: Problem, plan: Plan, *, timeline: Timeline, shown: Collection[str] | None = None
) -> dict[str, Any]:
    """One plan: figures, stages, a row per device, and what moves between the devices.

    `shown`: the devices to make rows of, those that idle among them; left out: those that the plan uses.
    """
    costs = CostModel(problem)
    wanted = used_devices(plan, timeline) if shown is None else shown
    rows = {name: number for number, name in enumerate(filter(wanted.__contains__, machine_order(problem.cluster)))}
    stages = [_stage(costs, plan, number=number, rows=rows) for number in range(len(plan.stages))]
    laid_out = lay_out(plan, costs=costs)
    devices = [_device(problem, timeline, device=device, stages=stages) for device in rows]
    return {
        "figures": _figures(plan, timeline),
        "optimizerNs": laid_out.tail_ns,
        "stages": stages,
        "devices": [{**device, "optimizerNs": laid_out.steps_ns.get(device["name"], 0)} for device in devices],
        "legs": _transfers(costs.problem, laid_out, timeline=timeline, rows=rows),
        "linkUse": _link_use(problem.cluster, timeline),
        "bars": list(_bars(timeline, rows)),
        "baselines": [_baseline(row) for row in plan.evidence.baselines] if plan.evidence else [],
    }


def _bars(timeline: Timeline, rows: Mapping[str, int]) -> Iterator[list[Any]]:
    """What runs beside the actions: [what, stage, start, end], and of a stash also its row, microbatch, bytes, wait."""
    for sync in timeline.synchronisations:
        yield ["synchronisation", *sync]
    for gather in timeline.gathers:
        yield ["gather", gather.stage, gather.start_ns, gather.end_ns]
    for each in timeline.offloads:
        own = (rows[each.device], each.microbatch, each.num_bytes, each.start_ns - each.ready_ns)
        yield ["fetch" if each.is_back else "offload", each.stage, each.start_ns, each.end_ns, *own]


def _link_use(cluster: Cluster, timeline: Timeline) -> list[list[int]]:
    """Per link: nanoseconds in use from a to b and back, and bytes both ways; one that is not duplex is used there."""
    use = [[0, 0, 0] for _ in cluster.links]
    for transfer in timeline.transfers:
        for resource in transfer.links:
            use[resource // 2][resource % 2] += _duration(transfer)
            use[resource // 2][2] += transfer.num_bytes
    return use


def _figures(plan: Plan, timeline: Timeline) -> dict[str, Any]:
    figures = {
        "makespanNs": timeline.makespan_ns,
        "spanNs": timeline.span_ns,
        "bubble": timeline.bubble,
    }
    return figures if plan.evidence is None else figures | _evidence(plan.evidence)


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "lowerBoundNs": evidence.lower_bound_ns,
        "boundKind": evidence.bound_kind,
        "boundName": render_bound(evidence.bound_kind),
        "gap": evidence.gap,
        "scheduleBoundNs": evidence.schedule_bound_ns,
        "solutionStatus": evidence.solution_status,
        "provedBy": evidence.proved_by,
        "solverBoundNs": evidence.solver_bound_ns,
        "stoppedBy": evidence.stopped_by,
        "source": evidence.source,
        "improvers": [
            [
                *(each.name, each.turns, each.seconds, each.improvements, each.gain_ns),
                *(each.bounds_raised, each.bound_gain_ns, each.cases_closed),
            ]
            for each in evidence.improvers
        ],
        "passed": evidence.verdict.get("passed"),
        "numViolations": len(evidence.verdict.get("violations", ())),
        "interpolatedCosts": list(evidence.interpolated_costs),
        "plannerVersion": evidence.planner_version,
    }


def _stage(costs: CostModel, plan: Plan, *, number: int, rows: Mapping[str, int]) -> dict[str, Any]:
    stage, cost = plan.stages[number], costs.usual_cost(plan, number)
    return {
        "layers": list(stage.layers),
        "replicas": [[rows[device] for device in group] for group in stage.replicas],
        "recompute": render_recomputation(stage),
        "durationsNs": [cost.duration_ns(kind) for kind in KINDS],
        "hasWeightGrad": cost.has_weight_grad,
        "layerNs": [_layer_ns(costs, stage, layer=layer) for layer in stage.layers],
        "layerBytes": [costs.problem.profile.by_name[layer].parameter_bytes for layer in stage.layers],
    }


def _layer_ns(costs: CostModel, stage: Stage, *, layer: str) -> int:
    """Forward and both gradients of one microbatch, summed over the replicas; 0 where the profile has no figure."""
    device_type = costs.problem.cluster.by_name[stage.replicas[0][0]].type
    work = costs.layer_work(layer, device_type, width=len(stage.replicas[0]), replicas=1 / stage.share_of(0))
    return 0 if work is None else work.forward_ns + work.input_grad_ns + work.weight_grad_ns


def _device(problem: Problem, timeline: Timeline, *, device: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
    usual = [duration for stage in stages for duration in stage["durationsNs"]]
    about = problem.cluster.by_name[device]
    return {
        "name": device,
        "type": about.type,
        "host": about.host,
        "limitBytes": about.usable_bytes,
        "peakBytes": timeline.peak_bytes.get(device, 0),
        "actions": _flat_actions(timeline.actions.get(device, ()), usual),
        **_flat_memory(timeline.memory.get(device, ())),
    }


def _flat_actions(order: Iterable[TimedAction], usual: list[int]) -> list[int]:
    """Four integers per action: 4 x stage + kind, microbatch, idle time before it, duration less the usual one."""
    flat, free = [], 0
    for (kind, stage, microbatch), start, end in order:
        code = 4 * stage + _KIND_NUMBER[kind]
        flat += [code, microbatch, start - free, end - start - usual[code]]
        free = end
    return flat


def _flat_memory(trace: Iterable[MemoryPoint]) -> dict[str, list[int]]:
    """Two integers per step: time since the last step, and which of the `memorySteps` (bytes more or less) it is."""
    steps: dict[int, int] = {}
    flat: list[int] = []
    last, held = 0, 0
    for time, num_bytes in trace:
        if num_bytes != held or not flat:
            flat += [time - last, steps.setdefault(num_bytes - held, len(steps))]
            last, held = time, num_bytes
    return {"memory": flat, "memorySteps": list(steps)}


def _transfers(
    problem: Problem, laid_out: LaidOut, *, timeline: Timeline, rows: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Every way that tensors take between two stages on two devices, with its transfers (none inside one device)."""
    moved: dict[_TransferKey, list[TimedTransfer]] = defaultdict(list)
    for sent in laid_out.working_transfers:
        sender, receiver = laid_out.replicas[sent.sender], laid_out.replicas[sent.receiver]
        direction: Direction = "backward" if sent.is_backward else "forward"
        _ = moved[sender.group[0], receiver.group[0], sender.stage, receiver.stage, direction]
    for transfer in timeline.transfers:
        key = (transfer.sender, transfer.receiver, transfer.from_stage, transfer.to_stage, transfer.direction)
        moved[key].append(transfer)
    return [_transfer(problem, key, transfers=transfers, rows=rows) for key, transfers in moved.items()]


def _transfer(
    problem: Problem, key: _TransferKey, *, transfers: list[TimedTransfer], rows: Mapping[str, int]
) -> dict[str, Any]:
    sender, receiver, from_stage, to_stage, direction = key
    return {
        "from": rows[sender],
        "to": rows[receiver],
        "fromStage": from_stage,
        "toStage": to_stage,
        "backward": int(direction == "backward"),
        "bytes": transfers[0].num_bytes if transfers else 0,
        "route": [_link_name(problem, resource) for resource in transfers[0].links] if transfers else [],
        "durationNs": _duration(transfers[0]) if transfers else 0,
        "transfers": _flat_transfers(transfers),
    }


def _flat_transfers(transfers: list[TimedTransfer]) -> list[int]:
    """Four integers per transfer: microbatch, time since the last became ready, queueing, duration less the first's."""
    flat, last = [], 0
    for transfer in sorted(transfers, key=lambda transfer: transfer.ready_ns):
        wait = transfer.start_ns - transfer.ready_ns
        flat += [transfer.microbatch, transfer.ready_ns - last, wait, _duration(transfer) - _duration(transfers[0])]
        last = transfer.ready_ns
    return flat


def _duration(transfer: TimedTransfer) -> int:
    return transfer.end_ns - transfer.start_ns


def _link_name(problem: Problem, resource: int) -> str:
    link = problem.cluster.links[resource // 2]
    ends = (link.a, link.b) if resource % 2 == 0 else (link.b, link.a)
    return " → ".join(ends) if link.duplex else " ↔ ".join(ends)


FAMILIES = (
    ("Zero bubble", ("ZB-H", "ZB automatic", "interleaved ZB", "capped greedy")),
    ("V-shaped", ("ZB-V", "V-Half", "V-Min", "capped V")),
    ("Interleaved", ("interleaved 1F1B", "breadth-first", "capped loop")),
    ("1F1B", ("1F1B", "capped 1F1B")),
    ("GPipe", ("GPipe",)),
    ("Data parallel", ("data parallel",)),
)
"""Families of baselines, and how the names of their methods begin."""


def _baseline(row: BaselineResult) -> dict[str, Any]:
    return {
        "name": row.name,
        "label": render_schedule(row.name).partition(" (")[0],
        "family": next((family for family, starts in FAMILIES if row.name.startswith(starts)), "Other planners"),
        "makespanNs": row.makespan_ns,
        "spanNs": row.span_ns,
        "bubble": row.bubble,
        "peakFraction": row.peak_fraction,
        "fits": row.fits_memory,
        "note": row.note,
    }
