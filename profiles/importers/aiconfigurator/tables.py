"""Where the tables of aiconfigurator-core lie, which there are, and their columns.

The package is read as files and never imported: it brings a compiled engine that is not needed here.
"""

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray

from profiles.documents.refusal import render_value
from profiles.estimates.networks import CARDS_BYTES_PER_S

PACKAGE = "aiconfigurator_core"

INSTALL = "pip install 'pipeline-planner[tables]'"
"""Command in the message that the tables are missing."""

_MAX_YAML_BYTES = 10**6

Columns = dict[str, NDArray[Any]]
"""A table by column."""


class NoTablesError(ValueError):
    """The package with the tables, or a table in it, is missing."""


@dataclass(frozen=True, kw_only=True)
class TablePackage:
    """The folder `systems` of an installation, or of a copy in its form."""

    folder: Path
    """It holds `NAME.yaml` and `data/NAME/TABLE/FRAMEWORK/VERSION/*.parquet`."""
    version: str
    """Release of the installed package."""

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The device types with measured products and attention, by the package's names."""
        data = self.folder / "data"
        return tuple(
            sorted(
                path.stem
                for path in self.folder.glob("*.yaml")
                if any((data / path.stem / "gemm").glob("*/*/gemm_perf.parquet"))
                and any((data / path.stem / "attention").glob("*/*/context_attention_perf.parquet"))
            )
        )

    def find_gpu(self, name: str) -> str:
        """The package's name of a device type, which may be given without its form (`h100`) and in any case."""
        wanted = name.lower().replace("-", "_")
        for gpu in (wanted, f"{wanted}_sxm"):
            if gpu in self.gpus:
                return gpu
        raise NoTablesError(
            f"aiconfigurator-core {self.version} has no measured tables of {render_value(name)}; "
            f"give one of {', '.join(self.gpus)}"
        )

    def sheet(self, gpu: str) -> dict[str, Any]:
        """What the package's `NAME.yaml` says about a device type: `gpu`, `node` and `misc`; with the cards it has."""
        path = self.folder / f"{gpu}.yaml"
        try:
            text = path.read_bytes()[:_MAX_YAML_BYTES]
            found = yaml.safe_load(text)
        except (OSError, yaml.YAMLError) as error:
            raise NoTablesError(f"{path.name}: cannot be read ({type(error).__name__}); {INSTALL} again") from None
        if not isinstance(found, dict) or not all(isinstance(found.get(key), dict) for key in ("gpu", "node")):
            raise NoTablesError(f"{path.name}: states no gpu and node; {INSTALL} again")
        if gpu in CARDS_BYTES_PER_S:
            found["node"]["inter_rack_bw" if "inter_rack_bw" in found["node"] else "inter_node_bw"] = CARDS_BYTES_PER_S[
                gpu
            ]
        return found

    def find(self, gpu: str, table: str, *, file: str, frameworks: Sequence[str]) -> tuple[Path, ...]:
        """The files of a table, by the order of the frameworks, the newest version of each first."""
        return tuple(
            path
            for framework in frameworks
            for path in sorted(
                (self.folder / "data" / gpu / table / framework).glob(f"*/{file}"), key=_version_key, reverse=True
            )
        )


def _version_key(path: Path) -> tuple[tuple[int, str], ...]:
    """`1.3.0rc20` after `1.3.0rc10` and `1.2.0`."""
    text = path.parent.name.replace("rc", ".-1.").replace("post", ".")
    return tuple((int(part), "") if part.lstrip("-").isdecimal() else (0, part) for part in text.split("."))


def read_columns(path: Path) -> Columns:
    """The columns of a file.

    Raises NoTablesError if the file cannot be read, or pyarrow is missing.
    """
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise NoTablesError(f"reading the tables needs pyarrow: {INSTALL}") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise NoTablesError(f"{path.name}: cannot be read ({type(error).__name__}); {INSTALL} again") from None
    columns = {name: table[name].to_numpy() for name in table.column_names}
    if "latency" not in columns:
        raise NoTablesError(
            f"{path.name}: has no column 'latency', so it is no table of aiconfigurator-core; {INSTALL} again"
        )
    return columns


@cache
def find_package() -> TablePackage:
    """The installed package; raises NoTablesError that says how to install it."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise NoTablesError(f"the tables of aiconfigurator-core are not installed: {INSTALL}")
    version = importlib.metadata.version("aiconfigurator-core")
    return TablePackage(folder=Path(found.submodule_search_locations[0]) / "systems", version=version)
