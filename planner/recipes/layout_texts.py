"""Stages as the programs read them."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from planner.export.torchtitan import part_names
from planner.recipes.layer_chain import LayerChain
from profiles.configurations.megatron_layout import shortened

LayoutValue = str | list[list[str]] | list[int]
"""What a program is given: see `TEXTS`."""

_NAMES = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
"""As Megatron core's lists of layers name them."""


def stage_letters(chain: LayerChain, bounds: Sequence[int]) -> tuple[str, ...]:
    """The letters of every stage; of several layers of multi-token prediction an m each."""
    letters = [letter * chain.predicting if letter == "m" else letter for letter in chain.letters]
    return tuple("".join(letters[a:b]) for a, b in pairwise(bounds))


def megatron_text(stages: Sequence[str]) -> str:
    """For `--pipeline-model-parallel-layout`."""
    return shortened("|".join(stages))


def megatron_lists(stages: Sequence[str]) -> list[list[str]]:
    """The same as lists of Megatron core's words, which recipes give instead of a text."""
    return [[_NAMES[letter] for letter in stage] for stage in stages]


def part_bounds(stages: Sequence[str]) -> list[int]:
    """For DeepSpeed's `PipelineModule.parts`: layers before each stage, and all of them; every letter is one."""
    return [0, *accumulate(map(len, stages))]


TEXTS: dict[str, Callable[[Sequence[str]], LayoutValue]] = {
    "megatron": megatron_text,
    "megatron-hybrid": "|".join,
    "torchtitan": part_names,
    "deepspeed": part_bounds,
}
"""By target."""
