"""Several stages of a device distinguished without marks: a microbatch is followed from message to message.

The n-th message from one rank to another is the n-th that the other got from it. A forward that got none begins a
microbatch; the one that got what it sent runs the next stage, until a forward sends nothing. Backwards name their
forwards.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.importers.unmarked_actions import REMEDY, FoundAction, Post, UnmarkedRank

_Place = tuple[int, int]
"""A rank and which action of its iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Followed:
    """An iteration whose microbatches were followed."""

    actions: Mapping[int, Sequence[tuple[int, int]]]
    """By rank, stage and microbatch of every action, in the order as run."""
    pairs: frozenset[tuple[int, int]]
    """Ranks of which one sends a forward's output to the other."""


def has_chunks(ranks: Mapping[int, UnmarkedRank]) -> bool:
    """Whether some rank's forwards sometimes get an input and sometimes do not, or send to whom they get it from."""
    return any(
        len({bool(each.got) for each in told.iterations[-1] if each.kind == "F"}) > 1
        or len({bool(each.gave) for each in told.iterations[-1] if each.kind == "F"}) > 1
        or (told.before & told.behind) - {-1}
        for told in ranks.values()
        if told.iterations
    )


def follow(ranks: Mapping[int, UnmarkedRank]) -> list[_Followed]:
    """Every iteration's; ValueError with one message where messages do not lead through whole pipelines."""
    counts = {len(told.iterations) for told in ranks.values()}
    source = next(iter(ranks.values())).source
    if len(counts) != 1:
        raise ValueError(f"{source}: ranks have {min(counts)} to {max(counts)} iterations; give whole traces")
    found = [
        _follow_one({rank: told.iterations[number] for rank, told in ranks.items()}, source=source)
        for number in range(counts.pop())
    ]
    stages_by_rank = [{rank: {stage for stage, _ in row} for rank, row in one.actions.items()} for one in found]
    if any(one != stages_by_rank[0] for one in stages_by_rank):
        raise ValueError(f"{source}: messages lead through other stages in one iteration than in the first; {REMEDY}")
    return found


def _follow_one(rows: Mapping[int, Sequence[FoundAction]], *, source: str) -> _Followed:
    behind = _behind(rows, source=source)
    begins = [
        (rank, place)
        for rank, row in rows.items()
        for place, action in enumerate(row)
        if action.kind == "F" and not action.got
    ]
    stages: dict[_Place, tuple[int, int]] = {}
    counts: dict[int, int] = defaultdict(int)
    lengths, led = set[int](), dict[int, set[int]]()
    for begin in begins:
        microbatch = counts[begin[0]]
        counts[begin[0]] += 1
        stage, here = 0, begin
        while True:
            stages[here] = stage, microbatch
            led.setdefault(here[0], set()).add(begin[0])
            if here not in behind:
                break
            stage, here = stage + 1, behind[here]
        lengths.add(stage)
    num_forwards = sum(action.kind == "F" for row in rows.values() for action in row)
    is_shared = any(len(begun) > 1 for begun in led.values())  # as where two stages in a row are on one device
    if is_shared or len(lengths) != 1 or len(stages) != num_forwards or len(set(counts.values())) != 1:
        raise ValueError(
            f"{source}: followed from message to message, {len(begins)} microbatches run through {len(stages)} of "
            f"{num_forwards} forwards{', from both ends of a pipeline' if is_shared else ''}; give the traces of all "
            f"ranks, profiled with record_shapes=True, or {REMEDY}"
        )
    forwards = {rank: {a.microbatch: n for n, a in enumerate(row) if a.kind == "F"} for rank, row in rows.items()}
    return _Followed(
        actions={
            rank: [stages[rank, forwards[rank][action.microbatch]] for action in row] for rank, row in rows.items()
        },
        pairs=frozenset((a, b) for (a, _), (b, _) in behind.items()),
    )


def _behind(rows: Mapping[int, Sequence[FoundAction]], *, source: str) -> dict[_Place, _Place]:
    """By forward that sends something the one that gets it."""
    sent, got = _posts(rows, is_send=True), _posts(rows, is_send=False)
    behind: dict[_Place, _Place] = {}
    for a, b in sorted(sent.keys() | {(b, a) for a, b in got}):
        there, here = sent.get((a, b), []), got.get((b, a), [])
        if len(there) != len(here):
            raise ValueError(
                f"{source}: rank {a} sends {len(there)} messages to rank {b} in an iteration, which gets {len(here)} "
                f"from it; without marks, several stages of a device cannot be distinguished there: {REMEDY}"
            )
        for one, other in zip(there, here, strict=True):
            are_forwards = rows[a][one].kind == "F", rows[b][other].kind == "F"
            if all(are_forwards) and (a, one) not in behind:
                behind[a, one] = b, other
            elif any(are_forwards):
                raise ValueError(f"{source}: messages of ranks {a} and {b} do not follow their actions; {REMEDY}")
    if len(set(behind.values())) != len(behind):
        raise ValueError(f"{source}: a forward gets several messages; {REMEDY}")
    return behind


def _posts(rows: Mapping[int, Sequence[FoundAction]], *, is_send: bool) -> dict[tuple[int, int], list[int]]:
    """By rank and peer the actions of messages, in their order."""
    found: dict[tuple[int, int], list[tuple[Post, int]]] = defaultdict(list)
    for rank, row in rows.items():
        for place, action in enumerate(row):
            for post in action.gave if is_send else action.got:
                found[rank, post.peer].append((post, place))
    return {key: [place for _, place in sorted(posts)] for key, posts in found.items()}
