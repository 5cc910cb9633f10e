"""What layers cost on a group of devices that runs them together: the plans to time, and what their times say.

The real executor runs them, tensor-parallel, so that the group's own messages are part of F and I. Every layer is a
stage of its own first, and then all are one: one autograd pass through many layers costs less than one pass for each,
and the layers' times are scaled, kind by kind, to what they took in one stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from planner.actions import Action
from planner.fidelity.expected import expected
from planner.plan import Plan, ProblemReference, Stage
from profiles.model_profile import Layer, LayerCost, ModelProfile, WidthBytes

Times = Mapping[str, Sequence[int]]
"""Nanoseconds of all actions of a stage and kind, such as `0F`."""


def make_group_plan(profile: ModelProfile, width: int, *, num_microbatches: int, is_fine: bool) -> Plan:
    """Forwards and backwards in turn, every other backward split, on one group; `is_fine`: a stage per layer."""
    names = profile.topological_order
    layers = [(name,) for name in names] if is_fine else [names]
    group = tuple(f"d{number}" for number in range(width))
    trained = [profile.trains(part) for part in layers]
    reference = ProblemReference(
        profile=profile.name, profile_sha256="", cluster_sha256="", num_microbatches=num_microbatches, options={}
    )
    return Plan(
        problem=reference,
        stages=tuple(Stage(layers=tuple(part), replicas=(group,)) for part in layers),
        schedule=dict.fromkeys(group, tuple(_order(trained, num_microbatches))),
    )


def _order(trained: Sequence[bool], num_microbatches: int) -> Iterator[Action]:
    for microbatch in range(num_microbatches):
        yield from (Action("F", stage, microbatch) for stage in range(len(trained)))
        for stage in reversed(range(len(trained))):
            if trained[stage] and microbatch % 2:
                yield Action("B", stage, microbatch)
                continue
            yield Action("I", stage, microbatch)
            if trained[stage]:
                yield Action("W", stage, microbatch)


def with_group_costs(
    profile: ModelProfile,
    width: int,
    *,
    device_type: str,
    fine: Mapping[int, Times],
    whole: Mapping[int, Times],
    held: Mapping[str, tuple[int, int]],
) -> ModelProfile:
    """The profile with costs and bytes at a width; what it said of that width before is forgotten.

    `fine`, `whole`: per microbatch size the times of layers, and of all in one stage; `held`: per layer the bytes of
    trained weights on a device of the group, and of all of them.
    """
    layers = []
    scales = {size: _scales(fine[size], whole[size]) for size in fine}
    for number, name in enumerate(profile.topological_order):
        layer = profile.by_name[name]
        costs = [cost for cost in layer.costs if (cost.device_type, cost.width) != (device_type, width)]
        for size, times in fine.items():
            own = {kind: expected(times.get(f"{number}{kind}", ())) * scales[size].get(kind, 1.0) for kind in "FIWB"}
            stated = None if size == profile.microbatch_size else size
            costs.append(_cost(layer, own, device_type=device_type, width=width, size=stated))
        wider = [entry for entry in layer.wider if entry.width != width]
        entry = _bytes(layer, width, part=held[name])
        layers.append(replace(layer, costs=tuple(costs), wider=(*wider, entry)))
    return replace(profile, layers=tuple(layers))


def _scales(fine: Times, whole: Times) -> dict[str, float]:
    """By kind what all layers took in one stage, over what they took each in its own."""
    found = {}
    for kind in "FIWB":
        parts = sum(expected(taken) for key, taken in fine.items() if key.endswith(kind) and taken)
        if parts and whole.get(f"0{kind}"):
            found[kind] = expected(whole[f"0{kind}"]) / parts
    return found


def _cost(layer: Layer, times: Mapping[str, float], *, device_type: str, width: int, size: int | None) -> LayerCost:
    taken = {kind: round(time) for kind, time in times.items()}
    split = taken["I"] + taken["W"]
    whole = min(taken["B"] or split, split)
    has_split = layer.is_trainable and layer.splittable
    return LayerCost(
        device_type=device_type,
        width=width,
        microbatch_size=size,
        forward_ns=taken["F"],
        input_grad_ns=taken["I"] if has_split else whole,
        weight_grad_ns=taken["W"] if has_split else 0,
        backward_ns=whole if has_split and whole < split else None,
        recompute_ns=taken["F"] if any(cost.recompute_ns for cost in layer.costs) else 0,
    )


def _bytes(layer: Layer, width: int, *, part: tuple[int, int]) -> WidthBytes:
    """State in proportion to the weights that are there; what is held per microbatch counts whole: an upper limit."""
    here, all_of_it = part if part[1] else (1, 1)

    def share(number: int) -> int:
        return -(-number * here // all_of_it)

    gradient = None if layer.gradient_bytes is None else share(layer.gradient_bytes)
    optimizer = None if layer.optimizer_bytes is None else share(layer.optimizer_bytes)
    weights = share(layer.parameter_bytes)
    parts = weights + (weights if gradient is None else gradient) + (optimizer or 0)
    return WidthBytes(
        width=width,
        state_bytes=max(share(layer.state_bytes), 0 if optimizer is None else parts),
        parameter_bytes=weights,
        gradient_bytes=gradient,
        optimizer_bytes=optimizer,
        **{each.name: getattr(layer, each.name) for each in fields(WidthBytes) if each.name not in _SHARED},
    )


_SHARED = ("width", "state_bytes", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "recompute_kinds")
"""What devices of a group have a part of, or is not measured on them."""
