"""Fractional coverings: columns of the least cost that cover every row, and the prices of the rows."""

from collections.abc import Iterable

import highspy
import numpy
from numpy.typing import NDArray

Floats = NDArray[numpy.float64]

DEAR = 1000.0
"""What a row costs that no column covers."""


class Covering:
    """A linear programme that grows by columns: minimise their cost, cover every row."""

    def __init__(self, needs: Iterable[float]) -> None:
        """`needs`: per row how much of it is to be covered."""
        self._model = highspy.Highs()
        self._model.silent()
        self._model.setOptionValue("threads", 1)
        self.num_rows = 0
        for need in needs:
            self._model.addRow(need, highspy.kHighsInf, 0, [], [])
            self.num_rows += 1
        for row in range(self.num_rows):
            self._model.addCol(DEAR, 0.0, highspy.kHighsInf, 1, [row], [1.0])

    def add(self, rows: list[int], parts: list[float], *, cost: float = 1.0) -> None:
        """A column that covers so much of these rows."""
        self._model.addCol(cost, 0.0, highspy.kHighsInf, len(rows), rows, parts)

    def solve(self) -> tuple[Floats, Floats]:
        """Price of every row, and how much of every column is taken, in the order in which they were added."""
        self._model.run()
        solution = self._model.getSolution()
        return numpy.array(solution.row_dual), numpy.array(solution.col_value)[self.num_rows :]
