"""OPT-350M on A100 and V100, as the planner Sailor profiled them: a question with two types and several widths.

The files in `sailor/` are those of Sailor's artifact, with its licence beside them.
"""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planner.batch_problem import BatchProblem
from planner.problem import Options
from profiles.cluster import Cluster, Device, Link
from profiles.importers.sailor import read_sailor
from profiles.model_profile import ModelProfile

FOLDER = Path(__file__).parent / "sailor"
MODEL, BATCH, HOST_SIZE, ZONE = "OPT-350", 1024, 4, "us-central1-a"
MEMORY_GIB = {"A100-40": 40, "V100-16": 16}
RUNTIME_BYTES = 2 * 10**9
"""What its memory model adds on every GPU of degree 1; 10**9 more above that."""
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
OPTIONS = Options(split_backward=False, max_stages_per_device=1, max_width=HOST_SIZE, receive_buffers=0)
"""What its executor does: fused backward passes, one stage per device; its memory model knows no receive buffers."""


@cache
def read_profile() -> ModelProfile:
    """Its profiles and memory model of OPT-350M as ours."""
    paths = [FOLDER / MODEL / gpu / "profile.json" for gpu in MEMORY_GIB] + [FOLDER / "llm_info.json"]
    return read_sailor({str(path): path.read_bytes() for path in paths}).profile


@cache
def read_network() -> dict[str, Any]:
    """Coefficients of its bandwidth polynomials by sender, its degree, receiver and its degree."""
    tree = json.loads((FOLDER / "multizone_bandwidths_het.json").read_text(encoding="utf-8"))[ZONE]
    return {gpu: {d: to[ZONE] for d, to in by_degree.items()} for gpu, by_degree in tree.items()}


def send_s(num_bytes: float, ends: tuple[tuple[str, int], tuple[str, int]]) -> float:
    """Seconds of a message by its polynomial in log2 of the megabytes."""
    (sender, from_degree), (receiver, to_degree) = ends
    coefficients = read_network()[sender][str(from_degree)][receiver][str(to_degree)][0]
    return float(num_bytes / 1e9 / np.polyval(coefficients, math.log2(num_bytes / 1e6)))


@cache
def fit_link(gpu: str) -> tuple[int, int]:
    """Bytes per second and nanoseconds whose sum is its time of messages of 1 to 64 MB, least squares of the ratio."""
    sizes = np.logspace(0, 6, 61, base=2) * 1e6
    times = np.array([send_s(size, ((gpu, 1), (gpu, 1))) for size in sizes])
    rows = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (latency_s, per_byte), *_ = np.linalg.lstsq(rows, np.ones_like(sizes), rcond=None)
    return round(1 / per_byte), round(latency_s * 1e9)


def make_cluster(num_a100: int, num_v100: int, *, overlap: bool) -> Cluster:
    """Hosts of four GPUs, each GPU with a link of its own to one switch, as its model knows no other."""
    counts = {"A100-40": num_a100, "V100-16": num_v100}
    devices = [
        Device(
            name=f"{gpu}-{number}",
            type=gpu,
            host=f"{gpu}-host-{number // HOST_SIZE}",
            memory_bytes=MEMORY_GIB[gpu] * 2**30,
            reserved_bytes=RUNTIME_BYTES,
        )
        for gpu, count in counts.items()
        for number in range(count)
    ]
    links = []
    for device in devices:
        bandwidth, latency = fit_link(device.type)
        links.append(Link(a=device.name, b="network", bandwidth_bytes_per_s=bandwidth, latency_ns=latency // 2))
    name = f"{num_a100} A100" + (f" + {num_v100} V100" if num_v100 else "")
    return Cluster(name=name, devices=tuple(devices), links=tuple(links), switches=("network",), overlap=overlap)


def make_question(
    num_a100: int, num_v100: int, *, overlap: bool = True, batch: int = BATCH, sizes: tuple[int, ...] = SIZES
) -> BatchProblem:
    """Its question as ours: fused backward passes, one stage per device, no receive buffers, as it has none."""
    return BatchProblem(
        profile=read_profile(),
        cluster=make_cluster(num_a100, num_v100, overlap=overlap),
        global_batch_size=batch,
        microbatch_sizes=sizes,
        options=OPTIONS,
    )
