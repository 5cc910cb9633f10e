"""Sailor's files: seconds of every layer by device type, tensor-parallel degree and microbatch; floats held by layer.

`MODEL/GPU/profile.json`, as it lies in its repository, states `{samples: {degree: {layer: [forward, backward,
update]}}}` in seconds; `llm_info.json` states `{MODEL: {degree: {layer: {"params_floats", "act_output_floats",
"act_mem_floats", ...}}}}` per sample.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

from pydantic import Field

from profiles.assumptions import Assumptions
from profiles.documents.refusal import blaming, refusal, render_value
from profiles.documents.strict_json import decode_text, parse_json
from profiles.documents.validation import validate
from profiles.field_rules import MAX_BYTES
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes
from profiles.workload import Workload

T = TypeVar("T")

Seconds = Annotated[float, Field(ge=0, le=10**4)]
Floats = Annotated[int, Field(ge=0, le=MAX_BYTES // 32)]

Times = dict[str, dict[str, dict[str, tuple[Seconds, Seconds, Seconds]]]]
"""Forward, backward and update by samples, degree and layer."""

Held = dict[str, dict[str, Floats]]
"""What one device holds of every layer at one degree."""

FLOAT_BYTES = 4
"""Sailor profiles in fp32."""

STATE_FLOATS = 6
"""Copies of the parameters that its memory model counts: weights, gradients, two moments of Adam, one of DeepSpeed's,
and what is communicated."""

_OPTIMIZER_FLOATS = 2
"""Those of them that are the optimizer's state."""

_PARAMETERS, _OUTPUT, _STASH = "params_floats", "act_output_floats", "act_mem_floats"


def _import_sailor(profiles: Mapping[str, Times], held: Mapping[str, Held], *, model: str) -> Workload:
    """The profile of a model: costs of every device type at every degree and microbatch that was measured.

    `profiles`: times by device type; `held`: floats per degree, per sample. A microbatch that replicas share is larger
    than what one device was measured at, so costs beyond the measured samples scale linearly, and evidence counts them.
    Raises ValueError that names the layer or degree that is missing.
    """
    keys = [*held, *held.get("1", {})]
    if odd := next((key for key in keys if not (key.isascii() and key.isdecimal())), None):
        raise ValueError(f"{render_value(odd)} is no number of a degree or layer of {model}; correct the key")
    names = sorted(held.get("1", {}), key=int)
    if not names:
        raise ValueError(f"states nothing of {render_value(model)} at degree 1; add it")
    problems = list(_problems(profiles, held, names=names))
    if problems:
        raise ValueError("; ".join(problems[:3]))
    layers = tuple(_layer(name, profiles=profiles, held=held) for name in names)
    edges = tuple(
        Edge(producer=f"layer {a}", consumer=f"layer {b}", bytes=FLOAT_BYTES * held["1"][a][_OUTPUT])
        for a, b in itertools.pairwise(names)
    )
    return Workload(
        profile=ModelProfile(
            name=model,
            layers=layers,
            edges=edges,
            microbatch_size=1,
            scaling="linear",
            conditions="alone",
            assumptions=Assumptions(precision="fp32", gradients="fp32", distributed_optimizer=False),
            provenance=f"Sailor's profiles of {model} on {', '.join(profiles)} (fp32). Assumed: input and weight "
            f"gradients take half of the backward pass each; a parameter holds {STATE_FLOATS} floats, as its memory "
            "model says; the update is that of degree 1 on every layer; costs beyond the measured samples are linear.",
        )
    )


def _problems(profiles: Mapping[str, Times], held: Mapping[str, Held], *, names: Sequence[str]) -> Iterator[str]:
    for device_type, times in profiles.items():
        if not any("1" in by_degree for by_degree in times.values()):
            yield f"{device_type} has no times at degree 1; measure one device"
        for samples, by_degree in times.items():
            for degree, by_layer in by_degree.items():
                where = f"{device_type}, {samples} samples, degree {degree}"
                if not (samples.isdecimal() and degree.isdecimal() and int(samples) and int(degree)):
                    yield f"{where}: samples and degree are whole numbers; correct the keys"
                elif missing := sorted(set(names) - by_layer.keys()):
                    yield f"{where}: layer {missing[0]} has no times; add it"
                elif unknown := sorted(by_layer.keys() - set(names)):
                    yield f"{where}: layer {unknown[0]} has times, but no floats; add them, or remove its times"
    for degree, floats in held.items():
        for name in names:
            if any(key not in floats.get(name, {}) for key in (_PARAMETERS, _OUTPUT, _STASH)):
                yield f"degree {degree}: layer {name} lacks its floats; add {_PARAMETERS}, {_OUTPUT} and {_STASH}"
                return


def _layer(name: str, *, profiles: Mapping[str, Times], held: Mapping[str, Held]) -> Layer:
    return Layer(
        name=f"layer {name}",
        costs=tuple(
            cost
            for device_type, times in profiles.items()
            for cost in _costs(name, device_type, times=times, held=held)
        ),
        **_bytes_of(held["1"][name]),
        wider=tuple(
            WidthBytes(width=int(degree), **_bytes_of(by_layer[name]))
            for degree, by_layer in sorted(held.items(), key=lambda entry: int(entry[0]))
            if degree != "1"
        ),
    )


def _costs(name: str, device_type: str, *, times: Times, held: Mapping[str, Held]) -> Iterator[LayerCost]:
    """Every measurement at a degree whose bytes are known; the update is the largest of one device."""
    update = max(by_degree["1"][name][2] for by_degree in times.values() if "1" in by_degree)
    is_trained = held["1"][name][_PARAMETERS] > 0
    for samples, by_degree in sorted(times.items(), key=lambda entry: int(entry[0])):
        for degree, by_layer in sorted(by_degree.items(), key=lambda entry: int(entry[0])):
            if degree in held:
                forward, backward, _ = by_layer[name]
                whole = round(backward * 1e9)
                weights = whole // 2 if is_trained else 0
                yield LayerCost(
                    device_type=device_type,
                    width=int(degree),
                    microbatch_size=int(samples),
                    forward_ns=round(forward * 1e9),
                    input_grad_ns=whole - weights,
                    weight_grad_ns=weights,
                    optimizer_ns=round(update * 1e9) if is_trained else 0,
                )


def _bytes_of(own: Mapping[str, int]) -> dict[str, Any]:
    parameters = FLOAT_BYTES * own[_PARAMETERS]
    return {
        "parameter_bytes": parameters,
        "gradient_bytes": parameters,
        "optimizer_bytes": _OPTIMIZER_FLOATS * parameters,
        "state_bytes": STATE_FLOATS * parameters,
        "stash_bytes": FLOAT_BYTES * own[_STASH],
        "weight_stash_bytes": FLOAT_BYTES * own[_STASH],
    }


def read_sailor(files: Mapping[str, bytes]) -> Workload:
    """The workload of the bytes of files by their paths: `MODEL/GPU/profile.json` per device type, and `llm_info.json`.

    Raises ValueError that names the file, what is wrong with it and the remedy.
    """
    infos = [path for path in files if PurePath(path).name == "llm_info.json"]
    if len(infos) != 1 or len(files) < 2:
        raise ValueError("sailor: needs MODEL/GPU/profile.json of every device type and one llm_info.json; give these")
    profiles: dict[str, Times] = {}
    models: set[str] = set()
    for path in (path for path in files if path not in infos):
        folders = PurePath(path).parts
        if len(folders) < 3:
            raise refusal(path, "is not in folders MODEL/GPU, which name model and GPU; keep these folders")
        models.add(folders[-3])
        profiles[folders[-2]] = _read(Times, files[path], source=path)
    if len(models) != 1:
        raise ValueError(f"sailor: profiles of {', '.join(sorted(models))}; give one model's")
    (model,) = models
    held = _read(dict[str, dict[str, Held]], files[infos[0]], source=infos[0])
    with blaming(infos[0]):
        return _import_sailor(profiles, held.get(model, {}), model=model)


def _read(kind: type[T], data: bytes, *, source: str) -> T:
    return validate(kind, parse_json(decode_text(data, source=source), source=source), source=source)
