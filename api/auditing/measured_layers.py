"""Layers out of a measured profile, as a configuration runs them."""

from planner.export.model_parts import letter_of
from profiles.configurations.known_models import find_sheet
from profiles.configurations.run_configuration import RunConfiguration
from profiles.model_profile import Layer, ModelProfile


def measured_layers(profile: ModelProfile, run: RunConfiguration, *, gpu: str) -> tuple[Layer, ...]:
    """Each with its one cost at the tensor-parallel degree, under the GPU's name.

    Raises ValueError with the profile's name where it is of another model, size of microbatches, degree or device type.
    """
    owner = f"profile {profile.name!r}"
    letters = "".join(letter_of(layer.name) for layer in profile.layers)
    wanted = run.shape.blocks, run.predicting
    if (letters.count("t"), letters.count("m")) != wanted:
        raise ValueError(
            f"{owner}: has {letters.count('t')} blocks and {letters.count('m')} of multi-token prediction, but the "
            f"configuration has {wanted[0]} and {wanted[1]}; give the profile of its model"
        )
    if profile.microbatch_size != run.micro_batch:
        raise ValueError(
            f"{owner}: microbatch_size = {profile.microbatch_size}, but the configuration's is {run.micro_batch}; "
            "measure that size"
        )
    device_type = _device_type(profile, gpu=gpu)
    return tuple(_layer(layer, device_type=device_type, width=run.tensor, gpu=gpu) for layer in profile.layers)


def _device_type(profile: ModelProfile, *, gpu: str) -> str:
    """The only one that there is, or the one that is the GPU's name in some form."""
    types = sorted({cost.device_type for layer in profile.layers for cost in layer.costs})
    if len(types) == 1:
        return types[0]
    for name in types:
        try:
            if find_sheet(name).name == gpu:
                return name
        except ValueError:
            continue
    raise ValueError(f"profile {profile.name!r}: none of its device types ({', '.join(types)}) is --gpu {gpu}")


def _layer(layer: Layer, *, device_type: str, width: int, gpu: str) -> Layer:
    cost = next((each for each in layer.costs if (each.device_type, each.width) == (device_type, width)), None)
    if cost is None or layer.bytes_at(width) is None:
        widths = sorted({each.width for each in layer.costs if each.device_type == device_type})
        raise ValueError(
            f"layer {layer.name!r}: was not measured on {width} devices, of {device_type!r} on "
            f"{', '.join(map(str, widths))}; measure it so, or take another --tp"
        )
    return layer.as_one_device(cost, device_type=gpu)
