"""A short run of the real executor on this host, for what it costs beyond layers and links."""

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.cluster import Device, Link, MessageTime
from profiles.model_profile import Layer, ProbeRun
from profiles.workload import Workload

if TYPE_CHECKING:
    from planner.fidelity.overhead import Overheads
    from planner.plan import Plan
    from profiles.measure.host_processes import HostProcesses

LEAST, MOST, RUN_NS = 10, 60, 3 * 10**9
"""Iterations that are timed: as many as are predicted to take so long, within these limits."""

TIMEOUT_S = 120.0
"""A run ends then, without a result."""


def probe(workload: Workload, *, model: str, host: "HostProcesses") -> "tuple[Overheads | None, str]":
    """Overheads of the executor on this model, or None and why they could not be measured."""
    from planner.fidelity.overhead import find_overheads, make_probe, make_probe_plan, make_replicated_plan
    from planner.fidelity.whole_batch import fully_sharded, plan_whole_batch
    from planner.progress import usable_cores
    from planner.simulation.simulate import simulate

    profile, device_type = workload.profile, workload.profile.layers[0].costs[0].device_type
    if len(profile.layers) < 2 or workload.num_microbatches is None:
        return None, "it takes two layers and a number of microbatches"
    links = () if workload.cluster is None else workload.cluster.links
    link = links[0] if len(links) == 1 else None
    problem = make_probe(profile, device_type=device_type, num_microbatches=workload.num_microbatches, link=link)
    plan, replicated = make_probe_plan(problem), make_replicated_plan(problem)
    memory = None if workload.cluster is None else min(each.memory_bytes for each in workload.cluster.devices)
    whole = plan_whole_batch(problem, replicated, memory_bytes=memory)
    iterations = max(LEAST, min(MOST, RUN_NS // max(1, simulate(problem, plan).makespan_ns)))
    about = {"model": model, "iterations": iterations}
    ranks, reason = _launch([plan], about, kind="pipeline", host=host)
    if reason:
        return None, reason
    for name, made in (("replicated", replicated), ("whole", whole)):
        entries, reason = ([], "") if made is None else _launch([made], about, kind=name, host=host)
        if reason and name == "replicated" and any(any(each) for each in ranks[0]["exchanges"].values()):
            return None, reason  # replicas wait for each other within actions, and nothing else says how long
        nothing: dict[str, Any] = {name: [], f"{name}_thread": [], f"{name}_served": [], f"{name}_peak_bytes": None}
        ranks = [rank | (entries[number] if entries else nothing) for number, rank in enumerate(ranks)]
    at_once, sharded = replicated if workload.num_microbatches == 1 else whole, list[dict[str, Any]]()
    if at_once is not None and link is not None:  # what cannot be sharded says nothing
        sharded, _ = _launch([fully_sharded(at_once)], about, kind="sharded", host=host)
    found = find_overheads(
        problem,
        plan,
        ranks=ranks,
        device_type=device_type,
        has_idle_cores=usable_cores() > (2 if workload.cluster is None else len(workload.cluster.devices)),
    )
    return replace(found, sharded=tuple(entry for rank in sharded for entry in rank["sharded"])), ""


def _launch(
    plans: "Sequence[Plan]", about: Mapping[str, Any], *, kind: str, host: "HostProcesses", count: int = 2
) -> tuple[list[dict[str, Any]], str]:
    """What fresh processes of plans wrote, or why they did not: what others left behind is not in their memory."""
    from planner.document import render_plan

    with tempfile.TemporaryDirectory(prefix="pipeplan-probe-") as folder:
        paths = [Path(folder, f"plan{number}.json") for number in range(len(plans))]
        for path, plan in zip(paths, plans, strict=True):
            path.write_text(render_plan(plan), encoding="utf-8")
        work = json.dumps({**about, "plans": list(map(str, paths)), "kind": kind, "folder": folder})
        where = Path(folder)
        if reason := host.run_ranks("planner.execute.probe", work, count=count, folder=where, timeout_s=TIMEOUT_S):
            return [], reason
        return [json.loads((where / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(count)], ""


def time_group(
    workload: Workload, *, model: str, width: int, sizes: Sequence[int], iterations: int, host: "HostProcesses"
) -> tuple[Workload, str]:
    """The workload with costs at a width, of a group of so many processes, and why not if it is as it was.

    `sizes`: samples per microbatch, each a divisor of the samples of an iteration.
    """
    from planner.fidelity.group_costs import make_group_plan, with_group_costs

    profile, device_type = workload.profile, workload.profile.layers[0].costs[0].device_type
    samples = (workload.num_microbatches or 0) * (profile.microbatch_size or 0)
    plans = [
        make_group_plan(profile, width, num_microbatches=samples // size, is_fine=is_fine)
        for size, is_fine in itertools.product(sizes, (True, False))
    ]
    about = {"model": model, "iterations": iterations}
    ranks, reason = _launch(plans, about, kind="group", host=host, count=width)
    if reason:
        return workload, reason
    of_plan = [[rank["runs"][number] for rank in ranks] for number in range(len(plans))]
    runs = [{key: [time for run in row for time in run.get(key, [])] for key in row[0]} for row in of_plan]
    found = with_group_costs(
        profile,
        width,
        device_type=device_type,
        fine=dict(zip(sizes, runs[::2], strict=True)),
        whole=dict(zip(sizes, runs[1::2], strict=True)),
        held={
            name: (max(rank["held"][name][0] for rank in ranks), ranks[0]["held"][name][1]) for name in profile.by_name
        },
    )
    note = (
        f"Width {width}: times of layers run tensor-parallel by {width} processes of the executor, collectives within; "
        "bytes held per microbatch are counted whole."
    )
    return replace(workload, profile=replace(found, provenance=f"{profile.provenance} {note}")), ""


def with_overheads(workload: Workload, found: "Overheads") -> Workload:
    """The workload with what was found, in its profile and on every link."""
    profile, cluster = workload.profile, workload.cluster
    num_devices = 0 if cluster is None else len(cluster.devices)
    is_known = num_devices >= 2 or found.stages_iteration_ns > 0  # else messages are in it, and one device has none
    always = max(profile.optimizer_ns, found.iteration_ns if is_known else 0)
    several = max(0, found.iteration_ns + found.stages_iteration_ns - always)
    predicted, measured = (f"{taken / 1e6:.1f} ms" for taken in (found.predicted_ns, found.measured_ns))
    note = (
        f"Overhead of actions and messages from {found.num_actions} actions of a pipeline of two processes, whose "
        f"iteration takes {predicted} by these figures and took {measured}."
    )
    if found.stages_iteration_ns:
        note += " Layers take together what the whole model took without messages; what stages add is stated apart."
    made = replace(
        workload,
        profile=replace(
            profile,
            layers=tuple(_with_exchanges(layer, found.exchanges) for layer in found.layers),
            probe=ProbeRun(predicted_ns=max(1, found.predicted_ns), measured_ns=max(1, found.measured_ns)),
            action_overhead_ns=(found.action,),
            optimizer_ns=always,
            stages_optimizer_ns=several if is_known else 0,
            reduction_bytes=found.reduction_bytes,
            provenance=f"{profile.provenance} {note}",
        ),
        cluster=None
        if cluster is None
        else replace(
            cluster,
            links=tuple(_with_times(link, found) for link in cluster.links),
            devices=tuple(_with_reserve(device, found.reserved_bytes) for device in cluster.devices),
        ),
    )
    return _with_sharding(made, found.sharded) if found.sharded else made


def _with_sharding(workload: Workload, entries: Sequence[Mapping[str, Any]]) -> Workload:
    """The workload with what actions of a fully sharded stage took in these iterations beyond what it says of them."""
    from planner.fidelity.overhead import DEVICES, make_probe, make_replicated_plan
    from planner.fidelity.whole_batch import batch_at_once, fully_sharded, plan_whole_batch, sharding_ns

    (action,), cluster, count = workload.profile.action_overhead_ns, workload.cluster, workload.num_microbatches
    assert cluster is not None
    assert count is not None
    problem = make_probe(workload.profile, device_type=action.device_type, num_microbatches=count, link=None)
    link = replace(cluster.links[0], a=DEVICES[0], b=DEVICES[1])
    two = replace(cluster, devices=problem.cluster.devices, links=(link,), switches=())
    replicated = make_replicated_plan(problem)
    assert replicated is not None
    plan = fully_sharded(plan_whole_batch(problem, replicated, memory_bytes=None) or replicated)
    forward, backward = sharding_ns(batch_at_once(replace(problem, cluster=two)), plan, entries=entries)
    action = replace(action, sharded_forward_ns=forward, sharded_backward_ns=backward)
    return replace(workload, profile=replace(workload.profile, action_overhead_ns=(action,)))


def _with_exchanges(layer: Layer, exchanges: Mapping[str, tuple[int, int]]) -> Layer:
    forward, backward = exchanges.get(layer.name, (0, 0))
    return replace(layer, forward_exchanges=forward, backward_exchanges=backward)


def _with_times(link: Link, found: "Overheads") -> Link:
    """The link with the run's overhead of a message, and with what the two steps of its ring took.

    What other rings took by themselves, of other sizes or collectives, is scaled to that; who holds half as much needs
    no more time. Gathers and scatters stay where a run of their own says what they take more.
    """
    link = swept = replace(link, message_overhead_ns=found.message_ns)
    if found.reduction_ns is None or found.reduced_bytes < 2:
        return link
    size, time = -(-found.reduced_bytes // 2), -(-found.reduction_ns // 2)
    link = link.with_slower_steps(Fraction(time, link.step_ns(size) or time))
    if found.sharded:
        link = replace(swept, reduction_times=link.reduction_times)
    points = {point.bytes: point.time_ns for point in link.reduction_times} | {size: time}
    stated, least = list[MessageTime](), 0
    for num_bytes, time_ns in sorted(points.items()):
        least = max(least, time_ns)
        stated.append(MessageTime(bytes=num_bytes, time_ns=least))
    return replace(link, reduction_times=tuple(stated))


def _with_reserve(device: Device, reserved_bytes: int | None) -> Device:
    if device.reserved_bytes is not None or reserved_bytes is None:
        return device
    return replace(device, reserved_bytes=min(reserved_bytes, device.memory_bytes))
