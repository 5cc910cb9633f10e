"""What the tables about orders share: chains with given stages on given devices."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

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
    """One layer per stage; links take a microsecond per byte.

    `memory` is in units of what 1F1B needs on the first device: as many stashes as there are devices.
    """
    return make_chain(
        [_layer(f"stage-{number}", each, chunks) for number, each in enumerate(times)],
        num_microbatches=num_microbatches,
        memory_bytes=int(memory * (len(times) // chunks) * STASH_BYTES),
        chunks=chunks,
        edge_bytes=transfer_us,
        bytes_per_s=10**6,
        objective=objective,
    )


def make_chain(
    layers: Sequence[Layer],
    *,
    num_microbatches: int,
    memory_bytes: int,
    chunks: int = 1,
    edge_bytes: int = 0,
    bytes_per_s: int = 10**9,
    **options: Any,
) -> Problem:
    """Every layer a stage, on a chain of devices; with two chunks, stages d and 2 D - 1 - d on device d."""
    names = [layer.name for layer in layers]
    devices = [f"gpu{number:02}" for number in range(len(layers) // chunks)]
    seats = [*devices, *reversed(devices)][: len(layers)]
    return Problem(
        profile=ModelProfile(
            name=f"{len(layers)} stages",
            layers=tuple(layers),
            edges=tuple(Edge(producer=a, consumer=b, bytes=edge_bytes) for a, b in pairwise(names)),
        ),
        cluster=Cluster(
            name=f"{len(devices)} devices",
            devices=tuple(Device(name=name, type="gpu", memory_bytes=memory_bytes) for name in devices),
            links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=bytes_per_s) for a, b in pairwise(devices)),
        ),
        num_microbatches=num_microbatches,
        options=Options(
            receive_buffers=0,
            partition=tuple((name,) for name in names),
            placement=tuple(((seat,),) for seat in seats),
            **options,
        ),
    )


def _layer(name: str, times: Times, chunks: int) -> Layer:
    forward, input_grad, weight_grad = (1_000 * each for each in times)
    cost = LayerCost(device_type="gpu", forward_ns=forward, input_grad_ns=input_grad, weight_grad_ns=weight_grad)
    stash = STASH_BYTES // chunks
    return Layer(
        name=name, costs=(cost,), parameter_bytes=1, state_bytes=0, stash_bytes=stash, weight_stash_bytes=stash
    )
