"""Which tensors enter and leave every stage of a chain of stages.

Torch lets a stage talk to the next one only, so a tensor that is needed further on is handed on by the stages between.
"""

from collections.abc import Mapping, Sequence
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
    """Values that come from the stage before."""
    leaves: tuple[str, ...]
    """Values that go to the stage after, or to the loss."""


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
    last_use = {BATCH: 0, layers[-1]: len(stages)}
    for name, sources in takes.items():
        for source in sources:
            if place[source] > place[name]:
                raise ValueError(
                    f"layer {name!r} of stage {place[name]} takes {source!r}, which is made in stage {place[source]}; "
                    "the plan is for a model that is wired otherwise"
                )
            last_use[source] = max(last_use.get(source, 0), place[name])
    _require_use(layers, last_use)
    order = {name: number for number, name in enumerate([BATCH, *layers])}
    crossing = [
        tuple(sorted((name for name in last_use if place[name] < cut <= last_use[name]), key=order.__getitem__))
        for cut in range(len(stages) + 1)
    ]
    return tuple(
        StageWiring(
            layers=tuple(sorted(stage, key=order.__getitem__)),
            takes={name: takes[name] for name in stage},
            arrives=crossing[number] if number else (BATCH,),
            leaves=crossing[number + 1],
        )
        for number, stage in enumerate(stages)
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
                raise ValueError(f"layer {name!r} takes {source!r}, which is no earlier layer; mend `inputs`")
        known.add(name)
    if unknown := set(inputs) - set(takes):
        raise ValueError(f"`inputs` names {min(unknown)!r}, which is no layer; mend `inputs`")
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


def _require_use(layers: Sequence[str], last_use: Mapping[str, int]) -> None:
    for name in layers:
        if name not in last_use:
            raise ValueError(f"nothing takes the output of layer {name!r}, and only the last layer goes to the loss")
