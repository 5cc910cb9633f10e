"""Models by short names, by their published configurations; and what data sheets say of GPUs.

A model's name goes with the tokens of a sample that it was trained on. Bandwidths are bytes per second and direction.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.estimates.hybrid_shapes import read_any_shape
from profiles.estimates.model_shapes import ExpertShape, LatentAttention, ModelShape

MAX_CONFIG_BYTES = 2 * 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSheet:
    """One type of GPU, and the nodes that it stands in."""

    name: str
    """As tables name it."""
    memory_bytes: int
    memory_bytes_per_s: float
    """Achieved."""
    node: int
    """GPUs joined by NVLink."""
    inside: int
    """Between two of them: two thirds of the sheet's figure, as collectives achieve in measured tables."""
    outside: int
    """Of one GPU to another node: ConnectX-6, 7 or 8."""


SHEETS = {
    sheet.name: sheet
    for sheet in (
        GpuSheet(name=name, memory_bytes=gib * 2**30, memory_bytes_per_s=0.8e9 * memory, node=node,
                 inside=inside * 2 * 10**9 // 3, outside=outside * 10**9)
        for name, gib, memory, node, inside, outside in (
            ("a100_sxm", 80, 2_039, 8, 300, 25),
            ("h100_sxm", 80, 3_350, 8, 450, 50),
            ("h200_sxm", 141, 4_800, 8, 450, 50),
            ("b200_sxm", 180, 7_700, 8, 900, 50),
            ("b300_sxm", 268, 7_750, 8, 900, 100),
            ("gb200", 185, 8_000, 72, 900, 50),
            ("gb300", 277, 8_000, 72, 900, 100),
        )
    )
}  # fmt: skip
"""By name."""


def find_sheet(gpu: str) -> GpuSheet:
    """A GPU by its name, with or without its form, in any case; raises ValueError that lists the names."""
    wanted = gpu.lower().replace("-", "_")
    for name in (wanted, f"{wanted}_sxm"):
        if name in SHEETS:
            return SHEETS[name]
    raise ValueError(
        f"--gpu {gpu[:60]}: not known; give one of {', '.join(name.removesuffix('_sxm') for name in SHEETS)}"
    )


def _shape(name: str, sizes: tuple[int, ...], **more: Any) -> ModelShape:
    """Sizes: blocks, hidden, heads of queries and of keys, head width, inner width, vocabulary."""
    fields = ("blocks", "hidden", "heads", "key_value_heads", "head_width", "inner", "vocabulary")
    return ModelShape(name=name, **(dict(zip(fields, sizes, strict=True)) | more))


def _experts(experts: int, chosen: int, *, inner: int, **more: int) -> ExpertShape:
    return ExpertShape(experts=experts, chosen=chosen, inner=inner, **more)


def _windows(blocks: int) -> tuple[int, ...]:
    """Every second block sees 128 tokens, the first among them."""
    return tuple(128 if block % 2 == 0 else 0 for block in range(blocks))


_LATENT = LatentAttention(query_rank=1536, key_value_rank=512, rope=64, key=128, value=128)
_DEEPSEEK = _experts(256, 8, inner=2048, shared_inner=2048, dense_layers=3)

MODELS: dict[str, tuple[ModelShape, int]] = {
    shape.name: (shape, sequence)
    for sequence, shape in (
        (8192, _shape("llama3-8b", (32, 4096, 32, 8, 128, 14336, 128256))),
        (8192, _shape("llama3-70b", (80, 8192, 64, 8, 128, 28672, 128256))),
        (8192, _shape("llama3-405b", (126, 16384, 128, 8, 128, 53248, 128256))),
        (4096, _shape("llama2-7b", (32, 4096, 32, 32, 128, 11008, 32000))),
        (4096, _shape("llama2-13b", (40, 5120, 40, 40, 128, 13824, 32000))),
        (4096, _shape("llama2-70b", (80, 8192, 64, 8, 128, 28672, 32000))),
        (4096, _shape("qwen3-8b", (36, 4096, 32, 8, 128, 12288, 151936))),
        (4096, _shape("qwen3-32b", (64, 5120, 64, 8, 128, 25600, 151936))),
        (2048, _shape("gpt3-175b", (96, 12288, 96, 96, 128, 49152, 51200), is_gated=False)),
        (4096, _shape("qwen3-30b-a3b", (48, 2048, 32, 4, 128, 6144, 151936), mixture=_experts(128, 8, inner=768))),
        (4096, _shape("qwen3-235b-a22b", (94, 4096, 64, 4, 128, 12288, 151936), mixture=_experts(128, 8, inner=1536))),
        (4096, _shape("mixtral-8x7b", (32, 4096, 32, 8, 128, 14336, 32000), mixture=_experts(8, 2, inner=14336))),
        (4096, _shape("mixtral-8x22b", (56, 6144, 48, 8, 128, 16384, 32000), mixture=_experts(8, 2, inner=16384))),
        (4096, _shape("deepseek-v3", (61, 7168, 128, 128, 128, 18432, 129280), mixture=_DEEPSEEK, latent=_LATENT)),
        (4096, _shape("gpt-oss-20b", (24, 2880, 64, 8, 64, 2880, 201088), mixture=_experts(32, 4, inner=2880),
                      windows=_windows(24))),
        (4096, _shape("gpt-oss-120b", (36, 2880, 64, 8, 64, 2880, 201088), mixture=_experts(128, 4, inner=2880),
                      windows=_windows(36))),
    )
}  # fmt: skip
"""By name: the shape, and the tokens of a sample."""

PREDICTING = {"deepseek-v3": 1}
"""Layers of multi-token prediction that models by name are trained with; others: none."""

DEFAULT_SEQUENCE = 4096
"""Tokens of a sample, where neither flags nor a model's name say it."""


_EDITION = re.compile(r"[-_](?:instruct|base|chat|hf|thinking|bf16|fp8|\d{4}|v0\.\d)(?=[-_.]|$)")
"""A part of a published name that says nothing of the shape."""


def known_name(published: str) -> str | None:
    """The short name of a published one, such as `meta-llama/Llama-3.1-70B-Instruct`; None: it is not known."""
    plain = published.rstrip("/").rpartition("/")[2].lower().removesuffix(".yaml").removeprefix("meta-")
    plain = re.sub(r"^llama-?3\.[13](?=[-_])", "llama3", _EDITION.sub("", plain))
    wanted = re.sub(r"[^a-z0-9]", "", plain)
    return next((name for name in MODELS if name.replace("-", "") == wanted), None)


def find_model(name: str) -> tuple[ModelShape, int | None]:
    """A model by its short or published name, a config.json or its path; raises ValueError that lists the names."""
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    if name.startswith("{"):
        return read_any_shape(name, name="config.json"), None
    path = Path(name)
    if path.is_file():
        with path.open("rb") as file:
            return read_any_shape(file.read(MAX_CONFIG_BYTES).decode("utf-8", errors="replace"), name=path.name), None
    if (short := known_name(name)) is not None:
        return MODELS[short]
    raise ValueError(
        f"--model {name[:80]}: neither a known model nor a file; give a file, or one of {', '.join(MODELS)}, and any "
        "config.json"
    )


def find_whole_model(name: str, *, program: str) -> tuple[ModelShape, int | None]:
    """The same for a program that knows whole blocks alone; raises ValueError for a hybrid model."""
    shape, sequence = find_model(name)
    if shape.pattern:
        raise ValueError(
            f"--model {shape.name}: {program} has no layers of a hybrid model's kinds; audit it as Megatron-LM's"
        )
    return shape, sequence
