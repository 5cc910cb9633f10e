"""Operations counted instead of timed: what ratios between layers rest on where no device is named."""

from dataclasses import dataclass

from profiles.estimates.operations import (
    CausalAttention,
    ExpertProducts,
    Operation,
    PricedOperation,
    Product,
    assumed,
)


@dataclass(frozen=True, slots=True)
class CountedOperations:
    """A nanosecond for every thousand multiplications and additions; moved bytes and exchanges cost nothing."""

    name: str = "operations"
    origin: str = "multiplications counted, moved bytes and exchanges not"
    is_fitted: bool = False

    def price(self, operation: Operation) -> PricedOperation:
        """The count as a time."""
        match operation:
            case Product() | CausalAttention():
                count = operation.operations
            case ExpertProducts():
                count = 6 * operation.tokens * operation.chosen * operation.hidden * operation.inner // operation.groups
            case _:
                count = 0
        return assumed(count / 1_000, rule="operations counted")
