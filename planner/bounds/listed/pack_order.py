"""How long a pipeline under 1F1B waits for its packs at least, by how much work is in packs shorter than a given one.

Let n stages stand behind the first one, and let f, b be what a pack takes forward and backward on the first stage. For
packs i <= j, follow the first stage until the forward of i, that on its way up, the last stage until the backward of
j, that on its way down, and the first stage from then on. On the path lies all work of the pipeline (counted on either
stage) but the n backwards before i and the n forwards behind j, and on top both ways. With up f <= the forwards and
down f <= the backwards of a pack on all stages but the last one, and b <= hidden f:

    idle >= A(i) + B(j),  A(i) = up f(i) - hidden (f(i - 1) + ... + f(i - n)),  B(j) = down f(j) - (f(j + 1) + ...)

So idle = a + c with A <= a until some pack and B <= c from it on: let it be the first one that is not shorter than z.
For t >= 0, add t times A <= a of this one to as many times A <= a of those before it that none of them has a factor
above one. So what is before it has forwards of at least t up z - s a, where s sums the multiples (`_multiples`). Behind
the last pack that is not shorter than z it is the same with B and c. No pack is shorter than the shortest sequence, so
a >= up f and c >= down f of that one. Together:

    s idle + (forwards of packs shorter than z) >= P(z, s)

and between two choices of t a part of each is a choice, too.

Of a pack not shorter than z let the first one part the pipeline instead: of every lower level a pack is no later before
it, and one no earlier behind it. So the same a and c hold for all of these levels (`least_beside`).

In a pipeline of K packs, no pack k from the left has f above a l(k), no pack k from the right f above c e(k), with the
sequences of which each term makes these an equation. So all forwards are at most idle x the larger of l(1) + ... +
l(p) and e(1) + ... + e(K - p), for whatever p (`forwards_per_idle`).
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy

Reals = numpy.ndarray[Any, numpy.dtype[numpy.float64]]

_STEEPNESS = 24
_LONGEST = 40
"""Multiples beyond so many times n would be no bound worth having."""


class PackFactors(NamedTuple):
    """PackFactors of a pack's forward on the first stage."""

    up: float
    """Its forwards on all stages but the last one take so much of it at least."""
    down: float
    """Its backwards."""
    hidden: float
    """Its backward on the first stage takes so much at most."""
    others: int
    """Stages behind the first one."""


def forwards_per_idle(count: int, factors: PackFactors) -> float:
    """Forwards that `count` packs have at most, as a multiple of how long the pipeline is idle."""
    left, right = (
        [0.0, *accumulate(_growth(count, per=per, factor=factor, others=factors.others))]
        for per, factor in ((factors.hidden, factors.up), (1.0, factors.down))
    )
    return min(max(left[place], right[count - place]) for place in range(count + 1))


def _growth(count: int, *, per: float, factor: float, others: int) -> list[float]:
    found: list[float] = []
    for _ in range(count):
        found.append((1 + per * sum(found[-others:])) / factor)
    return found


def least_sums(longer: Sequence[float], *, shortest: float, factors: PackFactors, steps: int) -> tuple[Reals, Reals]:
    """s, and P(z, s) for every z of `longer`: [X] and [Z, X]."""
    both = [
        (factor, _multiples(per=per, factor=factor, others=factors.others))
        for per, factor in ((factors.hidden, factors.up), (1.0, factors.down))
    ]
    every = numpy.unique(numpy.concatenate([pairs[1:, 1] for _, pairs in both]))
    sums = every[numpy.unique(numpy.linspace(0, len(every) - 1, steps).astype(int))]
    least = numpy.zeros((len(longer), len(sums)))
    for factor, pairs in both:
        between = factor * numpy.interp(sums, pairs[:, 1], pairs[:, 0])
        own = numpy.multiply.outer(numpy.asarray(longer, dtype=float), factor * pairs[:, 0])[:, None, :]
        rest = (sums[:, None] - pairs[:, 1]) * factor * shortest
        found = numpy.where(rest >= 0, own + rest, -numpy.inf).max(axis=2)
        least += numpy.maximum(found, numpy.multiply.outer(longer, between))
    return sums, least


def least_beside(longer: Reals, idle: Reals, *, per: float, factor: float, others: int) -> Reals:
    """[Z, X] forwards of packs shorter than each z on one side of it, for each part of the idle time."""
    pairs = _multiples(per=per, factor=factor, others=others).tolist()
    found = [most * factor * longer[:, None] - total * idle for most, total in pairs]
    return numpy.asarray(numpy.max(found, axis=0))


@lru_cache(maxsize=64)
def _multiples(*, per: float, factor: float, others: int) -> Reals:
    """[Y, 2] t, and the sum of t and of the multiples of the packs beyond, each as small as allowed."""
    found = [(0.0, 0.0), (1 / per, 1 / per)]
    for above in numpy.geomspace(1e-3, 8, _STEEPNESS).tolist():
        several = [(1 + above) / per]
        while len(several) <= others or any(several[-others:]):
            several.append(max(0.0, (per * sum(several[-others:]) - 1) / factor))
            if len(several) > _LONGEST * others:
                return numpy.array(found)
        found.append((several[0], sum(several)))
    return numpy.array(found)
