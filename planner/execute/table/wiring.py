"""Which tensors enter and leave every stage, and which stages therefore talk to each other.

A tensor that skips stages goes straight to those that take it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

BATCH = ""
"""The producer of what the data loader gives; stands where a layer's name would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWiring:
    """The values of one stage, each named after the layer that makes it."""

    layers: tuple[str, ...]
    """The layers in the order in which they run."""
    takes: Mapping[str, tuple[str, ...]]
    """Per layer the values that it is called with."""
    arrives: tuple[str, ...]
    """Values that come from other stages, or from the data loader."""
    leaves: tuple[str, ...]
    """Values that go to other stages, or to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """An edge between stages: producer, consumer, and positions of the tensors on either side."""

    producer: int
    """Number of the stage that gives."""
    consumer: int
    """Number of the stage that takes; greater."""
    values: tuple[str, ...]
    """What crosses, in the order in which the consumer takes it."""


def make_wirings(
    stages: Sequence[Sequence[str]], layers: Sequence[str], *, inputs: Mapping[str, tuple[str, ...]]
) -> tuple[StageWiring, ...]:
    """Wire the layers of a model, given in topological order, as cut into `stages`.

    `inputs`: per layer the layers whose output it takes; one that is not named takes the layer before it, the first
    one the batch. Raises ValueError if the plan is one for other layers, or if a stage needs a later one.
    """
    _require_same_layers(stages, layers)
    takes = _takes(layers, inputs)
    place = {name: number for number, stage in enumerate(stages) for name in stage} | {BATCH: 0}
    for name, sources in takes.items():
        for source in sources:
            if place[source] > place[name]:
                raise ValueError(
                    f"layer {name!r} of stage {place[name]} takes {source!r} from stage {place[source]}; plan from a "
                    "profile of this model"
                )
    _require_use(layers, {layers[-1]}.union(*takes.values()))
    order = {name: number for number, name in enumerate([BATCH, *layers])}
    crossing = _find_crossing(stages, takes, place=place)
    return tuple(
        StageWiring(
            layers=tuple(sorted(stage, key=order.__getitem__)),
            takes={name: takes[name] for name in stage},
            arrives=tuple(sorted(arrives, key=order.__getitem__)),
            leaves=tuple(sorted(leaves | ({layers[-1]} & set(stage)), key=order.__getitem__)),
        )
        for stage, (arrives, leaves) in zip(stages, crossing, strict=True)
    )


def _find_crossing(
    stages: Sequence[Sequence[str]], takes: Mapping[str, tuple[str, ...]], *, place: Mapping[str, int]
) -> list[tuple[set[str], set[str]]]:
    arrives = [
        {source for name in stage for source in takes[name] if source == BATCH or place[source] != number}
        for number, stage in enumerate(stages)
    ]
    wanted = set().union(*arrives)
    return [(values, wanted & set(stage)) for values, stage in zip(arrives, stages, strict=True)]


def find_edges(wirings: Sequence[StageWiring]) -> tuple[StageEdge, ...]:
    """Which stage gives which what; the batch comes from none."""
    makers = {name: number for number, wiring in enumerate(wirings) for name in wiring.layers}
    values: dict[tuple[int, int], list[str]] = {}
    for consumer, wiring in enumerate(wirings):
        for name in wiring.arrives:
            if name != BATCH:
                values.setdefault((makers[name], consumer), []).append(name)
    return tuple(
        StageEdge(producer=producer, consumer=consumer, values=tuple(names))
        for (producer, consumer), names in sorted(values.items())
    )


def _takes(layers: Sequence[str], inputs: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    takes, before = {}, BATCH
    for name in layers:
        takes[name] = inputs.get(name, (before,))
        before = name
    known = {BATCH}
    for name, sources in takes.items():
        for source in sources:
            if source not in known:
                raise ValueError(f"layer {name!r} takes {source!r}, which is not an earlier layer; correct `inputs`")
        known.add(name)
    if unknown := set(inputs) - set(takes):
        raise ValueError(f"`inputs` names {min(unknown)!r}, which is not a layer; correct `inputs`")
    return takes


def _require_same_layers(stages: Sequence[Sequence[str]], layers: Sequence[str]) -> None:
    planned = [name for stage in stages for name in stage]
    missing, unknown = set(layers) - set(planned), set(planned) - set(layers)
    if missing or unknown or len(planned) != len(layers):
        lacks = f"{len(missing)} of its layers are not in the plan (first: {min(missing)!r})" if missing else ""
        extra = f"{len(unknown)} layers of the plan are not in it (first: {min(unknown)!r})" if unknown else ""
        raise ValueError(
            f"the plan is for another model: it has {len(planned)} layers and the model {len(layers)}; "
            f"{'; '.join(filter(None, [lacks, extra])) or 'a layer occurs twice'}; plan from a profile of this model"
        )


def _require_use(layers: Sequence[str], used: Collection[str]) -> None:
    for name in layers:
        if name not in used:
            raise ValueError(
                f"the output of layer {name!r} is unused, but only the last layer feeds the loss; correct `inputs`"
            )
