"""What nvidia-smi answers: the accelerators of this host, what joins them, and which of them a process sees."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent

QUESTION = ("--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")
"""What `parse_accelerators` reads the answer of."""
UUID_QUESTION = ("--query-gpu=index,uuid", "--format=csv,noheader")
"""What `parse_uuids` reads the answer of."""
SLICES_QUESTION = ("--query-gpu=index,mig.mode.current", "--format=csv,noheader")
"""What `without_sliced` reads the answer of."""
CONNECTION_QUESTION = ("topo", "-m")
"""What `parse_connections` reads the answer of."""

_NOT_TOLD = ("[N/A]", "N/A", "[NOT SUPPORTED]", "NOT SUPPORTED")
_HEADER = re.compile(r"index, *name, *memory\.total\b")
_REMEDY = (
    f"give what `nvidia-smi {' '.join(QUESTION)}` prints, or repair its driver; name other makers' devices in a "
    "hostfile, with --type and --accelerator-gib"
)
_JOINED = re.compile(r"NV\d+|SYS|NODE|P[HX]B|PIX|PSB|SOC|N/A")
_LOST = re.compile(r"Unable to determine the device handle for (GPU\s*\S+):\s+(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRow:
    """Index, name and memory of a GPU, as nvidia-smi lists it."""

    index: int
    """Its number, which stays where others are lost."""
    name: str
    memory_bytes: int | None
    """None: it has none of its own and uses the host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRows:
    """The GPUs of this host, in nvidia-smi's order."""

    working: tuple[AcceleratorRow, ...] = ()
    """By their numbers."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Those that do not answer, and what nvidia-smi says of them."""

    @property
    def unified(self) -> tuple[AcceleratorRow, ...]:
        """Those that use the memory of the host."""
        return tuple(row for row in self.working if row.memory_bytes is None)


def parse_accelerators(text: str) -> AcceleratorRows:
    """The answer of `nvidia-smi --query-gpu=index,name,memory.total --format=csv` (MiB), with header and units or not.

    Raises ValueError with the line where nvidia-smi, or its driver, answers anything else.
    """
    working: dict[int, AcceleratorRow] = {}
    lost: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        cells = [cell.strip() for cell in line.split(",")]
        if match := _LOST.match(line):
            lost[match[1]] = match[2].strip()
        elif _HEADER.match(line) or line.startswith("No devices were found"):
            continue
        elif len(cells) < 3 or not cells[0].isdecimal() or int(cells[0]) in working:
            raise ValueError(f"nvidia-smi answers {line[:120]!r} in place of `index, name, memory.total`; {_REMEDY}")
        elif broken := next((cell for cell in cells[1:3] if _is_error(cell)), None):
            lost[f"GPU {cells[0]}"] = broken.strip("[]")
        else:
            index = int(cells[0])
            working[index] = AcceleratorRow(index=index, name=cells[1], memory_bytes=_memory(cells[2], line))
    return AcceleratorRows(working=tuple(working[index] for index in sorted(working)), lost=lost)


def without_sliced(rows: AcceleratorRows, text: str) -> AcceleratorRows:
    """The accelerators without those that are cut into slices (MIG): no process sees such a one whole."""
    cells = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    sliced = {row[0] for row in cells if len(row) > 1 and row[1] == "Enabled"}
    return AcceleratorRows(
        working=tuple(row for row in rows.working if str(row.index) not in sliced),
        lost={**rows.lost, **{f"GPU {number}": "cut into slices by MIG" for number in sorted(sliced)}},
    )


def _is_error(cell: str) -> bool:
    return bool(re.fullmatch(r"\[.*\]|ERR!", cell)) and cell.upper() not in _NOT_TOLD


def _memory(cell: str, line: str) -> int | None:
    if cell.upper() in _NOT_TOLD:
        return None
    match = re.fullmatch(r"([0-9]+)(?: MiB)?", cell)
    if match is None:
        raise ValueError(f"nvidia-smi answers {line[:120]!r}, whose memory is not a number of MiB; {_REMEDY}")
    return int(match[1]) * 2**20 or None


def parse_uuids(text: str) -> dict[int, str]:
    """The names of the accelerators by their numbers."""
    cells = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    return {int(row[0]): row[1] for row in cells if len(row) > 1 and row[0].isdecimal()}


def names_accelerators(wanted: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES has anything but numbers."""
    return wanted is not None and re.fullmatch(r"[-\d,\s]*", wanted) is None


def visible_numbers(wanted: str | None, *, numbers: Sequence[int], uuids: Mapping[int, str]) -> list[int]:
    """The numbers that CUDA_VISIBLE_DEVICES leaves a process, in its order; None: all.

    As in CUDA, an entry that is nothing ends the list, and the beginning of a name suffices. Raises ValueError for
    slices of a GPU (MIG), which the rows do not describe.
    """
    kept: list[int] = []
    for entry in wanted.split(",") if wanted is not None else map(str, range(len(numbers))):
        entry = entry.strip()
        if entry.upper().startswith("MIG-"):
            raise ValueError(f"CUDA_VISIBLE_DEVICES = {wanted}: {entry} is a slice of a GPU; name whole GPUs")
        if entry.isdecimal():
            found = [numbers[int(entry)]] if int(entry) < len(numbers) else []
        else:
            found = [number for number in numbers if entry and uuids.get(number, "").startswith(entry)]
        if len(found) != 1 or found[0] in kept:
            break
        kept += found
    return kept


def parse_connections(text: str) -> dict[tuple[int, int], str]:
    """What joins each pair of accelerators (lower number first) by `nvidia-smi topo -m`: NV18, PIX, ...

    Raises ValueError for a pair that two cells tell otherwise, as where the matrices of two hosts follow one another,
    and for the matrix of `topo -mp`, which shows PCIe alone.
    """
    if re.search(r"^\s*SYS\s+=", text, re.MULTILINE) and "NV#" not in text:
        raise ValueError("`topo -mp` shows no NVLink, as its legend says; give what `nvidia-smi topo -m` prints")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    matrix = dedent("\n".join(line for line in lines if re.search(r"\bGPU\d", line))).splitlines()
    rows = [[cell.strip() for cell in re.split(r" *\t *| {2,}", line)] for line in matrix]
    head = next((row for row in rows if len(row) > 1 and not row[0] and _gpu(row[1]) is not None), [])
    found: dict[tuple[int, int], str] = {}
    for first, row in ((_gpu(row[0]), row) for row in rows):
        for second, cell in zip(map(_gpu, head), row, strict=False):
            if first is None or second is None or not _JOINED.fullmatch(cell):
                continue
            back = found.get((second, first), cell)
            if found.setdefault((first, second), cell) != cell or back.startswith("NV") != cell.startswith("NV"):
                raise ValueError(f"`topo -m` joins GPU {first} and {second} by {cell} and otherwise; give one host's")
    return {pair: cell for pair, cell in found.items() if pair[0] < pair[1]}


def _gpu(cell: str) -> int | None:
    match = re.fullmatch(r"GPU([0-9]+)", cell)
    return int(match[1]) if match else None


def nvlink_lanes(connections: Mapping[tuple[int, int], str]) -> dict[tuple[int, int], int]:
    """How many lanes of NVLink join each pair that has any."""
    matches = ((pair, re.fullmatch(r"NV([0-9]+)", what)) for pair, what in connections.items())
    return {pair: int(match[1]) for pair, match in matches if match}
