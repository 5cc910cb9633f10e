"""Writes the demos that are estimates, from shapes: `python -m benchmarks.estimates profiles/samples`."""

import argparse
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.layer_shapes import BlockShape, embedding, language_head, projection, transformer_block
from profiles.cluster import Cluster, Device, Link
from profiles.estimates.analytic import DeviceSheet
from profiles.model_profile import Edge, Layer, ModelProfile
from profiles.workload import Workload, dump_workload

A10 = DeviceSheet(name="A10", operations_per_s=125 * 10**12, achieved_percent=45, bandwidth_bytes_per_s=600 * 10**9)
"""NVIDIA A10 data sheet: 125 TFLOP/s dense bf16, 600 GB/s, 24 GB."""

MEMORY_BYTES = 22 * 2**30
"""Of the 24 GB, what is left beside the framework."""

PROVENANCE = (
    "Source: an estimate, nothing was measured: benchmarks/estimates.py made it with "
    "profiles/estimates/analytic.py from the "
    "shapes named here and the A10's data sheet (125 TFLOP/s dense bf16, of which 45 % are assumed to be achieved, "
    "600 GB/s). bf16, Adam with 16 bytes per trained weight. {shapes} Cluster assumed: {cluster}."
)


def lora_13b() -> Workload:
    """LLaMA-13B shapes; adapters in the upper half only, so that no gradient flows in the lower half."""
    shape = BlockShape(hidden=5120, key_value=5120, feed_forward=13824, is_gated=True, tokens=2048, sequence=2048)
    layers = [
        embedding("embedding", vocabulary=32000, hidden=5120, tokens=2048, sheet=A10, trained=False),
        *(transformer_block(f"block.{i}", shape, sheet=A10, training="input") for i in range(20)),
        *(transformer_block(f"block.{i}", shape, sheet=A10, training="lora") for i in range(20, 40)),
        language_head("head", vocabulary=32000, hidden=5120, tokens=2048, sheet=A10, trained=False),
    ]
    edges = _chain(layers, size=shape.boundary_bytes, no_gradient_up_to="block.19")
    shapes = (
        "LLaMA-13B: 40 blocks of width 5120, 13824 inside, vocabulary 32000, one sequence of 2048 per microbatch; all "
        "weights frozen, LoRA of rank 16 beside q, k, v, o in the upper 20 blocks: below them nothing goes back."
    )
    return _workload("LLaMA-13B, LoRA above", layers, edges, shapes=shapes, hosts=(4,), num_microbatches=16)


def large_vocabulary() -> Workload:
    """Gemma-2B shapes, untied: the head costs as much as five blocks and holds gigabytes of logits."""
    shape = BlockShape(hidden=2048, key_value=256, feed_forward=16384, is_gated=True, tokens=2048, sequence=2048)
    sizes = {"vocabulary": 256_000, "hidden": 2048, "tokens": 2048, "sheet": A10, "trained": True}
    layers = [
        embedding("embedding", **sizes),
        *(transformer_block(f"block.{i}", shape, sheet=A10) for i in range(18)),
        language_head("head", **sizes),
    ]
    edges = _chain(layers, size=shape.boundary_bytes)
    shapes = (
        "Gemma-2B: 18 blocks of width 2048, 16384 inside, one key-value head of 256, vocabulary 256000, embedding and "
        "head untied, one sequence of 2048 per microbatch, everything trained."
    )
    return _workload("Gemma-2B, vocabulary 256k", layers, edges, shapes=shapes, hosts=(4, 4), num_microbatches=32)


def two_towers() -> Workload:
    """ViT-L/14 beside the lower half of a language model; both meet in its upper half."""
    image = BlockShape(hidden=1024, key_value=1024, feed_forward=4096, is_gated=False, tokens=8 * 577, sequence=577)
    text = BlockShape(hidden=2048, key_value=2048, feed_forward=5504, is_gated=True, tokens=8 * 256, sequence=256)
    both = BlockShape(hidden=2048, key_value=2048, feed_forward=5504, is_gated=True, tokens=8 * 833, sequence=833)
    sizes = {"vocabulary": 32000, "hidden": 2048, "sheet": A10, "trained": True}
    vision = [transformer_block(f"image.{i}", image, sheet=A10) for i in range(24)]
    vision.append(projection("projection", inner=1024, outer=2048, tokens=8 * 577, sheet=A10))
    words = [embedding("embedding", tokens=8 * 256, **sizes)]
    words += [transformer_block(f"text.{i}", text, sheet=A10) for i in range(12)]
    fusion = [transformer_block(f"fusion.{i}", both, sheet=A10) for i in range(12)]
    fusion.append(language_head("head", tokens=8 * 256, **sizes))
    meeting = both.boundary_bytes
    edges = [
        *_chain(vision, size=image.boundary_bytes),
        *_chain(words, size=text.boundary_bytes),
        Edge(producer="projection", consumer="fusion.0", bytes=meeting - text.boundary_bytes),
        Edge(producer="text.11", consumer="fusion.0", bytes=text.boundary_bytes),
        *_chain(fusion, size=meeting),
    ]
    shapes = (
        "ViT-L/14 at 336 pixels (24 blocks of width 1024, 577 tokens) beside 12 text blocks of width 2048 (5504 "
        "inside, 256 tokens); their outputs, 833 tokens, go through 12 more blocks; vocabulary 32000; 8 samples per "
        "microbatch."
    )
    layers = vision + words + fusion
    return _workload(
        "Image and text towers", layers, edges, shapes=shapes, hosts=(3, 3), num_microbatches=24, microbatch_size=8
    )


SAMPLES = {
    "lora-13b-estimate": lora_13b,
    "vocabulary-256k-estimate": large_vocabulary,
    "two-towers-estimate": two_towers,
}
"""The demos by name."""


def _chain(layers: Sequence[Layer], *, size: int, no_gradient_up_to: str = "") -> list[Edge]:
    """Edges between neighbours; up to the named producer no gradient flows back."""
    names = [layer.name for layer in layers]
    without = names[: names.index(no_gradient_up_to) + 1] if no_gradient_up_to else []
    return [
        Edge(producer=a, consumer=b, bytes=size, gradient_bytes=0 if a in without else None) for a, b in pairwise(names)
    ]


def _workload(
    name: str,
    layers: Iterable[Layer],
    edges: Iterable[Edge],
    *,
    shapes: str,
    hosts: Sequence[int],
    num_microbatches: int,
    microbatch_size: int = 1,
) -> Workload:
    cluster = _cluster(hosts)
    return Workload(
        profile=ModelProfile(
            name=name,
            layers=tuple(layers),
            edges=tuple(edges),
            microbatch_size=microbatch_size,
            scaling="linear",
            provenance=PROVENANCE.format(shapes=shapes, cluster=cluster.name),
        ),
        cluster=cluster,
        num_microbatches=num_microbatches,
    )


def _cluster(hosts: Sequence[int]) -> Cluster:
    """PCIe between all devices of a host, 100 Gb Ethernet between those of different hosts."""
    devices = [
        Device(name=f"h{host}g{number}", type=A10.name, memory_bytes=MEMORY_BYTES, host=f"host{host}")
        for host, count in enumerate(hosts)
        for number in range(count)
    ]
    links = []
    for index, a in enumerate(devices):
        for b in devices[index + 1 :]:
            speed, latency = (20 * 10**9, 10_000) if a.host == b.host else (12_500_000_000, 30_000)
            links.append(Link(a=a.name, b=b.name, bandwidth_bytes_per_s=speed, latency_ns=latency))
    between = ", 100 Gb Ethernet between hosts (12.5 GB/s, 30 us)" if len(hosts) > 1 else ""
    name = f"{' + '.join(map(str, hosts))} x A10 with 22 GiB, PCIe (20 GB/s, 10 us){between}"
    return Cluster(name=name, devices=tuple(devices), links=tuple(links))


def main() -> None:
    """Write every sample into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, make in SAMPLES.items():
        (folder / f"{name}.json").write_text(dump_workload(make()), encoding="utf-8")


if __name__ == "__main__":
    main()
