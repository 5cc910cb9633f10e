"""Plans whose stages gather their weights, made from plans whose weights are whole."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from planner.layout.gathers import Rank
from planner.plan import Plan


def gathering_plans(plan: Plan, *, most: int) -> Iterator[Plan]:
    """The plan with gathered stages on all ranks that could have them, and on all but one, with 1 ... `most` active."""
    ranks = possible_ranks(plan)
    chosen = [ranks, *(ranks[:n] + ranks[n + 1 :] for n in range(len(ranks) if len(ranks) > 1 else 0))]
    for some in filter(None, chosen):
        for active in range(1, min(most, max(len(rank.stages) for rank in some)) + 1):
            yield with_gathered(plan, some, max_active_stages=active)


def possible_ranks(plan: Plan) -> list[Rank]:
    """Devices that hold the same replicated stages, each alone: in the order of their first stages."""
    held, found = plan.stages_held(), dict[tuple[str, ...], Rank]()
    for stage in plan.stages if not plan.dealing else ():
        devices = tuple(sorted(device for group in stage.replicas for device in group))
        is_narrow = all(len(group) == 1 for group in stage.replicas) and not (stage.is_split or stage.samples)
        if is_narrow and len(devices) > 1 and len({tuple(held[device]) for device in devices}) == 1:
            found[devices] = Rank(devices, tuple(held[devices[0]]))
    return list(found.values())


def with_gathered(plan: Plan, ranks: Iterable[Rank], *, max_active_stages: int) -> Plan:
    """The plan with the stages of some ranks gathered, the other replicated ones sharding the optimizer's state."""
    chosen = list(ranks)
    gathered = {number for rank in chosen for number in rank.stages}
    orders = {device: plan.schedule[rank.devices[0]] for rank in chosen for device in rank.devices}
    stages = [
        replace(stage, shard="weights" if number in gathered else "optimizer") if len(stage.replicas) > 1 else stage
        for number, stage in enumerate(plan.stages)
    ]
    return replace(
        plan,
        stages=tuple(stages),
        schedule={device: orders.get(device, order) for device, order in plan.schedule.items()},
        max_active_stages=max_active_stages,
        evidence=None,
    )
