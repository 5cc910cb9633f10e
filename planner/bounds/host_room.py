"""Bounds where stashes may travel to hosts: those of the question with as much more memory on the devices.

A plan with offload, without its transfers to hosts and back, is a plan of that question, no later anywhere: what a
device has on its host at a time fits beside its own memory. So no bound of that question is above any plan of this one.
"""

from dataclasses import replace

from planner.layout.costs import CostModel
from planner.plan import Stage
from profiles.field_rules import MAX_BYTES


def with_host_room(costs: CostModel) -> CostModel:
    """The costs of a question without offload whose bounds hold; the same costs if there is none."""
    found: CostModel = costs.remembered(_make_room, ()) if costs.problem.options.offload else costs
    return found


def _make_room(costs: CostModel, _: tuple[Stage, ...]) -> CostModel:
    """Every device with a host link has room for what its host can keep."""
    problem, hosts = costs.problem, {host.name: host.memory_bytes for host in costs.problem.cluster.hosts}
    sizes = {each.name: each.memory_bytes + hosts[each.host] for each in problem.cluster.devices if each.host_link}
    if max(sizes.values()) > MAX_BYTES:
        return costs
    devices = (replace(each, memory_bytes=sizes.get(each.name, each.memory_bytes)) for each in problem.cluster.devices)
    cluster, options = replace(problem.cluster, devices=tuple(devices)), replace(problem.options, offload=False)
    return CostModel(replace(problem, cluster=cluster, options=options))
