"""Runs that never took place: a plan played with disturbed times, written down as the executor would."""

from random import Random

from planner.fidelity.attribution import Comparison, Quantities
from planner.fidelity.executed_run import ExecutedIteration, make_iteration
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate

BEGIN_NS = 1_000_000
"""What the clock of the host shows when an iteration begins."""


def compare(problem: Problem, plan: Plan, *iterations: ExecutedIteration) -> Comparison:
    return Comparison(problem, plan, timeline=simulate(problem, plan), iterations=iterations)


def run(comparison: Comparison, quantities: Quantities, *, number: int = 0) -> ExecutedIteration:
    """What the executor would write if everything took as long as `quantities` say."""
    end: dict[tuple[str, int], int] = {}
    spans: dict[str, list[tuple[str, int, int]]] = {device: [] for device in comparison.device_orders}
    asked: dict[str, list[int]] = {device: [] for device in comparison.device_orders}
    for key in comparison.order:
        device, place = key
        asks = (end[device, place - 1] if place else BEGIN_NS) + quantities.overhead_ns[key]
        inputs = zip(comparison.inputs.get(key, ()), quantities.lag_ns[key], strict=True)
        start = max([asks, *(end[source.producer] + lag for source, lag in inputs)]) + quantities.delay_ns[key]
        start += quantities.launch_ns[key]
        end[key] = start + quantities.duration_ns[key]
        spans[device].append((str(comparison.device_orders[device][place]), start, end[key]))
        asked[device].append(asks)
    groups = [{group[0] for group in stage.replicas} for stage in comparison.plan.stages]
    last = {device: word[-1][2] for device, word in spans.items()}
    rows = {}
    for device, word in spans.items():
        others = [last[other] for group in groups if device in group for other in group]
        reduced = max(others) + quantities.tail_ns[device]
        times = {"taken_up_ns": asked[device], "begin_ns": BEGIN_NS, "reduced_ns": reduced}
        rows[device] = (word, times | {"end_ns": reduced + quantities.optimizer_ns[device]})
    return make_iteration(number, plan=comparison.plan, rows=rows)


def disturbed(quantities: Quantities, rng: Random) -> Quantities:
    """Everything takes another time, and the processes need time of their own."""
    return Quantities(
        duration_ns={key: rng.randint(value // 2, 2 * value + 3) for key, value in quantities.duration_ns.items()},
        overhead_ns={key: rng.randint(0, 9) for key in quantities.overhead_ns},
        lag_ns={key: tuple(rng.randint(0, 2 * lag + 5) for lag in lags) for key, lags in quantities.lag_ns.items()},
        delay_ns={key: rng.choice((0, 0, 0, 7)) for key in quantities.delay_ns},
        launch_ns=dict.fromkeys(quantities.launch_ns, 0),
        tail_ns={key: rng.randint(0, 20) for key in quantities.tail_ns},
        optimizer_ns={key: rng.randint(0, 20) for key in quantities.optimizer_ns},
    )
