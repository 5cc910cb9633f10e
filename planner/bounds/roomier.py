"""Bounds of a question in which memory is more than what layers add up to: those of one that is roomier and adds up.

*Offload.* A plan, without its transfers to hosts and back, is a plan of the question in which devices have as much more
memory, no later anywhere: what a device has on its host at a time fits beside its own memory.

*Held together.* Let the second layer of each pair count nothing of the stash that it shares with the first. A stage
that has both then holds no more than it does, nor does one with the second alone; as little as a layer holds that
recomputes. Of states a device holds at most all pairs' less than its layers add up to, for which it gets room. So every
plan fits into the roomier question as well, with the same times, and no bound of that is above it.
"""

from dataclasses import replace

from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem


def roomier(costs: CostModel) -> CostModel:
    """The costs of a question whose bounds hold, in which layers add up and nothing travels; the same if these do."""
    problem = costs.problem
    found: CostModel = costs
    if problem.options.offload or problem.profile.held_once:
        found = costs.remembered(_make_room, ())
    return found


def _make_room(costs: CostModel, _: tuple[Stage, ...]) -> CostModel:
    problem = _with_room(costs.problem)
    return CostModel(_with_host_room(problem) if problem.options.offload else problem)


def _with_host_room(problem: Problem) -> Problem:
    """Every device with a host link has room for what its host can keep."""
    hosts = {host.name: host.memory_bytes for host in problem.cluster.hosts}
    sizes = {each.name: each.memory_bytes + hosts[each.host] for each in problem.cluster.devices if each.host_link}
    devices = (replace(each, memory_bytes=sizes.get(each.name, each.memory_bytes)) for each in problem.cluster.devices)
    cluster, options = replace(problem.cluster, devices=tuple(devices)), replace(problem.options, offload=False)
    return replace(problem, cluster=cluster, options=options)


def _with_room(problem: Problem) -> Problem:
    """Layers add up, and devices have room for what they share of states."""
    cluster, more = problem.cluster, problem.shared_state_bytes
    devices = tuple(replace(each, memory_bytes=each.memory_bytes + more) for each in cluster.devices)
    return replace(problem, profile=problem.profile.adding_up(), cluster=replace(cluster, devices=devices))
