"""A host that asks and a card that works: what the layers of a stage amount to, as max-plus matrices.

With H the time at which the host is free and D that at which the card is, an action takes (H, D) to

    H' = H + host                              the host asks for its kernels
    D' = max(D + card, H + cross)              the card works in turn, and not before it is asked

which is a 2 x 2 matrix in max-plus algebra. Layers in a row are the product of their matrices: hosts and cards add up,
and `cross` is the longest way that changes from the host to the card once.
"""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple


class Asking(NamedTuple):
    """What the host takes to ask for one action of a layer."""

    host: int
    first: int
    """Of it, until it has asked for the first kernel."""
    last: int
    """What the card takes for the last kernel."""


class Matrix(NamedTuple):
    """What an action makes of the times at which the host and the card are free."""

    host: int
    card: int
    cross: int
    """From when the host begins to when the card has ended, at least."""


class ActionClocks(NamedTuple):
    """An action of a stage on one replica; its card is what `StageCost` has for it."""

    host_ns: int
    cross_ns: int


NOTHING = Matrix(0, 0, 0)


def matrix_of(asking: Asking, card: int) -> Matrix:
    """The card begins once the first kernel has been asked for, and ends one last kernel after all of them have."""
    return Matrix(asking.host, card, max(asking.first + card, asking.host + min(asking.last, card)))


def product(matrices: Iterable[Matrix]) -> Matrix:
    """Actions in a row, the first one first."""
    return reduce(_then, matrices, NOTHING)


def _then(first: Matrix, second: Matrix) -> Matrix:
    cross = max(first.cross + second.card, first.host + second.cross)
    return Matrix(first.host + second.host, first.card + second.card, cross)
