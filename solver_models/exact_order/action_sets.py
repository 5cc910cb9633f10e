"""Sets of the actions of a device, and which of them come before and after each other; compiled.

A table of sets has a bit per action: [X] in one word each, where these suffice, or [X, W] in several. Either is a type
of its own to the compiler, so that one word costs no loop over words.
"""

from solver_models.compiled import int64, kernel
from solver_models.instance import Integers

ONE_LIMB = 62
"""Most actions of a set in one word; of several, each has 64."""


@kernel
def num_limbs(sets: Integers) -> int:
    """How many parts of 64 bits a set has; one where the table is [X]."""
    return 1 if sets.ndim == 1 else sets.shape[1]


@kernel
def limb_of(sets: Integers, a: int, w: int) -> int:
    """Part w, 64 bits, of set a."""
    if sets.ndim == 1:
        return int(sets[a])
    return int(sets[a, w])


@kernel
def has(sets: Integers, a: int, b: int) -> bool:
    """Whether action b is in set a, of a table [X] or [X, W]."""
    if sets.ndim == 1:
        return bool(sets[a] >> b & 1)
    return bool(sets[a, b >> 6] >> (b & 63) & 1)


@kernel
def is_known(prior: Integers, after: Integers, d: int, a: int, b: int) -> bool:
    """Whether it is known which of two actions of device d comes first; sets of all devices."""
    if prior.ndim == 2:
        return bool((prior[d, a] | after[d, a]) >> b & 1)
    return bool((prior[d, a, b >> 6] | after[d, a, b >> 6]) >> (b & 63) & 1)


@kernel
def put(sets: Integers, a: int, b: int) -> None:
    """Put action b into set a, of a table [X] or [X, W]."""
    if sets.ndim == 1:
        sets[a] |= int64(1) << b
    else:
        sets[a, b >> 6] |= int64(1) << (b & 63)


@kernel
def num_common(sets: Integers, a: int, others: Integers, b: int) -> int:
    """How many actions are both in set a and in set b of others."""
    count = int64(0)
    for w in range(num_limbs(sets)):
        count += _num_bits(limb_of(sets, a, w) & limb_of(others, b, w))
    return count


@kernel
def unknown(prior: Integers, after: Integers, count: int, a: int, w: int) -> int:
    """Part w of the actions after a by number, of `count`, of which it is not known whether they come before a."""
    if prior.ndim == 1:
        left: int = ((int64(1) << count) - 1) & ~(prior[a] | after[a] | ((int64(2) << a) - 1))
        return left
    first, last = max(a + 1 - (w << 6), 0), min(count - (w << 6), 64)
    if first >= last:
        return int64(0)
    limb: int = ~(prior[a, w] | after[a, w]) & (int64(-1) << first) & ~(int64(-2) << (last - 1))
    return limb


@kernel
def sum_of(sets: Integers) -> int:
    """A number that grows with all sets of a table: their sum, or of several words, whose sums wrap, the bits set."""
    if sets.ndim == 1:
        total: int = sets.sum()
        return total
    count = int64(0)
    for a in range(sets.shape[0]):
        count += num_common(sets, a, sets, a)
    return count


@kernel
def _num_bits(bits: int) -> int:
    """How many of 64 bits are set."""
    bits = bits - (bits >> 1 & 0x5555555555555555)
    bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333)
    bits = bits + (bits >> 4) & 0x0F0F0F0F0F0F0F0F
    bits += bits >> 8
    bits += bits >> 16
    bits += bits >> 32
    return bits & 0x7F


@kernel
def put_before(prior: Integers, after: Integers, count: int, a: int, b: int) -> bool:
    """Let action a of a device come before b, with all that comes before a or after b; False if that is a circle."""
    if has(after, b, a) or a == b:
        return False
    if prior.ndim == 1:
        first, second = prior[a] | (int64(1) << a), after[b] | (int64(1) << b)
        for x in range(count):
            if first >> x & 1:
                after[x] |= second
            if second >> x & 1:
                prior[x] |= first
        return True
    for x in range(count):
        if x == a or has(prior, a, x):
            after[x] |= after[b]
            put(after, x, b)
        if x == b or has(after, b, x):
            prior[x] |= prior[a]
            put(prior, x, a)
    return True
