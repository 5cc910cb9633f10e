"""Runtime concurrency control: strategies on drawn graphs, and CP-SAT against every schedule of small ones."""

from itertools import permutations, product
from random import Random

import pytest

from benchmarks.concurrency.plan_cores import plan_cores
from benchmarks.concurrency.strategies import (
    Operation,
    Placed,
    best_widths,
    find_mistakes,
    makespan_ns,
    run_one_by_one,
    run_side_by_side,
    uniform_widths,
    widths_by_kind,
)
from benchmarks.operation_graphs import GRAPHS, training_graph
from benchmarks.seeds_concurrency import STAGES, work_shares


def test_no_stage_that_is_run_has_most_of_the_work():
    """Tests that the stages of the real run are not such that only uneven widths can win."""
    assert max(work_shares(STAGES)) < 0.3


def random_operations(rng: Random, *, count: int, cores: int) -> list[Operation]:
    found = []
    for number in range(count):
        work = rng.randint(1, 60)
        times = {1: work}
        for width in range(2, cores + 1):
            times[width] = max(1, round(work / width) + rng.randint(0, 6))
        after = tuple(other for other in range(number) if rng.random() < 0.3)
        found.append(Operation(name=f"o{number}", kind=rng.choice("ab"), times_ns=times, after=after))
    return found


def least_makespan(operations: list[Operation], cores: int) -> int:
    """By starting operations as soon as they fit, in every order and with all widths."""
    best = sum(max(operation.times_ns.values()) for operation in operations)
    for widths in product(*(operation.times_ns for operation in operations)):
        for order in permutations(range(len(operations))):
            best = min(best, _serial(operations, widths, order=order, cores=cores) or best)
    return best


def _serial(operations: list[Operation], widths: tuple[int, ...], *, order: tuple[int, ...], cores: int) -> int | None:
    """Serial generation: each operation, in turn, at the earliest time at which it fits throughout."""
    spans: dict[int, tuple[int, int]] = {}
    for number in order:
        if any(before not in spans for before in operations[number].after):
            return None
        time, width = operations[number].times_ns[widths[number]], widths[number]
        ready = max((spans[before][1] for before in operations[number].after), default=0)
        for now in sorted({ready, *(end for _, end in spans.values() if end > ready)}):
            moments = [now, *(begin for begin, _ in spans.values() if now < begin < now + time)]
            if all(
                width + sum(widths[n] for n, (begin, end) in spans.items() if begin <= moment < end) <= cores
                for moment in moments
            ):
                spans[number] = now, now + time
                break
    return max(end for _, end in spans.values())


def test_cp_sat_finds_the_least_makespan():
    """Tests that on small graphs the plan is as short as the best of all orders and widths, and the bound below it."""
    rng = Random(1)
    for _ in range(12):
        operations = random_operations(rng, count=4, cores=3)
        plan = plan_cores(operations, cores=3, time_limit_s=20)
        assert plan.makespan_ns == least_makespan(operations, 3)
        assert plan.solver_bound_ns <= plan.makespan_ns
        assert find_mistakes(operations, plan.placed, cores=3) == []


@pytest.mark.parametrize("name", GRAPHS)
def test_every_strategy_is_a_schedule(name: str):
    """Tests that every strategy respects precedences and cores on every graph, and that the plan is never longer."""
    operations = training_graph(GRAPHS[name](), cores=16)
    best, by_kind = best_widths(operations), widths_by_kind(operations)
    schedules = [
        run_one_by_one(operations, uniform_widths(operations, 16)),
        run_one_by_one(operations, best),
        run_one_by_one(operations, by_kind),
        run_side_by_side(operations, best, cores=16),
        run_side_by_side(operations, by_kind, cores=16),
    ]
    for placed in schedules:
        assert find_mistakes(operations, placed, cores=16) == []
    assert makespan_ns(schedules[1]) <= makespan_ns(schedules[0])
    assert makespan_ns(schedules[1]) <= makespan_ns(schedules[2])
    plan = plan_cores(operations, cores=16, time_limit_s=1)
    assert find_mistakes(operations, plan.placed, cores=16) == []
    assert plan.makespan_ns <= min(map(makespan_ns, schedules))


def test_side_by_side_by_hand():
    """Tests that a short operation runs beside a long one, and that one which would outlast it waits."""
    operations = [
        Operation(name="long", kind="a", times_ns={1: 20, 2: 10}),
        Operation(name="short", kind="b", times_ns={1: 6}),
        Operation(name="longer", kind="c", times_ns={1: 15}),
    ]
    placed = {each.operation: each for each in run_side_by_side(operations, [1, 1, 1], cores=2)}
    assert [(placed[n].start_ns, placed[n].end_ns) for n in range(3)] == [(0, 20), (20, 26), (0, 15)]
    placed = {each.operation: each for each in run_side_by_side(operations, [2, 1, 1], cores=3)}
    assert [(placed[n].start_ns, placed[n].end_ns) for n in range(3)] == [(0, 10), (15, 21), (0, 15)]


def test_small_operations_on_siblings():
    """Tests that a small operation runs on a sibling of busy cores, and one that would outlast them waits."""
    operations = [
        Operation(name="wide", kind="a", times_ns={1: 40, 2: 20}),
        Operation(name="small", kind="b", times_ns={1: 10}),
        Operation(name="medium", kind="c", times_ns={1: 15}),
    ]
    placed = {each.operation: each for each in run_side_by_side(operations, [2, 1, 1], cores=2, sibling_percent=160)}
    assert [(placed[n].start_ns, placed[n].end_ns, placed[n].on_sibling) for n in range(3)] == [
        (0, 20, False), (0, 16, True), (20, 35, False)
    ]  # fmt: skip
    assert find_mistakes(operations, list(placed.values()), cores=2, sibling_percent=160) == []
    assert any("on a sibling" in each for each in find_mistakes(operations, list(placed.values()), cores=2))
    many = [placed[1]] * 3
    assert any("3 of 2 siblings" in each for each in find_mistakes(operations, many, cores=2, sibling_percent=160))


@pytest.mark.parametrize("name", GRAPHS)
def test_siblings_are_never_worse(name: str):
    """Tests that on every graph strategy 4 gives a valid schedule, and that none takes longer than without."""
    operations = training_graph(GRAPHS[name](), cores=16)
    for widths in (best_widths(operations), widths_by_kind(operations)):
        without = run_side_by_side(operations, widths, cores=16)
        placed = run_side_by_side(operations, widths, cores=16, sibling_percent=160)
        assert find_mistakes(operations, placed, cores=16, sibling_percent=160) == []
        assert makespan_ns(placed) <= makespan_ns(without)


def test_one_width_per_kind():
    """Tests that the most expensive instance decides, and that others take the nearest width they were measured on."""
    operations = [
        Operation(name="large", kind="a", times_ns={1: 100, 2: 60, 4: 40}),
        Operation(name="small", kind="a", times_ns={1: 5, 2: 6}),
        Operation(name="other", kind="b", times_ns={1: 7, 2: 9}),
    ]
    assert best_widths(operations) == [4, 1, 1]
    assert widths_by_kind(operations) == [4, 2, 1]
    assert uniform_widths(operations, 4) == [4, 2, 2]


def test_mistakes_are_found():
    """Tests that each rule of a schedule is checked: every operation once, its time, what it waits for, the cores."""
    operations = [
        Operation(name="a", kind="a", times_ns={1: 10, 2: 5}),
        Operation(name="b", kind="a", times_ns={1: 10}, after=(0,)),
    ]
    good = [Placed(operation=0, start_ns=0, end_ns=5, width=2), Placed(operation=1, start_ns=5, end_ns=15, width=1)]
    assert find_mistakes(operations, good, cores=2) == []
    assert "exactly once" in find_mistakes(operations, good[:1], cores=2)[0]
    assert (
        "does not take" in find_mistakes(operations, [Placed(operation=0, start_ns=0, end_ns=6, width=2)], cores=2)[1]
    )
    early = [good[0], Placed(operation=1, start_ns=4, end_ns=14, width=1)]
    assert any("waits for" in mistake for mistake in find_mistakes(operations, early, cores=3))
    assert any("3 of 2 cores" in mistake for mistake in find_mistakes(operations, early, cores=2))
