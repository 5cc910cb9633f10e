"""What operations take in a training run, where somebody measured them on one device type as training runs them.

A table's products run alone, for moments. A device that trains is at its limit of power all the time and lowers its
clock; products towards weights also add to fp32. Collectives of a training run have one hop after another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from profiles.estimates.operations import (
    Exchange,
    ExpertProducts,
    Movement,
    Operation,
    PricedOperation,
    Product,
    Rates,
)

Phase = Literal["F", "I", "W"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLine:
    """A collective: a start, a time per peer, and bytes that a device sends, and those that it keeps, at rates."""

    start_ns: float
    per_peer_ns: float
    ns_per_megabyte: float
    ns_per_kept_megabyte: float = 0

    def ns(self, exchange: Exchange) -> float:
        """Nanoseconds that an exchange takes among its devices."""
        peers, kept = exchange.devices - 1, exchange.num_bytes / exchange.devices / 1e6
        sending_ns = self.per_peer_ns + self.ns_per_megabyte * kept
        return self.start_ns + sending_ns * peers + self.ns_per_kept_megabyte * kept


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFactors:
    """Times as long as alone, by kind of action."""

    products: Mapping[Phase, float]
    experts: Mapping[Phase, float]
    """The products of a mixture's experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRates:
    """Of one device type."""

    tables: PhaseFactors
    """On what rows of tables say."""
    lines: PhaseFactors
    """On what lines say that were fitted to them."""
    movements: float
    """A factor on either."""
    exchanges: Mapping[str, ExchangeLine]
    """By kind, within a node; others take what their table says."""
    source: str
    """Source of the measurements."""
    node: int = 8
    """Devices of a node."""

    def factor(self, operation: Operation, *, phase: Phase, is_fitted: bool) -> float:
        """Times as long as alone; 1 for what is as fast, or was not measured, as products of less than bf16."""
        factors = self.lines if is_fitted else self.tables
        match operation:
            case Product(dtype="bf16"):
                return factors.products[phase]
            case ExpertProducts(dtype="bf16"):
                return factors.experts[phase]
            case Movement():
                return self.movements
            case _:
                return 1.0


_AS_ALONE: Mapping[Phase, float] = {"F": 1.0, "I": 1.0, "W": 1.0}
_ALONE = PhaseFactors(products=_AS_ALONE, experts=_AS_ALONE)
SUSTAINED: Mapping[str, SustainedRates] = {
    "a100_sxm": SustainedRates(
        tables=_ALONE,
        lines=_ALONE,
        movements=1.0,
        exchanges=dict.fromkeys(
            ("all_gather", "reduce_scatter"),
            ExchangeLine(start_ns=35_501, per_peer_ns=0, ns_per_megabyte=4_242, ns_per_kept_megabyte=891),
        ),
        source="half of the all-reduces that vTrain measured among 2 to 8 A100 (commit f8dda84, MIT)",
    ),
    "b200_sxm": SustainedRates(
        tables=PhaseFactors(products={"F": 1.40, "I": 1.35, "W": 1.52}, experts={"F": 1.24, "I": 1.28, "W": 1.45}),
        lines=PhaseFactors(products={"F": 1.46, "I": 1.46, "W": 1.55}, experts={"F": 1.34, "I": 1.41, "W": 1.64}),
        movements=1.16,
        exchanges={
            "all_gather": ExchangeLine(start_ns=23_105, per_peer_ns=9_183, ns_per_megabyte=1_650),
            "reduce_scatter": ExchangeLine(start_ns=25_560, per_peer_ns=8_033, ns_per_megabyte=1_651),
        },
        source="operators that SimuMax measured on B200 (commit 4dcaae5, Apache-2.0)",
    ),
}
"""Of A100 the least sum of relative errors over 7,168 rows. Of B200 medians over its products of 1 ms and more, since
shorter ones are over before a clock falls, and over its experts. `python -m benchmarks.achieved_rates --operators FILE`
finds them again. Whole iterations had no part in either."""


def sustained(priced: PricedOperation, operation: Operation, *, rates: Rates, phase: Phase) -> PricedOperation:
    """The time of an operation in training, from its time alone by these rates."""
    known = SUSTAINED.get(rates.name)
    if known is None or (isinstance(operation, Exchange) and operation.devices * operation.stride > known.node):
        return priced
    if isinstance(operation, Exchange) and operation.kind in known.exchanges:
        factor = known.exchanges[operation.kind].ns(operation) / priced.ns
    else:
        factor = known.factor(operation, phase=phase, is_fitted=rates.is_fitted)
    return priced if factor == 1.0 else priced.times(factor, because=f"{factor:.2f} times as long: {known.source}")
