"""Workloads put together from measured tables: what the command line asks for, and what it shows."""

from dataclasses import replace
from typing import Any

from api.failures import InputError
from profiles.cluster import Cluster
from profiles.degrees import Degrees, read_degrees
from profiles.estimates.composed_profile import CompositionQuestion, Figure, compose, interpolation_error, shares
from profiles.estimates.operations import Dtype
from profiles.workload import Workload


def compose_workload(
    *,
    model: str | None,
    gpu: str | None,
    tensor_parallel: str,
    dtype: Dtype,
    microbatch_size: str,
    sequence: int,
    hosts: str | None,
) -> tuple[Workload, tuple[Figure, ...]]:
    """The workload and the figures it was made of; raises InputError that lists what there is.

    Lists with commas between are `gpu`, `tensor_parallel` (`1,4,tensor=2+context=2`), `microbatch_size` (the profile's
    own first) and `hosts` (of each type; None: no cluster is made).
    """
    from api.inputs import reading
    from profiles.importers.aiconfigurator.rates import MeasuredRates
    from profiles.importers.aiconfigurator.tables import find_package
    from profiles.importers.aiconfigurator.workloads import find_shape

    if sequence < 1:
        raise InputError(f"--sequence {sequence}: give the tokens of a sample, 1 or more")
    with reading():
        package = find_package()
        if model is None or gpu is None:
            raise InputError(_what_there_is(package.gpus))
        gpus = [package.find_gpu(name.strip()) for name in gpu.split(",")]
        rates = [MeasuredRates(package=package, gpu=name) for name in dict.fromkeys(gpus)]
        profile, figures = compose(
            CompositionQuestion(
                shape=find_shape(package, model),
                rates=rates,
                sequence=sequence,
                sizes=_numbers(microbatch_size, option="--microbatch-size"),
                degrees=_degrees(tensor_parallel),
                dtype=dtype,
            )
        )
        cluster = None if hosts is None else _cluster(package, gpus, hosts=hosts)
    workload = Workload(profile=profile, cluster=cluster)
    if cluster is not None:
        note = "The cluster's bandwidths and memory are those of the sheets; its reserve is assumed."
        workload = replace(workload, profile=replace(profile, provenance=f"{profile.provenance} {note}"))
    return workload, figures


def _what_there_is(gpus: tuple[str, ...]) -> str:
    from profiles.estimates.model_shapes import ALIASES

    return (
        f"import aiconfigurator: give --model and --gpu; models: {', '.join(ALIASES)}, or a config.json; "
        f"device types: {', '.join(gpus)}"
    )


def _numbers(text: str, *, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 8 and int(part) for part in parts):
        raise InputError(f"{option} {text}: write whole numbers with commas between, e.g. 1,2,4")
    return tuple(dict.fromkeys(map(int, parts)))


def _degrees(text: str) -> tuple[int | Degrees, ...]:
    """Numbers stay numbers: what they mean does not have to be stated."""
    try:
        found = [read_degrees(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--tensor-parallel {text}: {error}") from None
    plain = [each.tensor if each == Degrees(tensor=each.tensor) else each for each in found]
    return tuple(dict.fromkeys(plain))


def _cluster(package: Any, gpus: list[str], *, hosts: str) -> Cluster:
    from profiles.importers.aiconfigurator.workloads import make_cluster

    counts = [int(part) if part.strip().isdigit() else 0 for part in hosts.split(",")]
    if len(counts) != len(gpus) or not all(0 < count <= 10**4 for count in counts):
        raise InputError(f"--hosts {hosts}: give a number of hosts for each of {', '.join(gpus)}, with commas between")
    return make_cluster(package, list(zip(gpus, counts, strict=True)))


def summarise_composition(workload: Workload, figures: tuple[Figure, ...], *, output: str | None) -> dict[str, Any]:
    """The closing words as data."""
    profile = workload.profile
    blocks = [figure for figure in figures if figure.layer.startswith("block")]
    error = interpolation_error(blocks)
    return {
        "event": "done",
        "profile": profile.name,
        "layers": len(profile.layers),
        "parameter_bytes": sum(layer.parameter_bytes for layer in profile.layers),
        "devices": 0 if workload.cluster is None else len(workload.cluster.devices),
        "interpolation_error": None if error is None else round(error, 4),
        "time_from": {source: round(part, 4) for source, part in shares(blocks).items()},
        "block": [
            {
                "device_type": cost.device_type,
                "width": cost.width,
                "microbatch_size": cost.microbatch_size or profile.microbatch_size,
                "forward_ns": cost.forward_ns,
                "input_grad_ns": cost.input_grad_ns,
                "weight_grad_ns": cost.weight_grad_ns,
            }
            for cost in profile.layers[-2].costs
        ],
        "file": output,
    }


def render_composition(workload: Workload, figures: tuple[Figure, ...], *, output: str | None) -> str:
    """The closing words for people."""
    said = summarise_composition(workload, figures, output=output)
    parts, error = said["time_from"], said["interpolation_error"]
    within = "" if error is None else f" (+-{100 * error:.0f} %, within which 95 % of rows are that are left out)"
    lines = [
        f"{said['profile']}: {said['layers']} layers, weights {said['parameter_bytes'] / 2**30:.1f} GiB; put together, "
        "not measured as a whole",
        f"  of the blocks' time {100 * parts['row']:.0f} % are rows of tables, {100 * parts['interpolated']:.0f} % lie "
        f"between rows{within}, {100 * parts['assumed']:.0f} % are assumed",
        "  last block (ms)                      F       I       W",
        *(
            f"  {each['device_type']:<20} x{each['width']:<3} {each['microbatch_size']:>3} samples"
            f"{each['forward_ns'] / 1e6:8.3f}{each['input_grad_ns'] / 1e6:8.3f}{each['weight_grad_ns'] / 1e6:8.3f}"
            for each in said["block"]
        ),
    ]
    return "\n".join([*lines, f"  written to {output}"] if output not in (None, "-") else lines)
