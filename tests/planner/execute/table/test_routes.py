"""Who sends which samples to whom, and in which order."""

import itertools
import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.actions import Action, parse_action
from planner.execute.data.dealt_rows import BalancedRows, make_1f1b, rebalance
from planner.execute.table.layout import Layout, make_layout
from planner.execute.table.routes import Cell, Row, SampleRange, lower, make_routes
from planner.execute.table.watch import describe_needs
from planner.execute.table.wiring import StageEdge
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.split_orders import make_split_plan
from tests.planner.execute.spoiling import spoiled
from tests.planner.execute.table.route_check import check_routed_rows


def edges_of(text: str) -> tuple[StageEdge, ...]:
    """As `0-1 0-2`."""
    ends = [tuple(map(int, pair.split("-"))) for pair in text.split()]
    return tuple(StageEdge(producer=a, consumer=b, values=(f"l{a}",)) for a, b in ends)


def faults(rows: list[Row], layout: Layout, edges: tuple[StageEdge, ...]) -> tuple[str, ...]:
    return check_routed_rows(rows, layout, edges=edges)


def drawing(rows: list[Row]) -> str:
    return "\n".join(" ".join(map(str, row)) for row in rows)


def test_replicas_exchange_the_samples_that_they_have_in_common():
    """Tests that two halves meet three thirds in four routes, the middle third in two of them."""
    layout = make_layout(make_random_plan("0/1 2/3/4", num_microbatches=1))
    routes = make_routes(layout, edges_of("0-1"))
    assert [(route.source, route.target, route.made, route.used) for route in routes] == [
        (0, 2, SampleRange(0, 2, 3), SampleRange(0, 2, 2)),
        (0, 3, SampleRange(2, 3, 3), SampleRange(0, 1, 2)),
        (1, 3, SampleRange(0, 1, 3), SampleRange(1, 2, 2)),
        (1, 4, SampleRange(1, 3, 3), SampleRange(0, 2, 2)),
    ]
    assert SampleRange(2, 3, 3).rows(6) == slice(4, 6)
    assert [part.is_whole for part in (SampleRange(0, 2, 2), SampleRange(1, 2, 2))] == [True, False]


def test_a_skip_edge_has_its_own_messages():
    """Tests that what skips a stage goes straight to where it is taken, and within a rank by no message at all."""
    layout = make_layout(make_random_plan("0 1 2", num_microbatches=1, edges="0-1 1-2 0-2"))
    rows = lower(layout, edges_of("0-1 1-2 0-2"))
    assert "0SEND_F0>1@1 0SEND_F0>2@2" in drawing(rows)
    assert "2RECV_F0<0@0 2RECV_F0<1@1 2F0" in drawing(rows)
    folded = make_layout(make_random_plan("0 1 0", num_microbatches=1, edges="0-1 1-2 0-2"))
    assert "0SEND_F0>1@1 2RECV_F0<1@1 2F0" in drawing(lower(folded, edges_of("0-1 1-2 0-2")))
    assert "0SEND_F0>2" not in drawing(lower(folded, edges_of("0-1 1-2 0-2")))


def test_ranks_that_wait_for_each_other_are_named():
    """Tests that orders which cannot be followed are refused with the actions that wait."""
    layout = make_layout(make_random_plan("0/1 0", num_microbatches=1))
    late = (Action("F", 1, 0), *(action for action in layout.rows[0] if action != Action("F", 1, 0)))
    with pytest.raises(ValueError, match="the ranks wait for each other: rank 0 in 1F0, rank 1 in 0I0"):
        lower(replace(layout, rows=(late, layout.rows[1])), edges_of("0-1"))


def test_messages_in_two_orders_are_found():
    """Tests that a pair of ranks which list their messages in different orders is named."""
    edges = edges_of("0-1 1-2 0-2")
    layout = make_layout(make_random_plan("0 1 1", num_microbatches=1, edges="0-1 1-2 0-2"))
    rows = lower(layout, edges)
    first, second = (place for place, cell in enumerate(rows[0]) if cell.kind == "SEND_F")
    rows[0][first], rows[0][second] = rows[0][second], rows[0][first]
    (fault,) = faults(rows, layout, edges)
    assert fault.startswith("ranks 0 and 1 disagree on message 0 between them: the activation of microbatch 0 from")


def test_stages_are_reduced_as_their_last_replica_ends():
    """Tests that replicas whose stages end in different orders reduce them in one."""
    layout = make_layout(make_random_plan("0/1 0/1", num_microbatches=1))
    late = tuple(sorted(layout.rows[1], key=lambda action: (action.kind == "W", action == Action("W", 1, 0))))
    ends = [[str(a) for a in row if a.kind == "W"] for row in (layout.rows[0], late)]
    assert ends == [["1W0", "0W0"], ["0W0", "1W0"]]
    rows = lower(replace(layout, rows=(layout.rows[0], late)), edges_of("0-1"))
    assert faults(rows, layout, edges_of("0-1")) == ()
    orders = [[str(cell) for cell in row if cell.kind == "REDUCE_GRAD"] for row in rows]
    assert orders[0] == orders[1]


def test_reductions_that_wait_for_each_other_are_found():
    """Tests that two ranks which reduce two stages in different orders are named."""
    layout = make_layout(make_random_plan("0/1 1/0", num_microbatches=1))
    edges = edges_of("0-1")
    rows = lower(layout, edges)
    assert faults(rows, layout, edges) == ()
    reductions = [place for place, cell in enumerate(rows[0]) if cell.kind == "REDUCE_GRAD"]
    cell = rows[0].pop(reductions[0])
    rows[0].append(cell)
    (fault,) = faults(rows, layout, edges)
    assert fault.startswith("the replicas would wait for each other to reduce their gradients: rank 0 at stage ")


def test_a_deadlock_is_found():
    """Tests that ranks whose computations wait for each other's messages are named."""
    edges = edges_of("0-1")
    layout = make_layout(make_random_plan("0/1 1/0", num_microbatches=2, backward="B"))
    rows = lower(layout, edges)
    for row in rows:
        forward = next(cell for cell in row if str(cell) == "1F0")
        received = next(cell for cell in row if str(cell).startswith("1RECV_F0"))
        sent = [cell for cell in row if str(cell).startswith("0SEND_F0")]
        made = next(cell for cell in row if str(cell) == "0F0")
        rest = [cell for cell in row if cell not in (forward, received, made, *sent)]
        row[:] = [received, forward, made, *sent, *rest]
    assert any(
        "wait for each other: rank 0 in 1F0" in fault or "disagree" in fault for fault in faults(rows, layout, edges)
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, tuple[StageEdge, ...]]:
    """A random graph of stages, each with one to three replicas on four devices."""
    num_stages = draw(st.integers(2, 4))
    ends = {f"{number}-{number + 1}" for number in range(num_stages - 1)}
    more = [(a, b) for a in range(num_stages) for b in range(a + 2, num_stages)]
    ends |= {f"{a}-{b}" for a, b in draw(st.sets(st.sampled_from(more), max_size=2))} if more else set()
    text = " ".join(sorted(ends))
    groups = ["/".join(map(str, draw(st.permutations(range(4)))[: draw(st.integers(1, 3))])) for _ in range(num_stages)]
    plan = make_random_plan(
        " ".join(groups),
        num_microbatches=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 10**6)),
        backward=draw(st.sampled_from(["IW", "B"])),
        edges=text,
    )
    return make_layout(plan), edges_of(text)


@given(case=layouts())
def test_lowered_rows_pass(case: tuple[Layout, tuple[StageEdge, ...]]):
    """Tests that whatever can run is lowered to rows without faults."""
    layout, edges = case
    assert faults(lower(layout, edges), layout, edges) == ()


@given(case=layouts(), seed=st.integers(0, 10**6))
def test_a_missing_or_repeated_cell_is_found(case: tuple[Layout, tuple[StageEdge, ...]], seed: int):
    """Tests that no cell can be left out, repeated or moved to another rank unnoticed."""
    layout, edges = case
    for change, cell, broken in spoiled(lower(layout, edges), seed):
        assert faults(broken, layout, edges) != (), (change, cell)


@given(case=layouts(), seed=st.integers(0, 10**6))
def test_a_swapped_pair_of_messages_is_found(case: tuple[Layout, tuple[StageEdge, ...]], seed: int):
    """Tests that two messages of a rank pair cannot change places on one side unnoticed: they would be mixed up."""
    layout, edges = case
    rows = lower(layout, edges)
    peers = [(row, {cell.rank for cell in row if cell.rank is not None and "_" in cell.kind}) for row in rows]
    lists = [[k for k, cell in enumerate(row) if cell.rank == peer] for row, own in peers for peer in sorted(own)]
    owners = [row for row, own in peers for _ in own]
    pairs = [(row, a, b) for row, places in zip(owners, lists, strict=True) for a, b in itertools.pairwise(places)]
    if pairs:
        row, a, b = random.Random(seed).choice(pairs)
        row[a], row[b] = row[b], row[a]
        assert faults(rows, layout, edges) != ()


@given(num_stages=st.integers(2, 5), ranks=st.integers(1, 3), count=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_any_shuffled_row_that_passes_still_runs(num_stages: int, ranks: int, count: int, seed: int):
    """Tests that rows which pass after two neighbouring cells changed places run to their end, played by hand."""
    rng = random.Random(seed)
    owners = [*range(ranks), *(rng.randrange(ranks) for _ in range(num_stages))][-max(num_stages, ranks) :]
    plan = make_random_plan(" ".join(map(str, owners)), num_microbatches=count, seed=seed)
    edges = edges_of(" ".join(f"{number}-{number + 1}" for number in range(len(owners) - 1)))
    layout = make_layout(plan)
    rows = lower(layout, edges)
    row = rng.choice(rows)
    place = rng.randrange(len(row) - 1)
    row[place], row[place + 1] = row[place + 1], row[place]
    if faults(rows, layout, edges) == ():
        assert runs_to_its_end(rows)


def runs_to_its_end(rows: list[Row]) -> bool:
    """A second opinion on chains: sends that wait for nobody over a queue per direction, receives as they arrive."""
    sent, held, at = defaultdict[tuple[int, int], list[Cell]](list), set[tuple[int, str]](), [0] * len(rows)
    while True:
        before = sum(at)
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and is_ready(row[at[rank]], row, rank=rank, sent=sent, held=held):
                cell = row[at[rank]]
                if cell.kind.startswith("SEND"):
                    sent[rank, cell.rank].append(cell)
                elif cell.kind.startswith("RECV"):
                    expected = Cell(cell.peer, f"SEND_{cell.kind[-1]}", cell.microbatch, cell.stage, rank)
                    if sent[cell.rank, rank].pop(0) != expected:
                        return False
                held.add((rank, str(cell)))
                at[rank] += 1
        if sum(at) == before:
            return at == list(map(len, rows))


def is_ready(
    cell: Cell, row: Row, *, rank: int, sent: dict[tuple[int, int], list[Cell]], held: set[tuple[int, str]]
) -> bool:
    """Whether a message has come, or all that an action takes: from other ranks, or from its own."""
    if cell.kind.startswith("RECV"):
        return bool(sent[cell.rank, rank])
    if cell.kind not in ("F", "I", "B"):
        return True
    letters, other = ("F", cell.stage - 1) if cell.kind == "F" else ("IB", cell.stage + 1)
    needed = [c for c in row if c.microbatch == cell.microbatch and c.stage == cell.stage]
    needed = [c for c in needed if c.kind == f"RECV_{'F' if cell.kind == 'F' else 'B'}"]
    needed += [c for c in row if c.microbatch == cell.microbatch and c.stage == other and c.kind in letters]
    return all((rank, str(each)) in held for each in needed)


def test_every_member_of_a_group_is_told_once():
    """Tests that two devices after one, and one after two, get the whole once, and that a rank in both tells itself."""
    one_two_one = make_layout(make_random_plan("0 1+2 3", num_microbatches=1))
    rows = lower(one_two_one, edges_of("0-1 1-2"))
    assert drawing(rows) == "\n".join(
        [
            "0F0 0SEND_F0>1@1 0SEND_F0>1@2 0RECV_B0<1@1 0I0 0W0 0REDUCE_GRAD",
            "1RECV_F0<0@0 1F0 1SEND_F0>2@3 1RECV_B0<2@3 1I0 1SEND_B0>0@0 1W0 1REDUCE_GRAD",
            "1RECV_F0<0@0 1F0 1RECV_B0<2@3 1I0 1W0 1REDUCE_GRAD",
            "2RECV_F0<1@1 2F0 2I0 2SEND_B0>1@1 2SEND_B0>1@2 2W0 2REDUCE_GRAD",
        ]
    )
    assert faults(rows, one_two_one, edges_of("0-1 1-2")) == ()
    overlapping = make_layout(make_random_plan("0+1 1+2", num_microbatches=1))
    found = {(route.source, route.target): route.letters for route in make_routes(overlapping, edges_of("0-1"))}
    assert found == {(0, 1): "B", (1, 1): "FB", (1, 2): "F"}
    assert overlapping.team_of(1, 2) == (1, 2)
    assert overlapping.alike(1) == ((1,), (2,))


def test_groups_that_come_to_an_action_apart_are_refused():
    """Tests that two devices which take two stages in another order are named, by the maker and by the checker."""
    layout = make_layout(make_random_plan("0+1 0+1", num_microbatches=2))
    row = layout.rows[0]
    assert [str(action) for action in row[:3]] == ["0F0", "1F0", "1I0"]
    crossed = (*row[:1], Action("F", 0, 1), *(action for action in row[1:] if action != Action("F", 0, 1)))
    other = replace(layout, rows=(crossed, row))
    with pytest.raises(ValueError, match="the ranks wait for each other: rank 0 in 0F1, rank 1 in 1F0"):
        lower(other, edges_of("0-1"))
    rows = lower(layout, edges_of("0-1"))
    places = {str(cell): place for place, cell in enumerate(rows[0])}
    moved = list(rows[0])
    moved.insert(places["1F0"], moved.pop(places["0F1"]))
    assert faults([moved, rows[1]], layout, edges_of("0-1")) == (
        "the ranks wait for each other: rank 0 in 0F1, rank 1 in 1F0",
    )


@st.composite
def grouped_layouts(draw: st.DrawFn) -> tuple[Layout, tuple[StageEdge, ...]]:
    """Three stages on groups of one or two of four devices, replicas included, in a random order."""
    groups = ["0+1", "2+3", "1+2", "0+1/2+3", "0+2/1+3", "0", "3/1", "0+1+2+3"]
    placement = " ".join(draw(st.lists(st.sampled_from(groups), min_size=3, max_size=3)))
    seed = draw(st.integers(0, 10**6))
    return make_layout(make_random_plan(f"{placement} 0+3", num_microbatches=2, seed=seed)), edges_of("0-1 1-2 2-3")


@given(case=grouped_layouts(), seed=st.integers(0, 10**6))
def test_rows_of_groups_pass_and_are_checked(case: tuple[Layout, tuple[StageEdge, ...]], seed: int):
    """Tests that what groups can run is lowered without faults, and that no cell of it can be spoiled unnoticed."""
    layout, edges = case
    rows = lower(layout, edges)
    assert faults(rows, layout, edges) == ()
    for change, cell, broken in spoiled(rows, seed):
        assert faults(broken, layout, edges) != (), (change, cell)


def test_a_split_stage_tells_its_own_ranks():
    """Tests that weights go ahead, then what F saved, what W needs and finished gradients, as drawn here."""
    layout = make_layout(make_split_plan("0;0,1;2 3", num_microbatches=1))
    rows = lower(layout, edges_of("0-1"))
    assert layout.devices == ("d0", "d1", "d2", "d3")
    assert drawing(rows) == "\n".join(
        [
            "0SEND_P0>0@1 0F0 0SEND_F0>1@3 0SEND_S0>0@1 0RECV_B0<1@3 0I0 0SEND_X0>0@2 0RECV_G0<0@1 0RECV_G0<0@2",
            "0RECV_P0<0@0 0RECV_S0<0@0 0RECV_B0<1@3 0I0 0SEND_X0>0@2 0SEND_G0>0@0",
            "0RECV_X0<0@0 0RECV_X0<0@1 0W0 0SEND_G0>0@0",
            "1RECV_F0<0@0 1F0 1I0 1SEND_B0>0@0 1SEND_B0>0@1 1W0 1REDUCE_GRAD",
        ]
    )
    assert faults(rows, layout, edges_of("0-1")) == ()


@pytest.mark.parametrize("seed", range(4))
def test_no_cell_of_a_split_stage_is_missing_twice_or_too_early(seed: int):
    """Tests that rows with a cell left out, said twice, or put before what it waits for, are found out."""
    plan = make_split_plan("0;0,1;2 1;2;0 2;;1", num_microbatches=2, seed=seed)
    layout, edges = make_layout(plan), edges_of("0-1 1-2")
    rows = lower(layout, edges)
    assert faults(rows, layout, edges) == ()
    for rank, row in enumerate(rows):
        for place, cell in enumerate(row):
            for changed in ([*row[:place], *row[place + 1 :]], [*row[:place], cell, *row[place:]]):
                assert faults([*rows[:rank], changed, *rows[rank + 1 :]], layout, edges), cell
            if cell.kind not in ("RECV_G", "SEND_P", "F") and not cell.kind.startswith("RECV"):
                early = [cell, *row[:place], *row[place + 1 :]]
                assert place == 0 or faults([*rows[:rank], early, *rows[rank + 1 :]], layout, edges), cell


def make_dealt(*hands: tuple[int, ...]) -> Layout:
    """Two pipelines of two stages; whole microbatches are dealt to them, in two orders."""
    plan = make_random_plan("0/2 1/3", num_microbatches=2, backward="B")
    rows = {
        device: tuple(
            action._replace(microbatch=hands[number // 2][action.microbatch]) for action in plan.schedule[device]
        )
        for number, device in enumerate(("d0", "d1", "d2", "d3"))
    }
    problem = replace(plan.problem, num_microbatches=4)
    return make_layout(replace(plan, problem=problem, schedule=rows, dealing=hands))


def test_dealt_microbatches_stay_in_their_pipelines():
    """Tests that replica k of a stage talks to replica k of the next one, of its own microbatches, as drawn."""
    layout, edges = make_dealt((2, 0), (1, 3)), edges_of("0-1")
    assert [(route.source, route.target, route.used.is_whole) for route in make_routes(layout, edges)] == [
        (0, 1, True),
        (2, 3, True),
    ]
    rows = lower(layout, edges)
    assert drawing(rows[:2]) == (
        "0F2 0SEND_F2>1@1 0F0 0SEND_F0>1@1 0RECV_B2<1@1 0B2 0RECV_B0<1@1 0B0 0REDUCE_GRAD\n"
        "1RECV_F2<0@0 1RECV_F0<0@0 1F2 1B2 1SEND_B2>0@0 1F0 1B0 1REDUCE_GRAD 1SEND_B0>0@0"
    )
    assert not faults(rows, layout, edges)


@pytest.mark.parametrize(
    ("hands", "fault"),
    [
        (((2, 0), (1, 2)), "microbatch 2 is dealt 2 times"),
        (((2, 0), (3,)), "microbatch 1 is dealt 0 times"),
        (((2, 0), (1,)), "rank 2 runs 0F3, which is not its own"),
        (((2, 0, 1, 3),), "stage 0 has 2 replicas, and microbatches are dealt to 1"),
        (((0, 1), (2, 3)), "rank 0 runs 0F2, which is not its own"),
    ],
)
def test_another_dealing_is_found(hands: tuple[tuple[int, ...], ...], fault: str):
    """Tests that rows are held against the dealing: each microbatch once, by its own pipeline."""
    layout, edges = make_dealt((2, 0), (1, 3)), edges_of("0-1")
    assert fault in faults(lower(layout, edges), replace(layout, dealing=hands), edges)


@pytest.mark.parametrize("hand", [(0,), (1, 0), (4, 2, 0, 1, 3)])
def test_rows_that_are_dealt_anew(hand: tuple[int, ...]):
    """Tests that a process makes the rows of its pipeline alone as all ranks would make them together."""
    layout = rebalance(make_dealt((2, 0), (1, 3)))
    edges = edges_of("0-1")
    rest = tuple(sorted(set(range(5)) - set(hand))) or (5,)
    dealing = (rest, hand)
    rows = tuple(make_1f1b(dealing[rank // 2], stage=rank % 2, num_stages=2) for rank in range(4))
    whole = replace(layout, dealing=dealing, rows=rows, num_microbatches=sum(map(len, dealing)))
    expected = lower(whole, edges)
    for rank in (2, 3):
        made = BalancedRows(layout, edges, rank=rank).make(hand)
        assert list(made.cells) == expected[rank]
        assert made.needs == describe_needs(whole, edges, rank=rank)


@pytest.mark.parametrize(
    ("other", "joint", "alike"),
    [
        ("0F0 0F1 0I0 0W0 0I1 0W1", True, True),
        ("0F0 0F1 0I0 0I1 0W0 0W1", True, False),  # W of the first microbatch comes behind I of the second
        ("0F0 0F1 0B0 0I1 0W1", True, False),  # what adds gradients up in B does not in I
        ("0F1 0F0 0I0 0W0 0I1 0W1", False, False),
    ],
)
def test_replicas_come_to_actions_together(other: str, joint: bool, alike: bool):
    """Tests that F and I, or all actions, of replicas that ask each other within them have to be in one order."""
    plan = make_random_plan("0/1", num_microbatches=2)
    words = {"d0": "0F0 0F1 0I0 0W0 0I1 0W1", "d1": other}
    schedule = {device: tuple(map(parse_action, word.split())) for device, word in words.items()}
    layout = make_layout(replace(plan, schedule=schedule))
    for is_possible, more in ((True, {}), (joint, {"joint": {0}}), (alike, {"alike": {0}})):
        if is_possible:
            rows = lower(layout, (), **more)
            assert [" ".join(str(cell) for cell in row if cell.kind in "FIBW") for row in rows] == list(words.values())
        else:
            with pytest.raises(ValueError, match="the ranks wait for each other: rank 0 in 0"):
                lower(layout, (), **more)
