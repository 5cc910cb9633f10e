"""Devices as every model has them: a row each, carried whole from the question to the kernels.

The fields of a row are the columns of a table of devices. What is done to single fields is written here; everything
else takes, permutes and compares whole rows, so that a new field reaches every model and tells devices apart in it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver_models.compiled import kernel


class DeviceRow(NamedTuple):
    """A device, or several that act as one, such as those of a group."""

    kind: int = 0
    """Which costs hold for it: its type, and its width; 0 once stages are placed, which have their costs by then."""
    memory: int = 0
    """Units that a plan may fill; where stages are placed, those left for stashes and workspace."""

    @property
    def free_from(self) -> int:
        """The tick from which it may run actions: the first of the iteration."""
        return 0

    def placed(self, units: int) -> "DeviceRow":
        """What stages leave of it that take so many units all the time."""
        return self._replace(kind=0, memory=self.memory - units)

    def coarser(self, *, ticks: int, units: int, rounds_up: bool = False) -> "DeviceRow":
        """In ticks and units that are so many times as large; `rounds_up`: units that are not whole count as whole."""
        sizes = {name: (getattr(self, name) + (units - 1) * rounds_up) // units for name in _IN_UNITS}
        return self._replace(**sizes, **{name: getattr(self, name) // ticks for name in _IN_TICKS})


_IN_UNITS: tuple[str, ...] = ("memory",)
_IN_TICKS: tuple[str, ...] = ()
KIND, MEMORY = range(len(DeviceRow._fields))
"""Columns of devices."""


def as_one(rows: Sequence[DeviceRow]) -> DeviceRow:
    """Devices that run everything together: each has room for it, and the first says what it costs."""
    return rows[0]._replace(memory=min(row.memory for row in rows))


def device_table(rows: Sequence[DeviceRow]) -> NDArray[np.int64]:
    """[D, columns] the rows as kernels read them."""
    return column(rows).reshape(-1, len(DeviceRow._fields))


def column(values: Sequence[object]) -> NDArray[np.int64]:
    """The numbers as kernels read them."""
    return np.array(values, dtype=np.int64)


@kernel
def free_from(devices: NDArray[np.int64]) -> NDArray[np.int64]:
    """[D] `DeviceRow.free_from`; whatever orders become times, they begin so."""
    return np.zeros(devices.shape[0], np.int64)


@kernel
def placed(devices: NDArray[np.int64], units: NDArray[np.int64]) -> NDArray[np.int64]:
    """The table with every device as `DeviceRow.placed` has it, by its own units [D]."""
    left = devices.copy()
    left[:, KIND] = 0
    left[:, MEMORY] -= units
    return left
