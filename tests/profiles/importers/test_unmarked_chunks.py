"""Several stages of a device in traces without marks: microbatches are followed from message to message."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner.fidelity.advice import advise
from planner.fidelity.run_replay import replay_ns
from profiles.importers.rank_steps import read_run_steps
from profiles.importers.straggler import Key, RunStep
from profiles.importers.trace_summary import summarise_traces
from profiles.importers.unmarked_actions import FoundAction, Post, UnmarkedRank
from profiles.importers.unmarked_chunks import follow, has_chunks
from tests.long_runs import examples
from tests.planner.fidelity.chunked_runs import interleaved, uneven
from tests.profiles.importers.test_unmarked_actions import Events, event, message

STEP_US = 10**6
"""From one iteration to the next."""


def unmarked(step: RunStep, *, devices: int) -> dict[int, Events]:
    """By rank what torch's profiler has of three such iterations: operators by sequence numbers, and gloo's messages.

    A message is posted a microsecond before the action that waits for it, or half of one before the end of its own.
    """
    last = max(stage for _, stage in step.of_stages())
    events: dict[int, Events] = {place + devices * pipeline: [] for pipeline, place in step.actions}
    for number in range(3):
        now = 10.0 + STEP_US * number
        for (pipeline, place), row in step.actions.items():
            rank, found = devices * pipeline + place, events[devices * pipeline + place]
            found += event(f"ProfilerStep#{number}", now - 5, STEP_US - 10, category="user_annotation")
            forwards = [(one.stage, one.microbatch) for one in row if one.kind == "F"]
            for one in row:
                start, length = now + one.start_ns / 1e3, one.duration_ns / 1e3
                first = 10 * (len(forwards) * number + forwards.index((one.stage, one.microbatch)))
                is_forward = one.kind == "F"
                found += operators(one.kind, start, length=length, first=first)
                if one.kind == "W":
                    continue
                before, behind = (one.stage - 1, one.stage + 1)[:: 1 if is_forward else -1]
                if 0 <= before <= last:
                    found += message("R", start - 1, rank - place + before % devices)
                if 0 <= behind <= last:
                    found += message("S", start + length - 0.5, rank - place + behind % devices)
    return {rank: [on_own_thread(each) for each in row] for rank, row in events.items()}


def on_own_thread(one: dict[str, Any]) -> dict[str, Any]:
    """Messages beside what computes: what runs inside another of its thread counts for nothing."""
    return one | {"tid": 3 + (one["name"] == "c10d::send")} if "c10d" in one["name"] else one


def operators(kind: str, start: float, *, length: float, first: int) -> Events:
    """Two of a forward, or of its gradients."""
    names = ("aten::linear", "aten::relu")
    if kind != "F":
        names = ("autograd::engine::evaluate_function: R", "autograd::engine::evaluate_function: A")
    numbers = (first, first + 3) if kind == "F" else (first + 3, first)
    told: dict[str, Any] = {"Fwd thread id": int(kind != "F")}
    half = length / 2
    return [
        one
        for place, (name, number) in enumerate(zip(names, numbers, strict=True))
        for one in event(
            name, start + place * half, half, tid=1 if kind == "F" else 2, **{"Sequence number": number}, **told
        )
    ]


def write(folder: Path, ranks: dict[int, Events]) -> Path:
    for rank, events in ranks.items():
        text = json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events})
        (folder / f"{rank}.json").write_text(text)
    return folder


def ran(step: RunStep) -> dict[tuple[int, int], list[tuple[Key, int]]]:
    """By seat what was run, and how long each took."""
    return {
        seat: [((seat[0], one.stage, one.kind, one.microbatch), one.duration_ns) for one in row]
        for seat, row in step.actions.items()
    }


@pytest.mark.parametrize("seed", range(examples(6)))
def test_chunks_are_told_without_marks(tmp_path: Path, seed: int):
    """Tests that interleaved pipelines without marks are read as they ran, to the microsecond, and get all remedies."""
    rng = Random(seed)
    devices, is_split, pipelines = rng.choice((2, 3)), rng.random() < 0.5, rng.choice((1, 2))
    count = 2 * devices
    times = uneven(rng, stages=2 * devices, microbatches=count, pipelines=pipelines, is_split=is_split)
    step = interleaved(
        lambda key: 1000 * round(times(key) / 100),
        devices=devices,
        microbatches=count,
        pipelines=pipelines,
        is_split=is_split,
        lag_ns=3000,
    )
    steps = read_run_steps([write(tmp_path, unmarked(step, devices=devices))])
    assert len(steps) == 2
    for mine in steps:
        assert ran(mine) == ran(step)
        assert replay_ns(mine) == pytest.approx(replay_ns(step), rel=0.005)
    remedies = [each.what.split(" (")[0].split(":")[0] for each in advise(steps, blocks_per_stage=2).remedies]
    assert remedies[:2] == ["another order within every pipeline", "whole microbatches rebalanced"]
    assert ("placed again" in remedies) == (pipelines == 2)
    assert summarise_traces([tmp_path]).num_microbatches == count


def lost_send(ranks: dict[int, Events]) -> dict[int, Events]:
    sends = [each for each in ranks[0] if each["name"] == "c10d::send"]
    return {**ranks, 0: [each for each in ranks[0] if each is not sends[-1]]}


def nameless(ranks: dict[int, Events]) -> dict[int, Events]:
    return {
        rank: [each | {"args": {k: v for k, v in each["args"].items() if k != "Concrete Inputs"}} for each in row]
        for rank, row in ranks.items()
    }


def without_last_rank(ranks: dict[int, Events]) -> dict[int, Events]:
    return {rank: row for rank, row in ranks.items() if rank < max(ranks)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lost_send, "rank 0 sends 11 messages to rank 1 in an iteration, which gets 12 from it"),
        (nameless, "in an iteration, which gets"),
        (without_last_rank, "rank 0 sends 12 messages to rank 1 in an iteration, which gets 0 from it"),
    ],
)
def test_messages_that_lead_nowhere_are_refused(
    tmp_path: Path, change: Callable[[dict[int, Events]], dict[int, Events]], said: str
):
    """Tests that a lost message, messages without peers and a missing rank end in one message with its remedy."""
    step = interleaved(lambda key: 5000 if key[2] == "F" else 9000, devices=2, lag_ns=3000)
    with pytest.raises(ValueError, match=said) as caught:
        read_run_steps([write(tmp_path, change(unmarked(step, devices=2)))])
    assert "record_function" in str(caught.value)


def of_rank(text: str, *, peer: int) -> UnmarkedRank:
    """One iteration: forwards and backwards by the rank's own forwards, `<` where they got something, `>` gave."""
    actions: list[FoundAction] = []
    posts = iter(range(100))
    for number, word in enumerate(text.split()):
        kind, which = word.strip("<>")
        actions.append(
            FoundAction(
                kind=kind,
                microbatch=int(which),
                start_ns=10 * number,
                end_ns=10 * number + 5,
                got=(Post(next(posts), peer),) if word[0] == "<" else (),
                gave=(Post(next(posts), peer),) if word[-1] == ">" else (),
            )
        )
    return UnmarkedRank(source="t.json", iterations=(tuple(actions),), before=frozenset(), behind=frozenset())


def test_microbatches_are_followed():
    """Tests that of two chunks on two ranks actions get stages and microbatches, backwards those of their forwards."""
    ranks = {
        0: of_rank("F0> F1> <F2> <F3> <B2> <B0 <B3> <B1", peer=1),
        1: of_rank("<F0> <F1> <F2 B2> <F3 B3> <B0> <B1>", peer=0),
    }
    assert has_chunks(ranks)
    (found,) = follow(ranks)
    assert list(found.actions[0]) == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 0), (0, 0), (2, 1), (0, 1)]
    assert list(found.actions[1]) == [(1, 0), (1, 1), (3, 0), (3, 0), (3, 1), (3, 1), (1, 0), (1, 1)]
    assert found.pairs == {(0, 1), (1, 0)}


def test_two_stages_in_a_row_are_refused():
    """Tests that a V, whose middle no message tells, is refused rather than taken for two pipelines."""
    ranks = {0: of_rank("F0> <F1 B1> <B0", peer=1), 1: of_rank("<F0 F1> <B1 B0>", peer=0)}
    assert has_chunks(ranks)
    with pytest.raises(ValueError, match=r"2 microbatches run through 4 of 4 forwards, from both ends of a pipeline"):
        follow(ranks)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("F0> <B0", "<F0> <F1> B1>"), "rank 0 sends 1 messages to rank 1 in an iteration, which gets 2 from it"),
        (("F0> <F1 B1> <B0", "<B0> <F0>"), "messages of ranks 0 and 1 do not follow their actions"),
    ],
)
def test_messages_beside_their_actions_are_refused(rows: tuple[str, str], said: str):
    """Tests that messages of which one end is a forward's and the other a backward's are refused."""
    with pytest.raises(ValueError, match=said):
        follow({rank: of_rank(row, peer=1 - rank) for rank, row in enumerate(rows)})
