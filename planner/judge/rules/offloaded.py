"""Rules: stashes that travel to the memory of a host can, and have room there."""

from itertools import pairwise

from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.judge.host_memory import host_bytes, recomputes, rows_of, rows_on
from planner.judge.stage_replicas import is_split


def offload_forbidden(case: Case) -> Findings:
    """Stages offload microbatches only if `offload` allows it."""
    for number, stage in enumerate(case.plan.stages):
        if stage.offload and not case.options.offload:
            message = f"Stage {number} offloads microbatches, which offload = false forbids."
            yield Finding(f"stage {number}", "no microbatches", len(stage.offload), message)


def offload_wrong(case: Case) -> Findings:
    """The microbatches that a stage offloads ascend, the problem has them, and the stage keeps all of them whole."""
    for number, stage in enumerate(case.plan.stages):
        listed, count = [moved.microbatch for moved in stage.offload], case.problem.num_microbatches
        ascends = all(a < b for a, b in pairwise(listed)) and all(0 <= m < count for m in listed)
        is_kept = not is_split(stage) and not any(recomputes(stage, m) for m in listed)
        if listed and not (ascends and is_kept):
            message = f"Stage {number} offloads the microbatches {shown(listed, 80)}, which cannot be."
            yield Finding(f"stage {number}", f"some of 0 to {count - 1} that it keeps, ascending", listed, message)


def offload_unlinked(case: Case) -> Findings:
    """Every device of a stage that offloads has a host link."""
    devices = case.reading.devices
    for number, stage in enumerate(case.plan.stages):
        for device in (name for group in stage.replicas for name in group if stage.offload):
            if not devices[device].host_link:
                message = f"Stage {number} offloads microbatches from {device}, which has no host_link."
                yield Finding(f"device {device}", "a host_link", "none", message)


def offload_order(case: Case) -> Findings:
    """On every device F comes before what it is freed for, that not after what it is fetched for, and then I or B."""
    for number, stage in enumerate(case.plan.stages):
        for device in (name for group in stage.replicas for name in group if stage.offload):
            order = rows_on(case.reading.orders, device)
            for moved in stage.offload:
                if rows_of(moved, number, order=order) is None:
                    places = f"{moved.freed_before} and {moved.fetched_before}"
                    what = f"microbatch {moved.microbatch} of stage {number}"
                    message = f"{device} does not run {shown(places, 80)} in turn between F and I or B of {what}."
                    yield Finding(f"{device}: {what}", "actions in between, in turn", places, message)


def host_memory_exceeded(case: Case) -> Findings:
    """No host holds more stashes than its memory."""
    limits = {host.name: host.memory_bytes for host in case.problem.cluster.hosts}
    hosts = {name: device.host for name, device in case.reading.devices.items()}
    for host, size in host_bytes(case.reading.stashes, hosts).items():
        if size > limits[host]:
            message = f"Host {host} holds stashes of up to {size} bytes, above its memory_bytes = {limits[host]}."
            yield Finding(f"host {host}", f"at most {limits[host]}", size, message)


RULES: Rules = {
    offload_forbidden: "Remove `offload` of the stage, or allow it.",
    offload_wrong: "List microbatches of the problem in order that the stage keeps whole.",
    offload_unlinked: "Give the device a `host_link`, or put the stage elsewhere.",
}

ORDER_RULES: Rules = {
    offload_order: "Name actions that each of its devices runs after F, and not after I or B.",
}

MEMORY_RULES: Rules = {
    host_memory_exceeded: "Let fewer microbatches wait there at a time, or raise `memory_bytes` of the host.",
}
