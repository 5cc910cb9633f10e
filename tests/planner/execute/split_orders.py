"""Plans with split placement for the executor, made without a profile."""

import random
from collections.abc import Sequence

from planner.actions import Action
from planner.layout.split_placement import make_parts
from planner.plan import Plan, Share, Stage
from tests.planner.execute.orders import make_reference, make_sources

_Job = tuple[Action, str]


def make_split_plan(
    placement: str,
    *,
    num_microbatches: int,
    seed: int | None = None,
    cut: Sequence[int] | None = None,
    kinds: str = "",
    edges: str = "",
) -> Plan:
    """`placement`: per stage the device of F, those of I's equal shares and that of W, as `0;0,1;2`; what is left out
    is where F is; replicas of a stage that is not split as `0/1`. The rest as for `make_random_plan`.
    """
    texts = placement.split()
    sizes = cut or [1] * len(texts)
    names = iter(f"l{number}" for number in range(sum(sizes)))
    layers = [tuple(next(names) for _ in range(size)) for size in sizes]
    stages = tuple(_make_stage(text, mine) for text, mine in zip(texts, layers, strict=True))
    trained = [not kinds or any(kinds[int(name[1:])] in "wvs" for name in stage.layers) for stage in stages]
    schedule = make_split_order(stages, make_sources(len(stages), edges), num_microbatches, trained=trained, seed=seed)
    return Plan(problem=make_reference(num_microbatches), stages=stages, schedule=schedule)


def _make_stage(text: str, layers: tuple[str, ...]) -> Stage:
    owners, inputs, weight, *_ = [*text.split(";"), "", ""]
    devices = [f"d{device}" for device in inputs.split(",") if device]
    return Stage(
        layers=layers,
        replicas=tuple((f"d{device}",) for device in owners.split("/")),
        input_grad_replicas=tuple(Share(group=(device,), denominator=len(devices)) for device in devices),
        weight_grad_replicas=(Share(group=(f"d{weight}",)),) if weight else (),
    )


def make_split_order(
    stages: Sequence[Stage],
    sources: Sequence[Sequence[int]],
    num_microbatches: int,
    *,
    trained: Sequence[bool],
    seed: int | None,
) -> dict[str, tuple[Action, ...]]:
    """As `make_free_order`: every device takes one of the actions that could run, in a random order for a seed."""
    rng = random.Random(seed)
    todo = [
        (Action(kind, number, microbatch), device)
        for number, stage in enumerate(stages)
        for device, kinds in _seats(stage, is_trained=trained[number])
        for kind in kinds
        for microbatch in range(num_microbatches)
    ]
    words: dict[str, list[Action]] = {device: [] for _, device in todo}
    while todo:
        ready = [job for job in todo if not any(_waits(job, other, sources) for other in todo)]
        for device in words:
            if mine := [job for job in ready if job[1] == device]:
                greedy = min(mine, key=lambda job: ("IBFW".index(job[0].kind), job[0].microbatch, -job[0].stage))
                chosen = greedy if seed is None else rng.choice(mine)
                words[device].append(chosen[0])
                todo.remove(chosen)
    return {device: tuple(word) for device, word in words.items()}


def _seats(stage: Stage, *, is_trained: bool) -> list[tuple[str, str]]:
    if not stage.is_split:
        return [(device, "FIW" if is_trained else "FI") for (device,) in stage.replicas]
    return [(part.device, part.kinds) for part in make_parts(stage, has_weight_grad=is_trained)]


def _waits(job: _Job, other: _Job, sources: Sequence[Sequence[int]]) -> bool:
    """Whether an action needs another one, of any replica or share."""
    (kind, stage, microbatch), (before, where, when) = job[0], other[0]
    if microbatch != when:
        return False
    if kind == "F":
        return before == "F" and where in sources[stage]
    if kind == "W":
        return before == "I" and where == stage
    return (before == "F" and where == stage) or (before == "I" and stage in sources[where])
