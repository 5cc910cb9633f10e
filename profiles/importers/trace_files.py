"""Which files are the traces of a job, among those that were given."""

from collections.abc import Sequence
from pathlib import Path

LOGS = (".log", ".txt", ".out")
"""How the names of logs end."""

PARQUET = ".parquet"

_DOCUMENTS = (".json", ".json.gz", PARQUET)

PROTOBUF = (".et", ".et.gz")
"""How the names of Chakra's traces in protobuf end."""

TRACES = "a trace of torch's profiler or Chakra per rank, .parquet, Megatron's log with timers, or a folder of --trace"
"""Forms that are read, in words for a remedy."""


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """One parquet file, one log, or one document per rank.

    Raises ValueError with one message where there is nothing, or nothing that can be read, or several of what is one.
    """
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise ValueError(f"{paths[0]}: contains no traces; give {TRACES}")
    whole = [file for file in files if file.suffix in (PARQUET, *LOGS)]
    if whole and len(files) != 1:
        what = "parquet file" if whole[0].suffix == PARQUET else "log"
        raise ValueError(f"{whole[0]}: one {what} holds all ranks; give one file at a time")
    return files


def _files(path: Path) -> list[Path]:
    """Of a folder what our executor wrote, else documents, else what is read or refused by its ending."""
    if not path.is_dir():
        return [path]
    names = sorted(path.iterdir())
    return (
        [each for each in names if each.name.startswith("rank") and each.name.endswith((".json", ".json.gz"))]
        or [each for each in names if each.name.endswith(_DOCUMENTS)]
        or [each for each in names if each.name.endswith((*PROTOBUF, *LOGS))]
    )
