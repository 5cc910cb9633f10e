"""What the tables about orders share: chains with given stages on given devices."""

import random
from collections.abc import Sequence
from itertools import pairwise

from planner.problem import Objective, Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

Times = tuple[int, int, int]
"""Microseconds of F, I and W of a stage."""

STASH_BYTES = 1_000
"""Stash of a device's share of the model for one microbatch, all of it kept until the end of W."""


def even_times(num_stages: int, *, time_us: int = 1_000) -> list[Times]:
    """F = I = W everywhere."""
    return [(time_us, time_us, time_us)] * num_stages


def uneven_times(num_stages: int, *, seed: int) -> list[Times]:
    """Every stage between two thirds and four thirds of the mean, F : I : W about 1 : 1 : 0.7."""
    rng = random.Random(seed)
    result = []
    for _ in range(num_stages):
        scale = rng.uniform(2 / 3, 4 / 3)
        f, i, w = (round(1_000 * scale * part * rng.uniform(0.8, 1.2)) for part in (1, 1, 0.7))
        result.append((f, i, w))
    return result


def make_problem(
    times: Sequence[Times],
    *,
    num_microbatches: int,
    memory: float,
    chunks: int = 1,
    transfer_us: int = 20,
    objective: Objective = "makespan",
) -> Problem:
    """One layer per stage; with two chunks, stages d and 2 D - 1 - d on device d.

    `memory` is in units of what 1F1B needs on the first device: as many stashes as there are devices.
    """
    num_stages = len(times)
    num_devices = num_stages // chunks
    names = [f"stage-{number}" for number in range(num_stages)]
    devices = [f"gpu{number:02}" for number in range(num_devices)]
    layers = tuple(_layer(name, each, chunks) for name, each in zip(names, times, strict=True))
    budget = int(memory * num_devices * STASH_BYTES)
    seats = [*devices, *reversed(devices)][:num_stages]
    return Problem(
        profile=ModelProfile(
            name=f"{num_stages} stages",
            layers=layers,
            edges=tuple(Edge(producer=a, consumer=b, bytes=transfer_us) for a, b in pairwise(names)),
        ),
        cluster=Cluster(
            name=f"{num_devices} devices",
            devices=tuple(Device(name=name, type="gpu", memory_bytes=budget) for name in devices),
            links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**6) for a, b in pairwise(devices)),
        ),
        num_microbatches=num_microbatches,
        options=Options(
            receive_buffers=0,
            objective=objective,
            partition=tuple((name,) for name in names),
            placement=tuple(((seat,),) for seat in seats),
        ),
    )


def _layer(name: str, times: Times, chunks: int) -> Layer:
    forward, input_grad, weight_grad = (1_000 * each for each in times)
    cost = LayerCost(device_type="gpu", forward_ns=forward, input_grad_ns=input_grad, weight_grad_ns=weight_grad)
    stash = STASH_BYTES // chunks
    return Layer(
        name=name, costs=(cost,), parameter_bytes=1, state_bytes=0, stash_bytes=stash, weight_stash_bytes=stash
    )
