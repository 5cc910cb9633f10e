"""Checks a lowered table, the list of computations and messages of every rank, before anything runs.

A cell is a stage, what is done and, apart from REDUCE_GRAD, UNSHARD and RESHARD, a microbatch: `2F0`, `1SEND_F0`
(stage 1 sends an activation to stage 2), `2RECV_F0`, `2SEND_B0` (stage 2 sends a gradient to stage 1), `1RECV_B0`.
No torch here: what is checked is text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from planner.execute.table.route_check import MAX_FAULTS, check_routed_rows
from planner.execute.table.routes import Cell

_CELL = re.compile(r"(0|[1-9][0-9]{0,8})(SEND_[FB]|RECV_[FB]|[FIWB])(0|[1-9][0-9]{0,8})")
_WHOLE = re.compile(r"(0|[1-9][0-9]{0,8})(REDUCE_GRAD|UNSHARD|RESHARD)")
_STEPS = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}
"""From a stage to the one at the other end of a message."""

Table = Sequence[Sequence[str]]
"""The cells of every rank in their order."""


def parse_cell(text: str) -> Cell:
    """Read one cell, without a message's other end; raises ValueError for anything else, trailing text included."""
    if match := _CELL.fullmatch(text):
        return Cell(int(match[1]), match[2], int(match[3]))
    if match := _WHOLE.fullmatch(text):
        return Cell(int(match[1]), match[2])
    raise ValueError(
        f"{text[:40]!r} is not a cell of a lowered table; write e.g. 2F0, 1SEND_F0, 2RECV_F0 or 2REDUCE_GRAD"
    )


def check_lowered_table(table: Table, *, num_stages: int, num_microbatches: int) -> tuple[str, ...]:
    """Every fault of the table, a sentence each; none means that it runs to its end and adds up what it should.

    Each rank pair is taken as one first-in-first-out channel for both directions, and receives are posted where they
    stand: a table that passes needs nothing more of the transport.
    """
    try:
        rows = [[parse_cell(text) for text in row] for row in table]
    except ValueError as error:
        return (str(error),)
    owner = {cell.stage: rank for rank, row in reversed(list(enumerate(rows))) for cell in row}
    if faults := tuple(_misplaced(rows, owner=owner, num_stages=num_stages)):
        return faults[:MAX_FAULTS]
    return check_routed_rows(
        [[_addressed(cell, owner=owner) for cell in row] for row in rows],
        owners=[(owner[number],) for number in range(num_stages)],
        edges=[(number, number + 1) for number in range(num_stages - 1)],
        microbatches=num_microbatches,
    )


def _misplaced(rows: Sequence[Sequence[Cell]], *, owner: Mapping[int, int], num_stages: int) -> Iterator[str]:
    """Every stage is on exactly one rank, and there are no others, nor neighbours of the first and the last."""
    for number in range(num_stages):
        if number not in owner:
            yield f"stage {number} is on no rank"
    for rank, row in enumerate(rows):
        for number in sorted({cell.stage for cell in row}):
            if number >= num_stages:
                yield f"rank {rank} runs stage {number}, but there are {num_stages} stages"
            elif owner[number] != rank:
                yield f"stage {number} is on rank {owner[number]} and on rank {rank}"
        for cell in row:
            if cell.stage < num_stages and not 0 <= cell.stage + _STEPS.get(cell.kind, 0) < num_stages:
                yield f"{cell} is not a message between neighbours"


def _addressed(cell: Cell, *, owner: Mapping[int, int]) -> Cell:
    """With the stage and the rank at the other end, if it is a message."""
    if cell.kind not in _STEPS:
        return cell
    peer = cell.stage + _STEPS[cell.kind]
    return cell._replace(peer=peer, rank=owner[peer])
