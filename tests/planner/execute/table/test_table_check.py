"""Lowered tables: torch's own pass, and whatever breaks one is found."""

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.execute.table.layout import make_layout
from planner.execute.table.table_check import (
    check_lowered_table,
    parse_cell,
)
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.spoiling import spoiled

Table = list[list[str]]


def rows(drawing: str) -> Table:
    """A line per rank."""
    return [line.split() for line in drawing.strip().splitlines()]


def lower(table: Table) -> Table:
    """What torch 2.13 makes of a compute table: a send and its receive are written down at once, as the action ends."""
    owner = {parse_cell(cell).stage: rank for rank, row in enumerate(table) for cell in row}
    last = {stage: [c for c in row if parse_cell(c).stage == stage][-1] for row in table for stage in stages_of(row)}
    lowered: Table = [[] for _ in table]
    done: set[str] = set()
    waiting = [list(row) for row in table]
    while any(waiting):
        before = len(done)
        for rank, row in enumerate(waiting):
            if row and needs(row[0], owner, done) <= done:
                cell = row.pop(0)
                done.add(cell)
                lowered[rank].append(cell)
                for send, other, receive in messages(cell, owner):
                    lowered[rank].append(send)
                    lowered[other].append(receive)
                if last[parse_cell(cell).stage] == cell:
                    lowered[rank].append(f"{parse_cell(cell).stage}REDUCE_GRAD")
        assert len(done) > before
    return lowered


def stages_of(row: list[str]) -> set[int]:
    return {parse_cell(cell).stage for cell in row}


def needs(text: str, owner: dict[int, int], done: set[str]) -> set[str]:
    stage, kind, microbatch, *_ = parse_cell(text)
    if kind == "F" and stage:
        return {f"{stage - 1}F{microbatch}"}
    if kind in "IB" and stage + 1 in owner:
        whole = f"{stage + 1}B{microbatch}"
        return {whole if whole in done else f"{stage + 1}I{microbatch}"}
    return set()


def messages(text: str, owner: dict[int, int]) -> Iterator[tuple[str, int, str]]:
    stage, kind, microbatch, *_ = parse_cell(text)
    letter, target = ("F", stage + 1) if kind == "F" else ("B", stage - 1)
    if kind in "FIB" and target in owner and owner[target] != owner[stage]:
        yield f"{stage}SEND_{letter}{microbatch}", owner[target], f"{target}RECV_{letter}{microbatch}"


def faults(table: Table, *, num_stages: int = 2, num_microbatches: int = 2) -> tuple[str, ...]:
    return check_lowered_table(table, num_stages=num_stages, num_microbatches=num_microbatches)


GOOD = """
0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0W0 0RECV_B1 0B1 0REDUCE_GRAD
1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1W0 1F1 1B1 1SEND_B1 1REDUCE_GRAD
"""


def test_a_good_table_has_no_fault():
    """Tests that a table as torch makes it passes, UNSHARD and RESHARD included."""
    assert faults(rows(GOOD)) == ()
    assert faults([["0UNSHARD", *rows(GOOD)[0], "0RESHARD"], rows(GOOD)[1]]) == ()
    assert lower(rows("0F0 0F1 0I0 0W0 0B1\n1F0 1I0 1W0 1F1 1B1")) == rows(GOOD)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0F0 ", "", "rank 0 runs IW of stage 0 for microbatch 0"),
        ("0F0 0SEND_F0", "0F0 0F0 0SEND_F0", "rank 0 runs 0F0 2 times"),
        ("0I0 0W0", "0W0 0I0", "rank 0 has 0W0 before 0I0"),
        ("1F1 1B1", "1B1 1F1", "rank 1 has 1B1 before 1F1"),
        ("0SEND_F1", "", "0SEND_F1>1@1 is missing on rank 0"),
        ("1RECV_F1", "1RECV_F1 1RECV_F1", "rank 1 has 1RECV_F1<0@0 2 times"),
        ("1SEND_B1", "1SEND_F1", "1SEND_F1 is not a message between neighbours"),
        ("0F0 0SEND_F0", "0SEND_F0 0F0", "rank 0 has 0SEND_F0>1@1 before 0F0"),
        ("1RECV_F0 1F0 1RECV_F1", "1F0 1RECV_F0 1RECV_F1", "rank 1 has 1F0 before 1RECV_F0<0@0"),
        ("0REDUCE_GRAD", "", "stage 0 is reduced 0 times"),
        ("1REDUCE_GRAD", "1REDUCE_GRAD 1REDUCE_GRAD", "stage 1 is reduced 2 times"),
        ("1F1 1B1 1SEND_B1 1REDUCE_GRAD", "1F1 1REDUCE_GRAD 1B1 1SEND_B1", "stage 1 is reduced before 1B1"),
        ("1RECV_F0 1F0 1RECV_F1", "1RECV_F1 1RECV_F0 1F0", "ranks 0 and 1 disagree on message 0 between them"),
        ("1RECV_F1 1I0 1SEND_B0", "1I0 1SEND_B0 1RECV_F1", "ranks 0 and 1 disagree on message 1 between them"),
        ("0RECV_B0", "0RECV_B0 0SEND_B0", "0SEND_B0 is not a message between neighbours"),
        ("1W0 1F1", "1W0 2F1", "rank 1 runs stage 2, but there are 2 stages"),
        ("1F0 1RECV_F1", "0F0 1F0 1RECV_F1", "stage 0 is on rank 0 and on rank 1"),
        ("0B1", "0B7", "rank 0 runs 0B7, which is not its own"),
        ("0B1", "0B1xyz", "'0B1xyz' is not a cell of a lowered table"),
    ],
)
def test_each_fault_is_named(old: str, new: str, message: str):
    """Tests that each rule, broken alone, is named with the cell that breaks it."""
    assert GOOD.count(old) == 1
    assert any(message in fault for fault in faults(rows(GOOD.replace(old, new)))), faults(rows(GOOD.replace(old, new)))


def test_a_deadlock_is_found():
    """Tests that ranks that wait for each other are named with the cells they wait in."""
    table = rows(
        """
        0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0 0REDUCE_GRAD
        1RECV_F0 1RECV_F1 1F1 1B1 1SEND_B1 1F0 1B0 1SEND_B0 1REDUCE_GRAD
        """
    )
    assert faults(table) == ()
    table[0][2:6] = ["0RECV_B1", "0B1", "0F1", "0SEND_F1"]
    assert any("0F1" in fault or "wait for each other" in fault for fault in faults(table))


@st.composite
def lowered_tables(draw: st.DrawFn) -> tuple[Table, int, int]:
    """A lowered table of a random map and a random order."""
    num_ranks = draw(st.integers(1, 4))
    num_stages = draw(st.integers(num_ranks, 6))
    owners = list(range(num_ranks)) + [draw(st.integers(0, num_ranks - 1)) for _ in range(num_stages - num_ranks)]
    owners = draw(st.permutations(owners))
    plan = make_random_plan(
        " ".join(map(str, owners)),
        num_microbatches=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 10**6)),
        backward=draw(st.sampled_from(["IW", "B"])),
    )
    return lower([list(map(str, row)) for row in make_layout(plan).rows]), num_stages, plan.problem.num_microbatches


@given(case=lowered_tables())
def test_lowered_tables_pass(case: tuple[Table, int, int]):
    """Tests that whatever order runs on a chain is lowered to a table without faults."""
    table, num_stages, num_microbatches = case
    assert faults(table, num_stages=num_stages, num_microbatches=num_microbatches) == ()


@given(case=lowered_tables(), seed=st.integers(0, 10**6))
def test_a_missing_or_repeated_cell_is_found(case: tuple[Table, int, int], seed: int):
    """Tests that no cell can be left out, repeated or moved to another rank unnoticed."""
    table, num_stages, num_microbatches = case
    for change, cell, broken in spoiled(table, seed):
        found = faults(broken, num_stages=num_stages, num_microbatches=num_microbatches)
        assert found != (), (change, cell)


def swappable(table: Table) -> list[tuple[int, int, int]]:
    """Rank and two places whose cells belong to one rank pair: their order is agreed between two ranks."""
    owner = {
        parse_cell(cell).stage: rank for rank, row in enumerate(table) for cell in row if parse_cell(cell).kind == "F"
    }
    found = []
    for rank, row in enumerate(table):
        peers = {}
        for place, text in enumerate(row):
            stage, kind, *_ = parse_cell(text)
            if "_F" in kind or "_B" in kind:
                step = 1 if kind in ("SEND_F", "RECV_B") else -1
                peers.setdefault(owner[stage + step], []).append(place)
        found += [(rank, a, b) for places in peers.values() for a, b in itertools.pairwise(places)]
    return found


@given(case=lowered_tables(), seed=st.integers(0, 10**6))
def test_a_swapped_pair_of_messages_is_found(case: tuple[Table, int, int], seed: int):
    """Tests that two messages of a rank pair cannot change places on one side unnoticed: torch would mix them up."""
    table, num_stages, num_microbatches = case
    if not (places := swappable(table)):
        return
    rank, a, b = random.Random(seed).choice(places)
    table[rank][a], table[rank][b] = table[rank][b], table[rank][a]
    assert faults(table, num_stages=num_stages, num_microbatches=num_microbatches) != ()


@given(case=lowered_tables(), seed=st.integers(0, 10**6))
def test_any_shuffled_row_that_passes_still_runs(case: tuple[Table, int, int], seed: int):
    """Tests that a table which passes after two neighbouring cells changed places runs to its end, played by hand."""
    table, num_stages, num_microbatches = case
    rng = random.Random(seed)
    rank = rng.randrange(len(table))
    place = rng.randrange(len(table[rank]) - 1)
    row = table[rank]
    row[place], row[place + 1] = row[place + 1], row[place]
    if faults(table, num_stages=num_stages, num_microbatches=num_microbatches) == ():
        assert runs_to_its_end(table)


def runs_to_its_end(table: Table) -> bool:
    """A second opinion: rendezvous-free sends over one queue per direction, receives in the order of arrival."""
    owner = {parse_cell(cell).stage: rank for rank, row in enumerate(table) for cell in row}
    sent: dict[tuple[int, int], list[str]] = {}
    at = [0] * len(table)
    held: set[str] = set()
    while True:
        moved = False
        for rank, row in enumerate(table):
            while at[rank] < len(row) and is_ready(row[at[rank]], owner, sent, held, rank):
                text = row[at[rank]]
                stage, kind, microbatch, *_ = parse_cell(text)
                if kind.startswith("SEND"):
                    target = stage + (1 if kind[-1] == "F" else -1)
                    sent.setdefault((rank, owner[target]), []).append(f"{target}RECV_{kind[-1]}{microbatch}")
                elif kind.startswith("RECV"):
                    source = stage - (1 if kind[-1] == "F" else -1)
                    if sent[owner[source], rank].pop(0) != text:
                        return False
                held.add(text)
                at[rank] += 1
                moved = True
        if not moved:
            return all(place == len(row) for place, row in zip(at, table, strict=True))


def is_ready(
    text: str, owner: dict[int, int], sent: dict[tuple[int, int], list[str]], held: set[str], rank: int
) -> bool:
    stage, kind, microbatch, *_ = parse_cell(text)
    if kind.startswith("RECV"):
        source = stage - (1 if kind[-1] == "F" else -1)
        return bool(sent.get((owner[source], rank)))
    if kind in ("F", "I", "B"):
        source = stage - 1 if kind == "F" else stage + 1
        if source in owner and owner[source] != rank:
            return f"{stage}RECV_{'F' if kind == 'F' else 'B'}{microbatch}" in held
        return needs(text, owner, held) <= held
    return True
