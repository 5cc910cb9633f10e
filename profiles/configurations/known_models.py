"""Models by short names, by their published configurations; and what data sheets say of GPUs.

A model's name goes with the tokens of a sample that it was trained on. Bandwidths are bytes per second and direction.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.estimates.hybrid_shapes import read_any_shape
from profiles.estimates.model_shapes import ModelShape
from profiles.estimates.networks import SPEEDS_GB_PER_S

MAX_CONFIG_BYTES = 2 * 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSheet:
    """One type of GPU, and the nodes that it stands in."""

    name: str
    """As tables name it."""
    memory_bytes: int
    node: int
    """GPUs joined by NVLink."""
    inside: int
    """Between two of them: two thirds of the sheet's figure, as collectives achieve in measured tables."""
    outside: int
    """Of one GPU to another node: ConnectX-6, 7 or 8, or as is stated."""
    is_stated: bool = False
    """Whether that speed is."""


SHEETS = {
    sheet.name: sheet
    for sheet in (
        GpuSheet(name=name, memory_bytes=gib * 2**30, node=node,
                 inside=inside * 2 * 10**9 // 3, outside=outside * 10**9)
        for name, gib, node, inside, outside in (
            ("a100_sxm", 80, 8, 300, 25),
            ("h100_sxm", 80, 8, 450, 50),
            ("h200_sxm", 141, 8, 450, 50),
            ("b200_sxm", 180, 8, 900, 50),
            ("b300_sxm", 268, 8, 900, 100),
            ("gb200", 185, 72, 900, 50),
            ("gb300", 277, 72, 900, 100),
        )
    )
}  # fmt: skip
"""By name."""

_ASSUMED_GPU = "h100"
"""GPU of a configuration that names none."""


def find_sheet(gpu: str | None, *, memory_gib: float | None = None, network_gb_per_s: float | None = None) -> GpuSheet:
    """A GPU by its name, with or without its form, in any case, with what is stated otherwise than its sheet says.

    Raises ValueError that lists the names, and for a speed that no network has.
    """
    least, most = SPEEDS_GB_PER_S
    if network_gb_per_s is not None and not least <= network_gb_per_s <= most:
        raise ValueError(f"--network-gb-per-s {network_gb_per_s:g}: give gigabytes per second, {least:g} to {most:,}")
    wanted = (_ASSUMED_GPU if gpu is None else gpu).lower().replace("-", "_")
    for name in (wanted, f"{wanted}_sxm"):
        if name in SHEETS:
            sheet = SHEETS[name]
            return replace(
                sheet,
                memory_bytes=sheet.memory_bytes if memory_gib is None else int(memory_gib * 2**30),
                outside=sheet.outside if network_gb_per_s is None else round(network_gb_per_s * 1e9),
                is_stated=network_gb_per_s is not None,
            )
    raise ValueError(
        f"--gpu {wanted[:60]}: not known; give one of {', '.join(name.removesuffix('_sxm') for name in SHEETS)}"
    )


def _known_models() -> Iterator[tuple[str, tuple[ModelShape, int]]]:
    known = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for name, stated in known.items():
        shape = read_any_shape(json.dumps(stated["config"]), name=name)
        yield name, (replace(shape, is_gated=stated.get("is_gated", True)), stated["sequence"])


MODELS: dict[str, tuple[ModelShape, int]] = dict(_known_models())
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
    return next((name for name in MODELS if re.sub(r"[^a-z0-9]", "", name) == wanted), None)


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
            f"--model {shape.name}: {program} has no layers of a hybrid model's kinds; use program megatron"
        )
    return shape, sequence
