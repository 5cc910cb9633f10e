"""The chain of linear layers that ranks of `layer_pipe_worker` run; it needs no torch."""

from itertools import pairwise

from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

WIDTHS = (48, 96, 64, 128, 32, 80, 16)
BATCH, MICROBATCHES = 8, 4


def make_problem(num_devices: int) -> Problem:
    """A chain of linear layers with ReLU; times follow the multiply-accumulates."""
    layers = tuple(
        Layer(
            name=f"l{number}",
            costs=(
                LayerCost(
                    device_type="cpu", forward_ns=a * b, input_grad_ns=a * b if number else 0, weight_grad_ns=a * b
                ),
            ),
            parameter_bytes=4 * a * b,
            state_bytes=8 * a * b,
            stash_bytes=4 * BATCH * (a + b),
            weight_stash_bytes=4 * BATCH * (a + b),
        )
        for number, (a, b) in enumerate(pairwise(WIDTHS))
    )
    edges = tuple(
        Edge(producer=f"l{number}", consumer=f"l{number + 1}", bytes=4 * BATCH * width)
        for number, width in enumerate(WIDTHS[1:-1])
    )
    devices = tuple(Device(name=f"rank{number}", type="cpu", memory_bytes=2**30) for number in range(num_devices))
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=10**10) for i, a in enumerate(devices) for b in devices[i + 1 :]
    )
    return Problem(
        profile=ModelProfile(name="linear layers", layers=layers, edges=edges, microbatch_size=BATCH),
        cluster=Cluster(name="processes", devices=devices, links=links),
        num_microbatches=MICROBATCHES,
        options=Options(split_placement=True, max_stages_per_device=len(layers)),
    )
