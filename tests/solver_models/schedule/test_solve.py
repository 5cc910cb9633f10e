"""The CP-SAT order model against enumeration, rule by rule."""

import _thread
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from ortools.sat.python import cp_model

from planner.actions import KINDS, Action
from planner.layout.costs import CostModel
from planner.lowering import make_schedule_instance
from planner.plan import Plan, ProblemReference, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
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
from solver_models.schedule.constraints import Rules
from solver_models.schedule.effort import SolveEffort
from solver_models.schedule.evaluation import in_order, play
from solver_models.schedule.scale import scaled
from solver_models.schedule.serial_schedule import one_by_one
from solver_models.schedule.solve import MAX_SIZE, estimate_size, make_model, solve_order


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
        tail=0, budgets=(budget,) * (1 + max(own.device for own in lanes)), can_split=True, objective="makespan",
    )  # fmt: skip
    return replace(plain, **changes)


def chain(times: list[tuple[int, int, int]], **options) -> ScheduleInstance:
    """One lane per device."""
    changes = {name: options.pop(name) for name in list(options) if name in StageReplica.__slots__}
    return instance([lane(s, s, own, **changes) for s, own in enumerate(times)], **options)


def one_way(problem: ScheduleInstance) -> ScheduleInstance:
    """The same without gradients between devices, as after frozen layers."""
    return replace(problem, transfers=tuple(flow for flow in problem.transfers if not flow.is_backward))


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
        yield from merge([q for q in queues if q], [], {own.stage: own for own in lanes}, problem.budgets[device], 0)


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


def peak_units(problem: ScheduleInstance, device: int, word: DeviceOrder) -> int:
    """The largest number of units held on a device."""
    lanes, held, peak = {own.stage: own for own in problem.replicas if own.device == device}, 0, 0
    for kind, stage, _ in word:
        during, after = memory_steps(lanes[stage], kind)
        peak, held = max(peak, held + during), held + after
    return peak


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

UNEVEN = [(3, 4, 2), (5, 2, 6)]

TINY: dict[str, ScheduleInstance] = {
    "even": chain([(2, 2, 2), (2, 2, 2)], microbatches=3),
    "uneven": chain(UNEVEN, microbatches=3, transfer=1),
    "three devices": chain([(1, 4, 2), (3, 2, 2), (2, 3, 1)], transfer=1),
    "tight": chain(UNEVEN, microbatches=3, budget=1),
    "stash shrinks after I": chain(UNEVEN, microbatches=3, held=5, stash=5, weight_stash=2, budget=7),
    "stash ends with I": chain(UNEVEN, microbatches=3, weight_stash=0, budget=1),
    "recomputation": chain(UNEVEN, microbatches=3, held=2, stash=6, weight_stash=5, workspace=1, budget=8),
    "workspace": chain(UNEVEN, microbatches=3, workspace=3, budget=4),
    "workspace kept until W": chain(
        UNEVEN, microbatches=3, held=3, stash=3, weight_stash=1 + 2, workspace=2, weight_workspace=0, budget=8
    ),
    "workspace kept until W, more than was held": chain(
        UNEVEN, microbatches=3, held=2, stash=3, weight_stash=2 + 3, workspace=3, weight_workspace=0, budget=9
    ),
    "B or I and W, workspace kept until W": chain(
        [(2, 4, 4), (2, 4, 4)], backward=6, held=2, stash=2, weight_stash=1 + 3, workspace=3, weight_workspace=0,
        budget=7,
    ),
    "no weights": chain(UNEVEN, microbatches=3, has_weight_grad=False, weight_grad=0, weight_stash=0, budget=1),
    "only B": chain(UNEVEN, microbatches=3, backward=7, can_split=False, budget=2),
    "B or I and W": chain([(2, 4, 4), (2, 4, 4)], backward=6),
    "B or I and W, tight": chain(
        [(2, 4, 4), (2, 4, 4)], backward=6, held=3, stash=4, weight_stash=2, workspace=1, budget=7
    ),
    "synchronisation": chain(UNEVEN, microbatches=3, synchronisation=(9, 0), tail=4),
    "span": chain(UNEVEN, microbatches=3, transfer=3, objective="span"),
    "one device, two stages": instance(
        [lane(0, 0, (2, 3, 1), held=2, stash=2, weight_stash=1), lane(1, 0, (1, 1, 2), workspace=1)], budget=4
    ),
    "V": instance([lane(0, 0, (2, 1, 1)), lane(1, 1, (3, 1, 2)), lane(2, 1, (1, 2, 1)), lane(3, 0, (1, 1, 1))],
                  microbatches=1, transfer=1),
    "V, span": instance([lane(0, 0, (2, 1, 1)), lane(1, 1, (3, 1, 2)), lane(2, 1, (1, 2, 1)), lane(3, 0, (1, 1, 1))],
                        microbatches=1, transfer=1, objective="span"),
    "no time at all": chain([(0, 2, 0), (3, 0, 2)], microbatches=3, budget=2),
}  # fmt: skip
"""Small enough to enumerate; no transfer waits for another."""

QUEUED: dict[str, ScheduleInstance] = {
    "slow link": chain([(1, 1, 2), (1, 1, 2)], microbatches=3, transfer=4),
    "half duplex": chain([(2, 3, 1), (2, 1, 2)], microbatches=3, transfer=2, links="duplex"),
    "late inputs, span": one_way(chain([(1, 1, 1), (1, 2, 1)], transfer=9, objective="span")),
    "one link for all": chain([(1, 2, 1), (1, 1, 1), (2, 1, 2)], transfer=2, links="one"),
}
"""Transfers wait for each other here."""


@pytest.mark.parametrize("name", TINY)
def test_optimum_equals_enumeration(name: str):
    """Tests that the model's optimum is the least objective over all orders, and its words attain it and fit."""
    problem = TINY[name]
    best = best_of(problem)
    result = solve_order(problem)
    assert (result.status, result.objective, result.bound) == ("optimal", best, best)
    assert result.device_orders is not None
    assert end_of(problem, result.device_orders) == best
    assert all(peak_units(problem, d, word) <= problem.budgets[d] for d, word in result.device_orders.items())


@pytest.mark.parametrize("name", QUEUED)
def test_free_links_are_a_floor(name: str):
    """Tests that with queues on links the optimum is at most the best under the rule by readiness."""
    problem = QUEUED[name]
    best = best_of(problem, is_queued=True)
    result = solve_order(problem)
    assert result.status == "optimal"
    assert best is not None
    assert result.device_orders is not None
    assert result.objective is not None
    assert result.objective <= best <= play(problem, result.device_orders).objective


def test_play_agrees_with_longest_paths():
    """Tests that the event-driven player gives the times of the longest-path evaluation where no link is contended."""
    for problem in TINY.values():
        devices = sorted({own.device for own in problem.replicas})
        everything = [list(itertools.islice(words_of(problem, device), 40)) for device in devices]
        for combination in itertools.islice(itertools.product(*everything), 200):
            words = dict(zip(devices, combination, strict=True))
            played = play(problem, words)
            assert (None if played is None else played.objective) == end_of(problem, words)


WITHOUT: dict[str, ScheduleInstance] = {
    "microbatches_come_in_order": QUEUED["slow link"],
    "backward_follows_forward": chain([(2, 2, 2), (2, 2, 2)], microbatches=1),
    "weight_grad_follows_input_grad": TINY["tight"],
    "device_runs_one_action_at_a_time": TINY["even"],
    "transfer_follows_its_sender": QUEUED["slow link"],
    "receiver_waits_for_arrival": TINY["uneven"],
    "link_carries_one_transfer_at_a_time": QUEUED["one link for all"],
    "memory_stays_within_budget": TINY["tight"],
    "objective_covers_every_replica": TINY["synchronisation"],
    "device_starts_as_early_as_it_can": QUEUED["late inputs, span"],
}
"""For every rule, an instance whose optimum would be lower without it."""


@pytest.mark.parametrize("rule", WITHOUT)
def test_every_rule_binds(rule: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that the optimum is lower once a rule is left out (and with it the floor that the rules imply)."""
    monkeypatch.setattr(Rules, "device_needs_its_work", lambda self: None)
    complete = solve_order(WITHOUT[rule]).objective
    monkeypatch.setattr(Rules, rule, lambda self: None)
    relaxed = solve_order(WITHOUT[rule]).bound
    assert complete is not None
    assert relaxed is not None
    assert relaxed < complete


def test_every_rule_is_tested():
    """Tests that every rule but the implied one stands in the table above."""
    assert set(Rules.NAMES) - {"device_needs_its_work"} == set(WITHOUT)


def test_work_of_a_device_is_a_floor_at_once(monkeypatch: pytest.MonkeyPatch):
    """Tests that the bound is at least fill + work before any search, and lower without that rule."""
    problem = chain([(3, 4, 2), (5, 2, 6), (4, 4, 4)], microbatches=8)
    floors = []
    for _ in range(2):
        solver = cp_model.CpSolver()
        solver.parameters.cp_model_presolve = False
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = 1e-9
        solver.solve(make_model(problem).model)
        floors.append(solver.response_proto.inner_objective_lower_bound)
        monkeypatch.setattr(Rules, "device_needs_its_work", lambda self: None)
    assert floors[0] >= 3 + 8 * 13 > floors[1]


# ------------------------------------------------------------------------------------------------------ hints


@pytest.mark.parametrize("name", [*TINY, *QUEUED])
def test_hint_is_complete_and_feasible(name: str):
    """Tests that a hint gives every variable a value, and that these values alone are a solution."""
    problem = {**TINY, **QUEUED}[name]
    hint = one_by_one(problem)
    order = make_model(problem, hint=hint)
    proto = order.model.proto
    assert sorted(proto.solution_hint.vars) == list(range(len(proto.variables)))
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(order.model) == cp_model.OPTIMAL
    assert solver.objective_value == play(scaled(problem).instance, hint).objective


@pytest.mark.parametrize("mix", [0, 1, 2, 3])
def test_hint_may_mix_fused_and_split(mix: int):
    """Tests that hints in which some backward passes are fused are complete and feasible too."""
    problem = TINY["B or I and W, tight"]
    word = []
    for m in range(2):
        is_fused = bool(mix >> m & 1)
        word += [(FORWARD, 0, m), *([(BACKWARD, 0, m)] if is_fused else [(INPUT_GRAD, 0, m), (WEIGHT_GRAD, 0, m)])]
    hint = {0: word, 1: [(kind, 1, m) for kind, _, m in word]}
    order = make_model(problem, hint=hint)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(order.model) == cp_model.OPTIMAL
    assert solver.objective_value * order.scaled.ticks == end_of(problem, hint)


def big(seed: int = 0, *, stages: int = 8, microbatches: int = 20, budget: int = 4) -> ScheduleInstance:
    """Too hard to finish in seconds."""
    rng = random.Random(seed)
    times = [tuple(rng.randint(5_000_000, 20_000_000) for _ in range(3)) for _ in range(stages)]
    return chain(times, microbatches=microbatches, transfer=1_000_000, budget=budget)


def test_hint_is_returned_without_search():
    """Tests that with next to no effort the answer is at least as good as the hint."""
    problem = big()
    hint = one_by_one(problem)
    result = solve_order(problem, hint=hint, effort=SolveEffort(deterministic_limit=0.02))
    assert result.status == "feasible"
    assert result.objective is not None
    assert result.objective <= play(problem, hint).objective


def test_impossible_hint_is_ignored():
    """Tests that a hint that deadlocks or lacks actions does no harm."""
    problem = TINY["even"]
    for hint in ({0: [], 1: []}, {0: [(INPUT_GRAD, 0, 0)], 1: []}):
        assert solve_order(problem, hint=hint).objective == best_of(problem)


def test_microbatches_are_renumbered():
    """Tests that words whose microbatches are out of order are read as the same words in order."""
    word = [(FORWARD, 0, 1), (FORWARD, 0, 0), (INPUT_GRAD, 0, 0), (BACKWARD, 0, 1), (WEIGHT_GRAD, 0, 0)]
    assert in_order({7: word}) == {
        7: [(FORWARD, 0, 0), (FORWARD, 0, 1), (INPUT_GRAD, 0, 0), (BACKWARD, 0, 1), (WEIGHT_GRAD, 0, 0)]
    }


# ----------------------------------------------------------------------------------------------------- limits


def test_upper_bound_cuts():
    """Tests that asking for less than the optimum gives `infeasible` and a bound of one more than was asked."""
    problem = TINY["uneven"]
    best = best_of(problem)
    assert best is not None
    result = solve_order(problem, upper_bound=best - 1)
    assert (result.status, result.bound, result.device_orders) == ("infeasible", best, None)
    assert solve_order(problem, upper_bound=best).objective == best


def test_nothing_fits():
    """Tests that a stage that cannot hold one microbatch makes the model infeasible, without a bound."""
    result = solve_order(chain(UNEVEN, budget=0))
    assert (result.status, result.objective, result.bound) == ("infeasible", None, None)


def test_too_large_is_refused():
    """Tests that a model above the size limit is refused politely, and how its size is counted."""
    problem = big(microbatches=400)
    assert estimate_size(problem) == 8 * 400 * 3 > MAX_SIZE
    result = solve_order(problem)
    assert (result.status, result.objective, result.bound, result.device_orders) == ("unknown", None, None, None)
    assert estimate_size(QUEUED["slow link"]) == 3 * (6 + 2)


def test_stop_is_obeyed_within_half_a_second():
    """Tests that the solver works no longer than half a second after it is told to stop, and keeps what it has."""
    problem = big(microbatches=40)
    asked: list[float] = []

    def should_stop() -> bool:
        asked.append(time.process_time())
        return len(asked) > 40

    result = solve_order(
        problem, hint=one_by_one(problem), effort=SolveEffort(time_limit_s=60, should_stop=should_stop)
    )
    assert time.process_time() - asked[40] < 0.5
    assert result.device_orders is not None
    assert result.bound is not None


def test_keyboard_interrupt_is_heard():
    """Tests that Ctrl+C reaches the caller while the solver is in C++."""
    timer = threading.Timer(0.5, _thread.interrupt_main)
    timer.start()
    start = time.process_time()
    with pytest.raises(KeyboardInterrupt):
        solve_order(big(), hint=one_by_one(big()), effort=SolveEffort(time_limit_s=60))
    assert time.process_time() - start < 2


def test_time_limit_is_kept():
    """Tests that the answer comes soon after the time limit, with a bound below the objective."""
    start = time.process_time()
    result = solve_order(big(), hint=one_by_one(big()), effort=SolveEffort(time_limit_s=1))
    assert time.process_time() - start < 2
    assert result.status == "feasible"
    assert 0 < result.bound < result.objective


def test_same_seed_same_words():
    """Tests that one worker under a deterministic limit gives the same answer twice."""
    problem = big(stages=4, microbatches=12, budget=2)
    first, second = (
        solve_order(
            problem, hint=one_by_one(problem), effort=SolveEffort(deterministic_limit=0.2, seed=5, time_limit_s=60)
        )
        for _ in "ab"
    )
    assert first == second


# ---------------------------------------------------------------------------------------------------- scaling


@pytest.mark.parametrize("factor", [1000, 10**9 + 7, 2**31])
def test_scaling_is_exact(factor: int):
    """Tests that multiplying all times and all sizes changes nothing but the units."""
    problem = TINY["recomputation"]
    names = set(StageReplica.__slots__) - {"stage", "device", "has_weight_grad"}
    lanes = tuple(replace(own, **{name: factor * getattr(own, name) for name in names}) for own in problem.replicas)
    large = replace(problem, replicas=lanes, budgets=tuple(factor * b + factor - 1 for b in problem.budgets))
    assert scaled(large).instance == scaled(problem).instance
    assert scaled(large).has_exact_times
    assert solve_order(large).objective == factor * best_of(problem)


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


@pytest.mark.parametrize("short", [0, 1])
def test_rounded_sizes_are_checked(short: int):
    """Tests that where bytes are rounded, words that fit are called optimal, and words that do not are not given."""
    stash = 10**12 + 7
    fields = {"held": stash, "stash": stash, "weight_stash": stash - 10**11}
    times = [(3 * 10**9 + 1, 4 * 10**9, 10**9)]
    problem = chain(times, microbatches=2, budget=stash - short, **fields)
    result = solve_order(problem)
    assert result.status == ("optimal", "unknown")[short]
    assert (result.device_orders is None) == bool(short)


def test_memory_of_an_action_without_length_is_checked():
    """Tests that words are not given if only an action that takes no time breaks the memory limit."""
    own = lane(0, 0, (1, 0, 3), held=1, stash=3, weight_stash=0)
    problem = instance([own], budget=3, objective="span")
    result = solve_order(problem)
    assert result.device_orders is None or peak_units(problem, 0, result.device_orders[0]) <= 3


def test_a_hundred_actions_are_proved_in_a_second():
    """Tests that optimality is proved for a hundred actions in a second, loose and tight."""
    for budget in (2, 4):
        problem = big(stages=4, microbatches=8, budget=budget)
        solve_order(TINY["even"])
        start = time.process_time()
        result = solve_order(problem, hint=one_by_one(problem), effort=SolveEffort(time_limit_s=20))
        assert result.status == "optimal"
        assert time.process_time() - start < 5  # a second on an idle core


# ----------------------------------------------------------------------------------------------- the real player


def real_problem(memory_bytes: int) -> Problem:
    """Four layers for two devices, the second half of the stash kept until W."""
    layers = tuple(
        Layer(
            name=f"l{n}",
            costs=(LayerCost(device_type="x", forward_ns=2 + n, input_grad_ns=3, weight_grad_ns=4 - n),),
            parameter_bytes=1,
            state_bytes=3,
            stash_bytes=4,
            weight_stash_bytes=2,
            workspace_bytes=n,
        )
        for n in range(4)
    )
    edges = tuple(Edge(producer=f"l{n}", consumer=f"l{n + 1}", bytes=1) for n in range(3))
    devices = tuple(Device(name=name, type="x", memory_bytes=memory_bytes) for name in "ab")
    return Problem(
        profile=ModelProfile(name="p", layers=layers, edges=edges, microbatch_size=1),
        cluster=Cluster(name="c", devices=devices, links=(Link(a="a", b="b", bandwidth_bytes_per_s=10**9),)),
        num_microbatches=4,
    )


@pytest.mark.parametrize("memory_bytes", [20, 24, 31, 99])
@pytest.mark.parametrize("shape", ["ab", "aabb", "abba"])
def test_words_play_in_the_simulator(shape: str, memory_bytes: int):
    """Tests that decoded words, played by the planner's simulator, take the claimed time and stay within memory."""
    problem = real_problem(memory_bytes)
    each = 4 // len(shape)
    stages = tuple(
        Stage(layers=tuple(f"l{n}" for n in range(each * s, each * (s + 1))), replicas=((device,),))
        for s, device in enumerate(shape)
    )
    costs = CostModel(problem)
    result = solve_order(make_schedule_instance(problem, stages, costs=costs), effort=SolveEffort(time_limit_s=20))
    if result.device_orders is None:
        assert result.status == "infeasible"
        assert memory_bytes < 24
        return
    schedule = {"ab"[d]: tuple(Action(KINDS[k], s, m) for k, s, m in word) for d, word in result.device_orders.items()}
    reference = ProblemReference(profile="p", profile_sha256="", cluster_sha256="", num_microbatches=4, options={})
    timeline = simulate(problem, Plan(problem=reference, stages=stages, schedule=schedule), costs=costs)
    assert timeline.makespan_ns == result.objective
    assert max(timeline.peak_bytes.values()) <= memory_bytes
