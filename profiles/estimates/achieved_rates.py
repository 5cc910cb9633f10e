"""Times of operations from a few numbers per device type, for where the measured tables are not installed.

Each kind of operation is a line: a start, nanoseconds per gigaoperation and nanoseconds per megabyte. The numbers in
`achieved_rates.json` were fitted to the tables of aiconfigurator-core by `benchmarks/achieved_rates.py`, whose table
says how far they are from them.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from profiles.estimates.networks import NodeNetwork
from profiles.estimates.operations import (
    CausalAttention,
    Exchange,
    ExpertProducts,
    Movement,
    Operation,
    PricedOperation,
    Product,
    assumed,
)

FILE = Path(__file__).with_name("achieved_rates.json")

BF16 = 2

ROW_TILE, COLUMN_TILE = 128, 256
"""Rows and columns of an output that one multiprocessor works on at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLine:
    """What one kind of operation takes."""

    start_ns: float
    """However small it is."""
    ns_per_gigaop: float
    """Per 10^9 multiplications and additions."""
    ns_per_megabyte: float
    """Per 10^6 bytes."""

    def ns(self, operations: float, num_bytes: float) -> float:
        """Nanoseconds of an operation with so many floating-point operations and bytes."""
        return self.start_ns + self.ns_per_gigaop * operations / 1e9 + self.ns_per_megabyte * num_bytes / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class AchievedRates:
    """The lines of one device type."""

    name: str
    """The device type."""
    multiprocessors: int
    """That share the tiles of a product."""
    lines: Mapping[str, RateLine]
    """`product bf16`, `attention`, `movement`, `experts bf16`, and one per kind of exchange."""
    fitted_to: str
    """What the numbers were fitted to."""
    network: NodeNetwork | None = None
    """Between nodes; None: all devices are in one."""

    @property
    def origin(self) -> str:
        """What the times rest on, in a sentence."""
        return f"achieved rates of {self.name}, fitted to {self.fitted_to}"

    @property
    def is_fitted(self) -> bool:
        """Whether times are by lines fitted to tables, not by their rows."""
        return True

    def price(self, operation: Operation) -> PricedOperation:
        """The time of an operation; raises ValueError that lists the kinds that are known."""
        if isinstance(operation, Exchange) and self.network is not None:
            return self.network.price(operation, inside=self._on_line, name=self.name)
        return self._on_line(operation)

    def _on_line(self, operation: Operation) -> PricedOperation:
        key, operations, num_bytes = features(operation, multiprocessors=self.multiprocessors)
        line = self.lines.get(key)
        if line is None:
            raise ValueError(f"{self.name}: nothing is known of {key}; give one of {', '.join(sorted(self.lines))}")
        return assumed(line.ns(operations, num_bytes), rule=f"achieved rates of {self.name}: {key}")


def features(operation: Operation, *, multiprocessors: int) -> tuple[str, float, float]:
    """The line of an operation, and its operations and bytes as the line counts them."""
    match operation:
        case Product():
            width = 2.0 if operation.dtype == "bf16" else 0.56 if operation.dtype == "nvfp4" else 1.0
            read = width * operation.inner * (operation.rows + operation.columns)
            return (
                f"product {operation.dtype}",
                _in_whole_waves(operation, multiprocessors=multiprocessors),
                read + BF16 * operation.rows * operation.columns,
            )
        case CausalAttention():
            values = operation.samples * operation.sequence * operation.heads * operation.head_width
            return "attention", operation.operations, 4 * BF16 * values
        case ExpertProducts():
            local = operation.experts // operation.groups
            pairs = operation.tokens * operation.chosen / operation.groups
            width = 2.0 if operation.dtype == "bf16" else 0.56 if operation.dtype == "nvfp4" else 1.0
            return (
                f"experts {operation.dtype}",
                6 * pairs * operation.hidden * operation.inner,
                3 * width * local * operation.hidden * operation.inner + 2 * BF16 * pairs * operation.hidden,
            )
        case Movement():
            return "movement", 0.0, operation.num_bytes
        case Exchange():
            return operation.kind, 0.0, operation.num_bytes * (operation.devices - 1) / operation.devices


def _in_whole_waves(product: Product, *, multiprocessors: int) -> float:
    """Operations, where tiles of the output are filled up, and the last wave of tiles half of what is missing."""
    rows, columns = sorted((product.rows, product.columns))
    tiles = math.ceil(rows / ROW_TILE) * math.ceil(columns / COLUMN_TILE)
    waves = tiles / multiprocessors
    full = (waves + math.ceil(waves)) / 2
    return full * multiprocessors * 2.0 * ROW_TILE * COLUMN_TILE * product.inner


@cache
def known_rates() -> dict[str, AchievedRates]:
    """All that come along, by device type."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: _read(name, entry, fitted_to=document["fitted_to"]) for name, entry in document["gpus"].items()}


def _read(name: str, entry: Mapping[str, Any], *, fitted_to: str) -> AchievedRates:
    lines = {
        key: RateLine(start_ns=start, ns_per_gigaop=per_gigaop, ns_per_megabyte=per_megabyte)
        for key, (start, per_gigaop, per_megabyte) in entry["lines"].items()
    }
    return AchievedRates(
        name=name,
        multiprocessors=entry["multiprocessors"],
        lines=lines,
        fitted_to=fitted_to,
        network=NodeNetwork(**entry["network"]),
    )
