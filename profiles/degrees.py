"""What the devices of a group share, by name: products, sequences, samples, experts."""

from dataclasses import asdict, dataclass

from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import Width, require_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees(StrictRecord):
    """The degrees of one width; a width that nobody names is tensor parallelism."""

    tensor: Width = 1
    """Devices that share every product."""
    context: Width = 1
    """Devices that share every sequence."""
    data: Width = 1
    """Parts of a microbatch's samples, each on devices of its own that hold the same weights, but for experts."""
    expert: Width = 1
    """Devices of the group that share the experts of a layer, each of which holds whole ones."""

    def __post_init__(self) -> None:
        owner = f"degrees {self}"
        require_fields(owner, self)
        if self.width % self.expert:
            raise ValueError(
                f"{owner}: expert = {self.expert} does not divide the {self.width} devices of the group; give a divisor"
            )

    @property
    def width(self) -> int:
        """Devices of the group."""
        return self.tensor * self.context * self.data

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value > 1) or "1"


def read_degrees(text: str) -> Degrees:
    """A number, which is a tensor degree, or `tensor=2+context=2`; raises ValueError for anything else."""
    found: dict[str, int] = {}
    for part in text.strip().split("+"):
        name, _, number = part.rpartition("=")
        name = name.strip() or "tensor"
        is_number = number.strip().isascii() and number.strip().isdigit() and len(number.strip()) < 8
        if name not in Degrees.__dataclass_fields__ or name in found or not is_number or not int(number):
            raise ValueError(
                f"{text[:60]!r} is no degree; write a whole number, or tensor, context, data and expert so: "
                "tensor=2+context=2"
            )
        found[name] = int(number)
    return Degrees(**found)
