"""Whether all processes are about to run the same thing on the devices that the plan means."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one process tells the others before the first iteration."""

    rank: int
    host: str
    """Host name of the process."""
    accelerator: int | None
    """Which accelerator of its host it drives; None: the processor."""
    memory_bytes: int
    """Memory of its accelerator, or of its host."""
    same: Mapping[str, str]
    """Whatever has to be the same everywhere, by what it is called."""
    error: str = ""
    """Why it cannot run, if it cannot."""


def find_disagreements(
    facts: Sequence[Facts], *, devices: Sequence[str], peak_bytes: Mapping[str, int]
) -> tuple[str, ...]:
    """What keeps the processes from running together, a sentence each; the same on every process.

    `devices`: the device of every rank; `peak_bytes`: what the plan holds at most, per device (may be empty).
    """
    if errors := [fact for fact in facts if fact.error]:
        return _errors(errors, devices, num_ranks=len(facts))
    return (
        *_differences(facts, devices),
        *_shared_accelerators(facts, devices),
        *_lack_of_memory(facts, devices, peak_bytes=peak_bytes),
    )


def _errors(failed: Sequence[Facts], devices: Sequence[str], *, num_ranks: int) -> tuple[str, ...]:
    """What every rank says alike is said once."""
    texts = Counter(fact.error for fact in failed)
    if len(texts) == 1 and len(failed) == num_ranks:
        return tuple(texts)
    return tuple(f"rank {fact.rank} ({devices[fact.rank]}): {fact.error}" for fact in failed)


def _differences(facts: Sequence[Facts], devices: Sequence[str]) -> tuple[str, ...]:
    found = []
    for what, value in facts[0].same.items():
        for fact in facts[1:]:
            if fact.same.get(what) != value:
                found.append(
                    f"rank {fact.rank} ({devices[fact.rank]}) has another {what} than rank 0 ({devices[0]}): "
                    f"{fact.same.get(what, 'none')[:40]} instead of {value[:40]}"
                )
                break
    return tuple(found)


def _shared_accelerators(facts: Sequence[Facts], devices: Sequence[str]) -> tuple[str, ...]:
    holders = defaultdict(list)
    for fact in facts:
        if fact.accelerator is not None:
            holders[fact.host, fact.accelerator].append(fact.rank)
    return tuple(
        f"accelerator {index} of host {host!r} is driven by ranks {', '.join(f'{r} ({devices[r]})' for r in ranks)}; "
        "give each its own"
        for (host, index), ranks in holders.items()
        if len(ranks) > 1
    )


def _lack_of_memory(
    facts: Sequence[Facts], devices: Sequence[str], *, peak_bytes: Mapping[str, int]
) -> tuple[str, ...]:
    """An accelerator holds its own rank, a host without accelerators all of its ranks together."""
    needs: dict[tuple[str, int | None], int] = defaultdict(int)
    holds: dict[tuple[str, int | None], tuple[int, list[str]]] = {}
    for fact in facts:
        place = fact.host, fact.accelerator
        needs[place] += peak_bytes.get(devices[fact.rank], 0)
        holds.setdefault(place, (fact.memory_bytes, []))[1].append(devices[fact.rank])
    return tuple(
        f"the plan holds {needs[place]:,} bytes on {', '.join(names)}, but {_place(*place)} has {has:,}; "
        "plan for the memory that is there"
        for place, (has, names) in holds.items()
        if needs[place] > has
    )


def _place(host: str, accelerator: int | None) -> str:
    return f"host {host!r}" if accelerator is None else f"accelerator {accelerator} of host {host!r}"
