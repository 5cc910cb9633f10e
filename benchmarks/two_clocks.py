"""The actions of one device on two clocks, its host's and its card's, as a run's events tell them; no solver needed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.judge.host_pace import MOST_AHEAD
from planner.judge.reading import Reading


class ClockedAction(NamedTuple):
    """What an action takes."""

    card: int
    host: int
    cross: int
    """From when the host begins to ask to when the card has ended, at least."""


class Span(NamedTuple):
    """When an action ran between its events: the first is recorded once its host has come to it."""

    begin: int
    end: int


def clocked_actions(reading: Reading) -> dict[str, ClockedAction]:
    """By stage and kind, as `0F`; the stages of the plan have one replica each."""
    found = {}
    for stage, durations in enumerate(reading.own_durations):
        paces = reading.own_paces[stage] if reading.paces else ((0, 0),) * len(durations)
        for kind, card, (host, cross) in zip("FIWB", durations, paces, strict=True):
            found[f"{stage}{kind}"] = ClockedAction(card, host, cross)
    return found


def play_alone(order: Sequence[str], actions: Mapping[str, ClockedAction]) -> list[Span]:
    """The spans of the actions of a device that waits for no other."""
    host, card = 0, 0
    ends, spans = [0] * (MOST_AHEAD + 1), list[Span]()
    for name in order:
        action = actions[name]
        host = max(host, ends[-MOST_AHEAD - 1])
        begin, card = max(host, card), max(card + action.card, host + action.cross)
        host += action.host
        ends.append(card)
        spans.append(Span(begin, card))
    return spans
