"""The steady-state planner against complete enumeration, written down a second time from the definition."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from benchmarks.steady_state import SteadyInstance, SteadyStage, list_suffixes, plan_steady_state
from tests.long_runs import IS_LONG

pytestmark = pytest.mark.skipif(not IS_LONG, reason="only a benchmark compiles these kernels: make test-long")


def make_instance(seed: int) -> SteadyInstance:
    """A tiny random instance: a chain with an edge or two more, one or two widths, memory that binds at times."""
    rng = np.random.default_rng(seed)
    layers, widths = int(rng.integers(1, 5)), ((1,), (1, 2), (1, 3))[int(rng.integers(3))]
    edges = [(x, x + 1) for x in range(layers - 1) if rng.random() < 0.8]
    edges += [(a, b) for a in range(layers) for b in range(a + 2, layers) if rng.random() < 0.3]
    shape = (len(widths), 2, layers)
    seconds = rng.integers(1, 20, size=shape).astype(float) / np.array(widths)[:, None, None] ** 0.7
    seconds[:, 1] = seconds[:, 0] * (1 + rng.integers(1, 4, size=(len(widths), layers)) / 4)
    if rng.random() < 0.3:
        seconds[-1, :, int(rng.integers(layers))] = np.inf
    growing = rng.integers(1, 8, size=shape).astype(float)
    growing[:, 1] = np.minimum(growing[:, 0], rng.integers(0, 3, size=(len(widths), layers)))
    fixed = rng.integers(0, 6, size=shape).astype(float)
    return SteadyInstance(
        widths=widths,
        seconds=np.where(np.isfinite(seconds), seconds, np.inf),
        weights=rng.integers(0, 30, size=(len(widths), layers)).astype(float),
        growing=growing,
        fixed=fixed,
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        crossing=rng.integers(0, 10, size=(len(widths), 2, len(edges))).astype(float),
        num_devices=int(rng.integers(1, 6)),
        num_microbatches=int(rng.choice([1, 2, 4, 6])),
        memory=float(rng.integers(10, 70)),
        bandwidth=float(rng.integers(1, 5)),
    )


def stage_seconds(instance: SteadyInstance, stage: SteadyStage, in_flight: int) -> float:
    """Time per sample of one stage; infinite if it does not fit or was not measured."""
    w, r = instance.widths.index(stage.width), stage.replicas
    variant = {x: int(x in stage.recompute) for x in stage.layers}
    used = sum(instance.growing[w, v, x] * in_flight + instance.fixed[w, v, x] for x, v in variant.items())
    if used > instance.memory + 1e-9:
        return np.inf
    moved = sum(
        instance.crossing[w, end, e]
        for e, edge in enumerate(instance.edges.tolist())
        for end in (0, 1)
        if edge[end] in variant and edge[1 - end] not in variant
    )
    compute = sum(instance.seconds[w, v, x] for x, v in variant.items())
    weights = sum(instance.weights[w, x] for x in variant)
    synchronised = 4 * (r - 1) / r * weights / instance.num_microbatches
    return float((compute + moved / instance.bandwidth) / r + synchronised / instance.bandwidth)


def best_value(instance: SteadyInstance) -> float:
    """Least time of the slowest stage over all ways to peel stages off the end, by plain recursion."""
    layers = frozenset(range(instance.seconds.shape[2]))
    suffixes = [suffix for suffix in list_suffixes(instance.edges, num_layers=len(layers)) if suffix != layers]

    def best(done: frozenset[int], devices: int, replicas: int) -> float:
        """`done` layers are planned with so many replicas; what remains goes in front, last stage first."""
        if done == layers:
            return 0.0
        found = np.inf
        for larger in [*(s for s in suffixes if s > done), layers]:
            inside = sorted(larger - done)
            for width, r in product(instance.widths, range(1, instance.num_microbatches + 1)):
                total = replicas + r
                if instance.num_microbatches % r or r * width > devices or total > instance.num_microbatches:
                    continue
                for flags in product((False, True), repeat=len(inside)):
                    recompute = tuple(x for x, flag in zip(inside, flags, strict=True) if flag)
                    stage = SteadyStage(layers=tuple(inside), width=width, replicas=r, recompute=recompute)
                    own = stage_seconds(instance, stage, -(-total // r))
                    if own < found:
                        found = min(found, max(own, best(larger, devices - r * width, total)))
        return found

    return best(frozenset(), instance.num_devices, 0)


@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force(seed: int):
    """Tests that the value is that of complete enumeration, and that the plan's stages have it."""
    instance = make_instance(seed)
    expected, plan = best_value(instance), plan_steady_state(instance)
    if plan is None:
        assert expected == np.inf
        return
    assert plan.seconds_per_sample == pytest.approx(expected, rel=1e-9)
    behind = sum(stage.replicas for stage in plan.stages)
    worst = 0.0
    for stage in plan.stages:
        worst = max(worst, stage_seconds(instance, stage, -(-behind // stage.replicas)))
        behind -= stage.replicas
    assert worst == pytest.approx(plan.seconds_per_sample, rel=1e-9)
    assert plan.num_devices <= instance.num_devices
    assert sorted(x for stage in plan.stages for x in stage.layers) == list(range(instance.seconds.shape[2]))


def test_more_never_hurts():
    """Tests that more memory and more devices never make the value larger."""
    instance = make_instance(7)
    plans = [
        plan_steady_state(replace(instance, memory=memory, num_devices=devices))
        for memory, devices in ((60.0, 2), (60.0, 4), (600.0, 4), (600.0, 8))
    ]
    values = [np.inf if plan is None else plan.seconds_per_sample for plan in plans]
    assert values == sorted(values, reverse=True)
    assert values[-1] < np.inf


def test_too_many_suffixes():
    """Tests that a graph without edges is refused with the remedy."""
    table = np.ones((1, 2, 20))
    many = replace(
        make_instance(0), widths=(1,), seconds=table, growing=table, fixed=table, edges=np.zeros((0, 2), np.int64)
    )
    with pytest.raises(ValueError, match="merge layers"):
        plan_steady_state(many)


def test_too_many_combinations():
    """Tests that unlike layers beyond the limit of combinations are refused with the remedy."""
    layers = 18
    unlike = SteadyInstance(
        widths=(1,),
        seconds=np.stack((np.ones((1, layers)), np.full((1, layers), 2.0)), axis=1),
        weights=np.zeros((1, layers)),
        growing=np.stack((2.0 ** np.arange(layers)[None], np.zeros((1, layers))), axis=1),
        fixed=np.zeros((1, 2, layers)),
        edges=np.array([(x, x + 1) for x in range(layers - 1)], dtype=np.int64),
        crossing=np.zeros((1, 2, layers - 1)),
        num_devices=2,
        num_microbatches=4,
        memory=1e9,
        bandwidth=1.0,
    )
    with pytest.raises(ValueError, match="merge alike layers"):
        plan_steady_state(unlike)
