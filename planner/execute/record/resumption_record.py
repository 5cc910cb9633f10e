"""How a job continued, written down for the one that started it anew."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from planner.execute.record.put_whole import put_whole

RECORD_VARIABLE = "PIPEPLAN_RECORD"
"""Where the program finds the folder in which the ends of its processes are written down."""
_RECORD = "resumed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """From which state, and at which iteration, a job continued."""

    iteration: int
    """Number of iterations before the resumed one."""
    source: Literal["beginning", "checkpoint", "live copies"]
    """Where all its layers come from."""
    storage_bytes: int
    """What all processes read of tensors and values from the checkpoint."""


def record_resumption(resumption: Resumption, environment: Mapping[str, str] = os.environ) -> None:
    """Write it beside the records of the processes, if anybody keeps these."""
    if folder := environment.get(RECORD_VARIABLE):
        put_whole(Path(folder) / _RECORD, json.dumps(asdict(resumption)) + "\n")


def read_resumption(folder: Path) -> Resumption | None:
    """What stands in a folder of records; None for a program that wrote nothing."""
    path = folder / _RECORD
    return Resumption(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
