"""The CP-SAT order model against enumeration, rule by rule."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from solver_models.device_rows import DeviceRow
from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    ScheduleInstance,
    StageReplica,
    Transfer,
)
from solver_models.schedule.evaluation import play
from solver_models.schedule.solve import MAX_SIZE, estimate_size, solve_order


def lane(stage: int, device: int, times: tuple[int, int, int], **changes: int | bool) -> StageReplica:
    """A lane with F, I, W of these ticks, a stash of one unit until W, and no gain from fusing."""
    forward, input_grad, weight_grad = times
    plain = StageReplica(
        stage=stage, device=device, forward=forward, input_grad=input_grad, weight_grad=weight_grad,
        backward=input_grad + weight_grad, has_weight_grad=True, held=1, stash=1, weight_stash=1, workspace=0,
        whole_backward=changes.get("stash", 1),
        weight_workspace=changes.get("workspace", 0),
    )  # fmt: skip
    return replace(plain, **changes)


def instance(
    lanes: list[StageReplica],
    *,
    microbatches: int = 2,
    transfer: int = 0,
    links: str = "own",
    budget: int = 99,
    **changes: object,
) -> ScheduleInstance:
    """A chain of lanes; `links` is own (one per flow), duplex (one per pair of devices) or one (for all)."""
    flows = []
    for a in range(len(lanes) - 1):
        for sender, receiver, is_backward in ((a, a + 1, False), (a + 1, a, True)):
            link = {"own": len(flows), "duplex": a, "one": 0}[links]
            moves = transfer and lanes[a].device != lanes[a + 1].device
            flows.append(
                Transfer(sender=sender, receiver=receiver, is_backward=is_backward, duration=transfer if moves else 0,
                     links=(link,) if moves else ())
            )  # fmt: skip
    plain = ScheduleInstance(
        num_microbatches=microbatches, replicas=tuple(lanes), transfers=tuple(flows), synchronisation=(0,) * len(lanes),
        tail=0, devices=(DeviceRow(memory=budget),) * (1 + max(own.device for own in lanes)),
        can_split=True, objective="makespan",
    )  # fmt: skip
    return replace(plain, **changes)


def chain(times: list[tuple[int, int, int]], **options) -> ScheduleInstance:
    """One lane per device."""
    changes = {name: options.pop(name) for name in list(options) if name in StageReplica.__slots__}
    return instance([lane(s, s, own, **changes) for s, own in enumerate(times)], **options)


# ------------------------------------------------------------------------------------------------ enumeration


def words_of(problem: ScheduleInstance, device: int) -> Iterator[DeviceOrder]:
    """Every order of the actions of a device that keeps microbatches in order and fits in memory."""
    lanes = [own for own in problem.replicas if own.device == device]
    microbatches = range(problem.num_microbatches)
    fused = [[not problem.can_split] if own.has_weight_grad else [False] for own in lanes for _ in microbatches]
    for n, own in enumerate(lanes):
        if problem.can_split and own.has_weight_grad and own.backward < own.input_grad + own.weight_grad:
            for m in microbatches:
                fused[n * len(microbatches) + m] = [False, True]
    for choice in itertools.product(*fused):
        queues = []
        for n, own in enumerate(lanes):
            mine = choice[n * len(microbatches) : (n + 1) * len(microbatches)]
            queues.append([(FORWARD, own.stage, m) for m in microbatches])
            queues.append([(BACKWARD if mine[m] else INPUT_GRAD, own.stage, m) for m in microbatches])
            queues.append([(WEIGHT_GRAD, own.stage, m) for m in microbatches if own.has_weight_grad and not mine[m]])
        yield from merge(
            [q for q in queues if q], [], {own.stage: own for own in lanes}, problem.devices[device].memory, 0
        )


def merge(
    queues: list[DeviceOrder], word: DeviceOrder, lanes: dict[int, StageReplica], budget: int, held: int
) -> Iterator[DeviceOrder]:
    """Every way to go on from `word` with the heads of `queues`."""
    if not any(queues):
        yield list(word)
        return
    for n, queue in enumerate(queues):
        if not queue:
            continue
        kind, stage, m = queue[0]
        before = {FORWARD: None, INPUT_GRAD: FORWARD, BACKWARD: FORWARD, WEIGHT_GRAD: INPUT_GRAD}[kind]
        if before is not None and (before, stage, m) not in word:
            continue
        during, after = memory_steps(lanes[stage], kind)
        if held + during <= budget:
            rest = [*queues[:n], queue[1:], *queues[n + 1 :]]
            yield from merge(rest, [*word, queue[0]], lanes, budget, held + after)


def memory_steps(own: StageReplica, kind: int) -> tuple[int, int]:
    """Units that an action adds while it runs, and for good (contract, "Memory")."""
    rest = own.stash - own.held + own.workspace
    return {
        FORWARD: (own.held + own.workspace, own.held),
        INPUT_GRAD: (rest, own.weight_stash - own.held),
        WEIGHT_GRAD: (own.weight_workspace, -own.weight_stash),
        BACKWARD: (rest, -own.held),
    }[kind]


def end_of(problem: ScheduleInstance, words: dict[int, DeviceOrder]) -> int | None:
    """Makespan or span without queues on links: start times grow until nothing moves; None if they never stop."""
    durations = {FORWARD: "forward", INPUT_GRAD: "input_grad", WEIGHT_GRAD: "weight_grad", BACKWARD: "backward"}
    number = {(own.device, own.stage): n for n, own in enumerate(problem.replicas)}
    actions = [(kind, number[d, stage], m) for d, word in words.items() for kind, stage, m in word]
    takes = {action: getattr(problem.replicas[action[1]], durations[action[0]]) for action in actions}
    waits: list[tuple[tuple[int, int, int], tuple[int, int, int], int]] = []
    for d, word in words.items():
        own = [(kind, number[d, stage], m) for kind, stage, m in word]
        waits += [(a, b, 0) for a, b in itertools.pairwise(own)]
    for kind, n, m in actions:
        if kind in (INPUT_GRAD, BACKWARD):
            waits.append(((FORWARD, n, m), (kind, n, m), 0))
        if kind == WEIGHT_GRAD:
            waits.append(((INPUT_GRAD, n, m), (kind, n, m), 0))
    for flow in problem.transfers:
        for m in range(problem.num_microbatches):
            kinds = (INPUT_GRAD, BACKWARD) if flow.is_backward else (FORWARD,)
            sent = [(k, flow.sender, m) for k in kinds if (k, flow.sender, m) in takes]
            got = [(k, flow.receiver, m) for k in kinds if (k, flow.receiver, m) in takes]
            waits.append((sent[0], got[0], flow.duration))
    start = dict.fromkeys(actions, 0)
    for _ in range(len(actions) + 1):
        later = {b: max(start[b], start[a] + takes[a] + delay) for a, b, delay in waits}
        for a, b, delay in waits:
            later[b] = max(later[b], start[a] + takes[a] + delay)
        if all(start[b] == time for b, time in later.items()):
            break
        start.update(later)
    else:
        return None
    if problem.objective == "span":
        own = [[(kind, number[d, stage], m) for kind, stage, m in word] for d, word in words.items()]
        return max(start[w[-1]] + takes[w[-1]] - start[w[0]] for w in own)
    sync = problem.synchronisation
    return max(start[a] + takes[a] + sync[problem.replicas[a[1]].stage] for a in actions) + problem.tail


def best_of(problem: ScheduleInstance, *, is_queued: bool = False) -> int | None:
    """The least objective over every combination of words; None if nothing fits."""
    devices = sorted({own.device for own in problem.replicas})
    best = None
    for combination in itertools.product(*(list(words_of(problem, device)) for device in devices)):
        words = dict(zip(devices, combination, strict=True))
        if is_queued:
            played = play(problem, words)
            end = None if played is None else played.objective
        else:
            end = end_of(problem, words)
        if end is not None and (best is None or end < best):
            best = end
    return best


# -------------------------------------------------------------------------------------------------- instances


QUEUED: dict[str, ScheduleInstance] = {
    "slow link": chain([(1, 1, 2), (1, 1, 2)], microbatches=3, transfer=4),
    "half duplex": chain([(2, 3, 1), (2, 1, 2)], microbatches=3, transfer=2, links="duplex"),
    "one link for all": chain([(1, 2, 1), (1, 1, 1), (2, 1, 2)], transfer=2, links="one"),
}
"""Transfers wait for each other here."""


# ------------------------------------------------------------------------------------------------------ hints


def big(seed: int = 0, *, stages: int = 8, microbatches: int = 20, budget: int = 4) -> ScheduleInstance:
    """Too hard to finish in seconds."""
    rng = random.Random(seed)
    times = [tuple(rng.randint(5_000_000, 20_000_000) for _ in range(3)) for _ in range(stages)]
    return chain(times, microbatches=microbatches, transfer=1_000_000, budget=budget)


# ----------------------------------------------------------------------------------------------------- limits


def test_too_large_is_refused():
    """Tests that a model above the size limit is refused politely, and how its size is counted."""
    problem = big(microbatches=400)
    assert estimate_size(problem) == 8 * 400 * 3 > MAX_SIZE
    result = solve_order(problem)
    assert (result.status, result.objective, result.bound, result.device_orders) == ("unknown", None, None, None)
    assert estimate_size(QUEUED["slow link"]) == 3 * (6 + 2)


# ---------------------------------------------------------------------------------------------------- scaling


def test_rounding_is_not_called_optimal():
    """Tests that numbers too large to be exact give a valid bound, playable words and no claim of optimality."""
    times = [(3 * 10**16 + 1, 2 * 10**16, 10**16), (10**16, 2 * 10**16 + 1, 3 * 10**16)]
    problem = chain(times, microbatches=2, held=10**12 + 1, stash=10**12 + 1, weight_stash=3, budget=2 * 10**12 + 2)
    result = solve_order(problem)
    best = best_of(problem)
    assert result.status == "feasible"
    assert best is not None
    assert result.bound is not None
    assert result.device_orders is not None
    assert 0.999 * best < result.bound <= best <= end_of(problem, result.device_orders)


# ----------------------------------------------------------------------------------------------- the real player
