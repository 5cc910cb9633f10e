"""What layers of transformers do on one device, as operations that a table or a model of rates can put a time on."""

from dataclasses import dataclass
from typing import Literal, Protocol

from profiles.field_rules import require_integer

Dtype = Literal["bf16", "fp8", "fp8_block", "nvfp4"]
"""Of the inputs of matrix products; attention, norms and messages are bf16 whatever it is."""

Source = Literal["row", "interpolated", "assumed"]
"""Where a time is from: a row of a table, between rows, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product: `rows` x `inner` times `inner` x `columns`."""

    rows: int
    """Of the output: tokens in a forward pass."""
    columns: int
    """Of the output."""
    inner: int
    """Length of the summed dimension."""
    dtype: Dtype = "bf16"
    """Of both inputs."""

    def __post_init__(self) -> None:
        for field in ("rows", "columns", "inner"):
            require_integer(f"product: {field}", getattr(self, field), least=1)

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.columns * self.inner

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} x {self.inner} {self.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalAttention:
    """Scores, softmax and weighted sum of values, forward, fused, in bf16."""

    samples: int
    """Sequences."""
    sequence: int
    """Tokens of each."""
    heads: int
    """Of queries, on one device."""
    key_value_heads: int
    """Of keys and values, on one device."""
    head_width: int
    window: int = 0
    """Tokens back that are attended to; 0: all."""
    is_latent: bool = False
    """Multi-head latent attention, as DeepSeek-V3 has it: queries and keys of 192, values of 128."""

    @property
    def operations(self) -> int:
        """Multiplications and additions; half of the scores are masked."""
        seen = self.sequence if not self.window else min(self.sequence, 2 * self.window)
        return 2 * self.samples * self.sequence * seen * self.heads * self.head_width

    def __str__(self) -> str:
        kind = "latent" if self.is_latent else f"{self.key_value_heads} key-value heads"
        window = f", window {self.window}" if self.window else ""
        return f"{self.samples} x {self.sequence}, {self.heads} heads of {self.head_width}, {kind}{window}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertProducts:
    """The two (three) products of a mixture of experts on one device, tokens evenly over experts."""

    tokens: int
    """Of all devices that share the experts."""
    hidden: int
    """Width of the residual stream."""
    inner: int
    """Width inside one expert."""
    chosen: int
    """ExpertProducts per token."""
    experts: int
    """In the layer."""
    groups: int
    """Devices that share them, each holding an equal part."""
    dtype: Dtype = "bf16"
    """Of both inputs of the products."""

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens, {self.chosen} of {self.experts} experts {self.hidden} x {self.inner}, "
            f"{self.groups} devices, {self.dtype}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """Reading and writing the device's memory: norms, activations, additions, look-ups, casts."""

    num_bytes: int
    """Read and written."""

    def __str__(self) -> str:
        return f"{self.num_bytes} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective among the devices of a group."""

    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "alltoall"]
    num_bytes: int
    """Of the whole tensor (all-to-all: of what one device sends)."""
    devices: int
    """Number of devices that take part."""
    stride: int = 1
    """From one that takes part to the next; the devices of a node stand beside each other."""
    copies: int = 0
    """Of an all-to-all: copies of a token in what is sent, one of which goes to a node and is spread there; 0: each
    goes by itself."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.num_bytes} bytes among {self.devices}"


Operation = Product | CausalAttention | ExpertProducts | Movement | Exchange
"""Every operation that has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOperation:
    """A time and where it is from."""

    ns: float
    """Duration on one device."""
    source: Source
    """`measured`, interpolated or assumed."""
    table: str
    """The table, or the rule."""
    error: float | None = None
    """How far a time between rows may be off, as a part of it: 95 % of the table's own rows, each left out in turn, are
    within it; 0 for a row. None: not known."""
    rows: int = 0
    """How many rows it was made of."""

    def times(self, factor: float, *, because: str) -> "PricedOperation":
        """So many times as long, by an assumption."""
        return PricedOperation(
            ns=self.ns * factor,
            source="assumed",
            table=f"{self.table}, {because}",
            error=self.error,
            rows=self.rows,
        )


def assumed(ns: float, *, rule: str) -> PricedOperation:
    """A time by a rule alone."""
    return PricedOperation(ns=ns, source="assumed", table=rule)


class Rates(Protocol):
    """What puts a time on operations of one device type."""

    @property
    def name(self) -> str:
        """The device type."""

    @property
    def origin(self) -> str:
        """What the times rest on, in a sentence."""

    @property
    def is_fitted(self) -> bool:
        """Whether times are by lines fitted to tables, not by their rows."""

    def price(self, operation: Operation) -> PricedOperation:
        """The time of an operation; raises ValueError where there is no way to tell."""
