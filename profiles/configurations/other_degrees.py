"""The same training at other degrees: tensor, context, expert and pipeline, on as many devices."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from profiles.configurations.run_configuration import ReadingNotes, RunConfiguration

PROGRAMS = ("megatron", "torchtitan")
"""Programs that have all four degrees; others are refused."""
MOST_CONTEXT, LEAST_TOKENS = 16, 1_024
"""Devices that share a sequence, and tokens that each of them has at least."""


def other_degrees(run: RunConfiguration, *, node: int) -> Iterator[RunConfiguration]:
    """The run at every choice of degrees that its program takes, its own among them; stages are left open.

    Degrees are powers of two, and those of the run. Devices of a layer stay within a node of so many. Raises ValueError
    for a program whose degrees are not known.
    """
    if run.program not in PROGRAMS:
        raise ValueError(
            f"{run.program}: other degrees are looked for with {' and '.join(PROGRAMS)} only; leave out --other-degrees"
        )
    shape, devices = run.whole_shape, run.devices
    tensors = [degree for degree in _powers(node, own=run.tensor) if not shape.why_not(degree)]
    contexts = [degree for degree in _powers(MOST_CONTEXT, own=run.context) if _divides_sequence(run, degree)]
    pipelines = [degree for degree in _powers(shape.blocks, own=run.pipeline) if devices % degree == 0]
    for tensor, context, pipeline in itertools.product(tensors, contexts, pipelines):
        group = tensor * context
        if devices % (group * pipeline):
            continue
        data = devices // (group * pipeline)
        if run.global_batch % (run.micro_batch * data):
            continue
        for expert in _expert_degrees(run, group=group, data=data):
            yield replace(
                run,
                shape=shape,
                tensor=tensor,
                context=context,
                pipeline=pipeline,
                data=data,
                experts=expert,
                expert_tensor=1,
                chunks=1,
                stages=(),
                sequence_parallel=run.sequence_parallel or tensor > 1,
                recompute=None,
                cut_by=(),
                notes=ReadingNotes(),
            )


def _powers(most: int, *, own: int) -> list[int]:
    """Powers of two up to `most`, and what the run has."""
    return sorted({own, *(2**exponent for exponent in range(most.bit_length()) if 2**exponent <= most)})


def _divides_sequence(run: RunConfiguration, context: int) -> bool:
    """Causal scores are dealt evenly by cutting a sequence into twice as many parts."""
    if context == 1:
        return True
    return run.sequence % (2 * context) == 0 and run.sequence // context >= LEAST_TOKENS and not run.shape.pattern


def _expert_degrees(run: RunConfiguration, *, group: int, data: int) -> Iterator[int | None]:
    """Degrees that divide the experts and the devices of a layer."""
    mixture = run.whole_shape.mixture
    if mixture is None:
        yield None
        return
    for degree in _powers(mixture.experts, own=1):
        if mixture.experts % degree == 0 and (group * data) % degree == 0:
            yield degree
