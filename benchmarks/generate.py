"""Random workloads by family, the same on every machine.

`python -m benchmarks.generate FOLDER` writes the standard set, with `--family NAME` any other: chains and graphs, loose
to scarce memory, links all alike, of two levels or random, devices alike, of two classes or all different.
"""

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal, cast, get_args

from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from profiles.workload import Workload, dump_workload

Shape = Literal["chain", "dag"]
Memory = Literal["loose", "mid", "tight", "scarce"]
Links = Literal["homogeneous", "two-level", "random", "sparse"]
Speeds = Literal["equal", "classes", "four", "different"]


MICROBATCH_SIZE = 16
"""Samples of a microbatch, so that 2, 4, 8 and 16 devices can share it."""

MEASURED_SIZES = (1, 2, 4, 8)
"""Samples of the microbatches that are measured where the global batch is given."""

START_SAMPLES = 0.4
"""An action takes as long for nothing as for so many samples, where several sizes are measured."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a random workload looks like."""

    shape: Shape
    """`dag`: branches that fork and join, and skip edges."""
    num_layers: int
    num_devices: int
    num_microbatches: int
    memory: Memory
    """Device memory, see `MEMORY_FACTORS`."""
    links: Links
    """12 GB/s everywhere; 3 GB/s between hosts of four; 1 to 32 GB/s, log-uniform; hosts, spines, some direct links."""
    speeds: Speeds
    """All 100 %; half of the devices 60 %; four classes; every one between 50 and 100 %."""
    seed: int = 0
    global_batch: int | None = None
    """Samples per iteration, where the size of microbatches is left open; their number is then that of the largest."""

    @property
    def name(self) -> str:
        """E.g. `dag-1000x8-m16-tight-two-level-classes`; `g4096` in the place of `m16` for a global batch."""
        batch = f"m{self.num_microbatches}" if self.global_batch is None else f"g{self.global_batch}"
        return f"{self.shape}-{self.num_layers}x{self.num_devices}-{batch}-{self.memory}-{self.links}-{self.speeds}"


STANDARD = (
    "chain-12x4-m8-loose-homogeneous-equal",
    "chain-24x4-m16-tight-homogeneous-equal",
    "chain-48x8-m32-mid-two-level-classes",
    "chain-96x16-m32-loose-random-different",
    "dag-60x4-m8-mid-homogeneous-equal",
    "dag-200x8-m16-tight-two-level-classes",
    "dag-1000x8-m16-mid-two-level-equal",
)
"""What `benchmarks/workloads` holds."""

MEMORY_FACTORS: dict[Memory, float] = {"loose": 8.0, "mid": 1.5, "tight": 0.75, "scarce": 0.6}
"""Device memory over an even share of the states and the stashes of as many microbatches as there are devices."""


def make_workload(family: Family) -> Workload:
    """The workload of a family; equal families give equal workloads."""
    rng = Random(f"{family.name}-{family.seed}")
    speeds = _speeds(family, rng)
    layers = tuple(_layer(rng, index, speeds=sorted(set(speeds))) for index in range(family.num_layers))
    if family.global_batch is not None:
        layers = tuple(map(_at_all_sizes, layers))
    profile = ModelProfile(
        name=family.name,
        layers=layers,
        edges=_edges(family, rng),
        microbatch_size=MICROBATCH_SIZE if family.global_batch is None else MEASURED_SIZES[-1],
        scaling="linear" if family.global_batch is None else "measured",
        provenance=f"generated: benchmarks/generate.py, family {family.name}, seed {family.seed}",
    )
    cluster = _cluster(family, rng, speeds=speeds, memory_bytes=_memory(family, layers))
    workload = Workload(profile=profile, cluster=cluster, num_microbatches=family.num_microbatches)
    return workload if family.global_batch is None else workload.with_batch(family.global_batch, None)


def _speeds(family: Family, rng: Random) -> list[int]:
    """Speed of every device in percent."""
    if family.speeds == "equal":
        return [100] * family.num_devices
    if family.speeds == "classes":
        return [100 if 2 * device < family.num_devices else 60 for device in range(family.num_devices)]
    if family.speeds == "four":
        return [(100, 80, 60, 40)[8 * device // family.num_devices % 4] for device in range(family.num_devices)]
    return [rng.randint(50, 100) for _ in range(family.num_devices)]


def _layer(rng: Random, index: int, *, speeds: list[int]) -> Layer:
    """A layer with times log-uniform over a decade, as measured networks have them."""
    forward = int(10 ** rng.uniform(5.5, 6.5))
    has_weights = rng.random() < 0.7
    input_grad = int(forward * rng.uniform(0.8, 1.3))
    weight_grad = int(forward * rng.uniform(0.5, 1.1)) if has_weights else 0
    parameters = int(10 ** rng.uniform(5, 7.5)) if has_weights else 0
    stash = int(10 ** rng.uniform(6, 7.5))
    return Layer(
        name=f"layer{index}",
        costs=tuple(
            LayerCost(
                device_type=f"speed{speed}",
                forward_ns=forward * 100 // speed,
                input_grad_ns=input_grad * 100 // speed,
                weight_grad_ns=weight_grad * 100 // speed,
            )
            for speed in speeds
        ),
        parameter_bytes=parameters,
        state_bytes=4 * parameters,
        stash_bytes=stash,
        weight_stash_bytes=stash // 2 if has_weights else 0,
    )


def _at_all_sizes(layer: Layer) -> Layer:
    """A layer whose costs, at the largest size, are known at the others, where a sample takes longer."""

    def scaled(time_ns: int, size: int) -> int:
        return int(time_ns * (size + START_SAMPLES) / (MEASURED_SIZES[-1] + START_SAMPLES))

    costs = tuple(
        replace(
            cost,
            microbatch_size=size,
            forward_ns=scaled(cost.forward_ns, size),
            input_grad_ns=scaled(cost.input_grad_ns, size),
            weight_grad_ns=scaled(cost.weight_grad_ns, size),
        )
        for cost in layer.costs
        for size in MEASURED_SIZES
    )
    return replace(layer, costs=costs)


def _edges(family: Family, rng: Random) -> tuple[Edge, ...]:
    """A chain; in a dag, layers of a fork hang on its head and feed its join, and some edges skip."""
    pairs: set[tuple[int, int]] = set()
    index = 0
    while index < family.num_layers - 1:
        width = rng.choice((1, 1, 2, 3)) if family.shape == "dag" and index + 4 < family.num_layers else 1
        if width == 1:
            pairs.add((index, index + 1))
            index += 1
            continue
        join = index + width + 1
        for branch in range(index + 1, join):
            pairs |= {(index, branch), (branch, join)}
        if rng.random() < 0.3:
            pairs.add((index, join))
        index = join
    size = {producer: int(10 ** rng.uniform(5, 7)) for producer in range(family.num_layers)}
    return tuple(Edge(producer=f"layer{a}", consumer=f"layer{b}", bytes=size[a]) for a, b in sorted(pairs))


def _memory(family: Family, layers: tuple[Layer, ...]) -> int:
    state = sum(layer.state_bytes for layer in layers)
    stash = sum(layer.stash_bytes for layer in layers)
    largest = max(layer.state_bytes + 6 * layer.stash_bytes for layer in layers)
    share = (state + stash * min(family.num_devices, family.num_microbatches)) // family.num_devices
    return max(int(MEMORY_FACTORS[family.memory] * share), largest)


def _cluster(family: Family, rng: Random, *, speeds: list[int], memory_bytes: int) -> Cluster:
    devices = tuple(
        Device(name=f"gpu{index}", type=f"speed{speed}", memory_bytes=memory_bytes, host=f"host{index // 4}")
        for index, speed in enumerate(speeds)
    )
    if family.links == "sparse":
        return _sparse_cluster(family, rng, devices=devices)
    links = []
    for a in range(len(devices)):
        for b in range(a + 1, len(devices)):
            is_near = devices[a].host == devices[b].host
            bandwidth = {
                "homogeneous": 12_000_000_000,
                "two-level": 12_000_000_000 if is_near else 3_000_000_000,
                "random": int(10 ** rng.uniform(9, 10.5)),
            }[family.links]
            latency = 10_000 if is_near else 50_000
            links.append(
                Link(a=devices[a].name, b=devices[b].name, bandwidth_bytes_per_s=bandwidth, latency_ns=latency)
            )
    return Cluster(name=f"{family.links} links, {family.speeds} speeds", devices=devices, links=tuple(links))


def _sparse_cluster(family: Family, rng: Random, *, devices: tuple[Device, ...]) -> Cluster:
    """Every device hangs on its host, every host on two spines; an eighth as many direct links join random devices."""
    hosts = list(dict.fromkeys(device.host for device in devices))
    spines = tuple(f"spine{index}" for index in range(max(2, len(hosts) // 16)))
    pairs = {(device.name, device.host): 25_000_000_000 for device in devices}
    for host in hosts:
        pairs.update({(host, spine): int(10 ** rng.uniform(10, 10.5)) for spine in rng.sample(spines, 2)})
    pairs.update({(a, b): 100_000_000_000 for a, b in zip(spines, (*spines[1:], spines[0]), strict=True) if a != b})
    for _ in range(len(devices) // 8):
        a, b = rng.sample(devices, 2)
        pairs.setdefault((a.name, b.name), int(10 ** rng.uniform(9.5, 10.5)))
    seen: set[frozenset[str]] = set()
    links = []
    for (a_name, b_name), bandwidth in pairs.items():
        if frozenset((a_name, b_name)) not in seen:
            seen.add(frozenset((a_name, b_name)))
            latency = rng.randint(2_000, 20_000)
            links.append(Link(a=a_name, b=b_name, bandwidth_bytes_per_s=bandwidth, latency_ns=latency))
    return Cluster(
        name=f"{family.links} links, {family.speeds} speeds", devices=devices, links=tuple(links), switches=spines
    )


def parse_family(name: str, *, seed: int = 0) -> Family:
    """The family of a name such as `chain-48x8-m32-mid-two-level-classes`.

    Raises ValueError that says what a name is made of.
    """
    kinds = ("|".join(get_args(kind)) for kind in (Shape, Memory, Links, Speeds))
    shape, memory, links, speeds = kinds
    found = re.fullmatch(rf"({shape})-(\d+)x(\d+)-([mg])(\d+)-({memory})-({links})-({speeds})", name)
    if found is None:
        raise ValueError(
            f"{name[:80]!r} is not a family; write SHAPE-LAYERSxDEVICES-mMICROBATCHES-MEMORY-LINKS-SPEEDS, e.g. "
            f"chain-48x8-m32-mid-two-level-classes (shape {shape}, memory {memory}, links {links}, speeds {speeds}), "
            "or gSAMPLES for a global batch in the place of mMICROBATCHES"
        )
    return Family(
        shape=cast("Shape", found[1]),
        num_layers=int(found[2]),
        num_devices=int(found[3]),
        num_microbatches=int(found[5]) // (MEASURED_SIZES[-1] if found[4] == "g" else 1),
        memory=cast("Memory", found[6]),
        links=cast("Links", found[7]),
        speeds=cast("Speeds", found[8]),
        seed=seed,
        global_batch=int(found[5]) if found[4] == "g" else None,
    )


def write_families(families: Iterable[Family], folder: Path) -> None:
    """Write the workload of every family into `folder`; seeds other than 0 stand in the file's name."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in families:
        name = family.name + (f"-seed{family.seed}" if family.seed else "")
        (folder / f"{name}.json").write_text(dump_workload(make_workload(family)), encoding="utf-8")


def main() -> None:
    """Write the standard set, or the families asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "workloads")
    parser.add_argument(
        "--family", action="append", default=[], metavar="NAME",
        help="e.g. dag-200x8-m16-tight-two-level-classes; repeatable; left out: the standard set",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    parser.add_argument("--count", type=int, default=1, help="workloads per family, with one seed after the other")
    wishes = parser.parse_args()
    seeds = range(wishes.seed, wishes.seed + wishes.count) if wishes.family else (0,)
    try:
        families = [parse_family(name, seed=seed) for name in wishes.family or STANDARD for seed in seeds]
    except ValueError as error:
        parser.error(str(error))
    write_families(families, wishes.folder)


if __name__ == "__main__":
    main()
