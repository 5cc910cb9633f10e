"""What a data sheet says of a device type: times for when no hardware is available.

They are the larger of operations over the rate achieved and bytes over the memory's bandwidth.
"""

from dataclasses import dataclass

from profiles.field_rules import require_integer, require_name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """What a data sheet says about a device type, and how much of it is achieved."""

    name: str
    """The device type, e.g. `A10`."""
    operations_per_s: int
    """Dense bf16 operations (multiplications and additions) per second at peak."""
    achieved_percent: int
    """The part of that peak which large matrix products achieve."""
    bandwidth_bytes_per_s: int
    """Of its memory."""
    tables: str = ""
    """The name under which tables know the device type; where there is one, products and attention of a model that is
    run on fake tensors take what the tables say."""
    compute_capability: tuple[int, int] | None = None
    """CUDA's, which decides on the kernels that torch has for attention; None: those of a CPU."""

    def __post_init__(self) -> None:
        require_name("device sheet: name", self.name)
        require_integer(f"device sheet {self.name!r}: operations_per_s", self.operations_per_s, least=1, most=10**18)
        require_integer(f"device sheet {self.name!r}: achieved_percent", self.achieved_percent, least=1, most=100)
        require_integer(f"device sheet {self.name!r}: bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, least=1)

    def time_ns(self, operations: int, num_bytes: int = 0) -> int:
        """Nanoseconds for so many operations on so many bytes, rounded up."""
        computing = -(-operations * 10**11 // (self.operations_per_s * self.achieved_percent))
        moving = -(-num_bytes * 10**9 // self.bandwidth_bytes_per_s)
        return max(computing, moving)
