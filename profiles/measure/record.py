"""What was measured, as frozen data and as lines of a journal that a later run continues from; needs no torch."""

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from profiles.documents.canonical_json import to_plain
from profiles.documents.strict_record import StrictRecord
from profiles.documents.validation import validate

PHASES = "FNIWBRO"
"""Forward, forward whose weight gradients may be put off, input gradient, weight gradient, whole backward, whole
backward with recomputation, optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(StrictRecord):
    """Repetitions of one phase of one layer."""

    ns: int
    """Median."""
    spread: float = 0.0
    """Distance of the quartiles as a fraction of the median."""
    repetitions: int = 1
    """How many were taken after the warm-up."""
    host_ns: int | None = None
    """What the host took at least to ask an accelerator for it, whose time is `ns`; None: not distinguished."""


def summarise(taken: Sequence[int]) -> Timing:
    """Median and spread of at least one repetition, in nanoseconds."""
    middle = statistics.median(taken)
    low, _, high = statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else (middle,) * 3
    return Timing(ns=round(middle), spread=round((high - low) / middle, 4) if middle else 0.0, repetitions=len(taken))


def spreads_that_count(timings: Iterable[Timing]) -> list[float]:
    """Ascending, of phases that take at least a hundredth of the longest: those of microseconds vary by several times,
    and change nothing.
    """
    known = list(timings)
    least = max((timing.ns for timing in known), default=0) / 100
    return sorted(timing.spread for timing in known if timing.ns >= least)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec(StrictRecord):
    """What a layer gives, without its values."""

    shape: tuple[int, ...]
    dtype: str
    """As torch prints it, without `torch.`."""
    num_bytes: int
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes(StrictRecord):
    """Bytes of one layer at one microbatch size."""

    parameters: int
    """Bytes of weights."""
    trained: int
    """The weights that are trained."""
    state: int
    """Weights, buffers, gradients and optimizer state."""
    saved: int
    """Distinct storages that autograd saves in F, weights and buffers aside."""
    weight_saved: int
    """What waits between the end of I and the end of W."""
    inputs: int
    """Bytes of the layer's inputs, per microbatch."""
    workspace: int
    """The most that any action holds beside the above."""
    fixed_workspace: int = 0
    """The part of it that does not grow with the samples."""
    optimizer: int | None = None
    """What of `state` is the optimizer's; None: a journal that does not know."""

    def most(self, times: int | Fraction = 1) -> int:
        """What the layer takes of a device with so many times as many samples, if all but its state grows with them."""
        return self.state + int(times * (self.saved + self.weight_saved + 2 * self.inputs + self.workspace))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord(StrictRecord):
    """One layer at one microbatch size and width."""

    outputs: tuple[TensorSpec, ...]
    sizes: LayerBytes
    timings: dict[str, Timing]
    """By the letters of PHASES; what does not happen is absent."""
    estimate: str = ""
    """Empty if measured; otherwise why the times are only estimated from operations and bytes."""
    unsplit: str = ""
    """Class of the module that keeps weight gradients from being put off; empty if some can be."""
    cut_dependence: str = ""
    """Why what it gives of a sample depends on how a batch is cut; empty: nothing was seen, or it is a batch norm."""
    takes: tuple[tuple[int, int], ...] = ()
    """Per tensor that it takes the bytes that autograd saves of it in F, and of them what waits for W; empty: a journal
    that does not know."""
    gives: tuple[tuple[int, int, int], ...] = ()
    """Per tensor that it gives the same, and the number of the input that it is; -1: a new one."""
    attention: str = ""
    """Of an estimate: `flash` where torch's own attention stores no scores, `unfused` where it does; empty: unknown."""

    @property
    def is_measured(self) -> bool:
        """Whether the times come from a clock."""
        return not self.estimate


@dataclass(slots=True, kw_only=True)
class Journal:
    """Records by their keys; each is on disk as soon as it is made, so that a run that is killed can continue."""

    path: Path | None = None
    """None: in memory only."""
    known: dict[str, LayerRecord] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    """Other measurements (links, say) by their keys."""

    def get(self, key: str) -> LayerRecord | None:
        """The record that was made under `key`, if one was."""
        return self.known.get(key)

    def put(self, key: str, record: LayerRecord) -> None:
        """Keep a record."""
        self.known[key] = record
        self._append({"key": key, "record": to_plain(record)})

    def put_table(self, key: str, table: Any) -> None:
        """Keep any other measurement that JSON can hold."""
        self.tables[key] = table
        self._append({"key": key, "table": table})

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is None:
            return
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None  # a full disk names no file


def open_journal(path: Path | None) -> Journal:
    """The journal in a file, empty if there is none yet; a last line cut short by a kill does not count.

    Raises ValueError that names the line where the file is something else.
    """
    journal = Journal(path=path)
    if path is None or not path.exists():
        return journal
    *lines, cut_short = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            _read_line(journal, line.decode("utf-8", errors="replace"), where=f"{path}: line {number}")
    if cut_short:
        os.truncate(path, path.stat().st_size - len(cut_short))
    return journal


def _read_line(journal: Journal, line: str, *, where: str) -> None:
    try:
        tree = json.loads(line)
        key = tree["key"]
        if "table" in tree:
            journal.tables[key] = tree["table"]
        else:
            journal.known[key] = validate(LayerRecord, tree["record"], source=where)
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0].removeprefix(f"{where}: ")
        raise ValueError(
            f"{where}: was not written by pipeplan profile as it is now ({reason}); remove the file to measure again"
        ) from None
