"""A pipeline layout for a recipe, in a second or two and without a GPU, with what no other layout goes below."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy

from planner.bounds.loop.loop_order import FORWARD as IS_FORWARD
from planner.bounds.loop.loop_order import order_of
from planner.export.targets import MOST_CHUNKS
from planner.option_values import LayoutTarget
from planner.recipes.cost_basis import COUNTED, CostBasis, ModelConfig, read_model
from planner.recipes.cut_search import MOST_PLAYED, CutQuestion, FoundCut, search_cuts
from planner.recipes.layer_chain import UNIT, LayerChain, make_chain
from planner.recipes.layout_texts import TEXTS, LayoutValue, megatron_lists, stage_letters
from planner.recipes.least_time import as_problem, find_least_time, hardest_mix

MOST_RANKS, MOST_LAYERS = 64, 512
"""Largest pipeline and model for which a layout is made."""

_WHOLE = 3 * UNIT
"""Ticks that times are told in: F and B of a mean block."""
_EACH = 8
"""Microbatches per rank, where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """Where stages begin, and what is known of it; times are in units of a mean block, forward and backward."""

    target: LayoutTarget
    pipeline: int
    """Ranks."""
    virtual: int
    """Stages per rank: rank r has stages r, r + pipeline, ..."""
    microbatches: int
    """That are counted on; of more than 16 per rank those."""
    value: LayoutValue
    """What the target reads: `--pipeline-model-parallel-layout`, `--hybrid-layer-pattern`,
    `module_fqns_per_model_part`, or the `parts` of DeepSpeed's `PipelineModule`."""
    stages: tuple[str, ...]
    """Letters: E embedding, t block, m multi-token prediction, L head and loss; or a hybrid pattern's."""
    stage_times: tuple[float, ...]
    """Of a microbatch, by the worse of the costs where there are two."""
    rank_times: tuple[float, ...]
    """Of a microbatch, all stages."""
    time: float
    """Of an iteration without the optimizer's step, 1F1B (interleaved where a rank has several stages)."""
    lower_bound: float
    """No layout with so many stages per rank, or fewer, takes less."""
    gap: float
    """What is left at most, as a part of `time`."""
    certificate: Mapping[str, Any]
    """What `planner.evidence.certificate.check_certificate` derives the bound from anew."""
    rank_weights: tuple[int, ...]
    """Weights that a device holds; 0 where the model's are not known."""
    rank_activations: tuple[int, ...]
    """Blocks whose activations a rank holds at once."""
    basis: str
    """Source of the times."""

    def as_lists(self) -> list[list[str]]:
        """The stages as Megatron-Bridge's recipes state them; raises ValueError for a hybrid model."""
        if self.target == "megatron-hybrid":
            raise ValueError("stages of a hybrid model are in its pattern; take value")
        return megatron_lists(self.stages)


def layout(
    config: ModelConfig,
    pipeline: int = 8,
    *,
    virtual: int | None = None,
    target: LayoutTarget = "megatron",
    microbatches: int | None = None,
    basis: CostBasis = COUNTED,
) -> PipelineLayout:
    """The best layout found for a model on so many ranks.

    `virtual`: stages per rank; None: decided, 12 at most. `microbatches`: of an iteration; None: eight per rank.
    Raises ValueError for what the target cannot run, or the configuration does not say.
    """
    if target not in TEXTS:
        raise ValueError(f"target = {str(target)[:60]!r} is not known; give one of {', '.join(TEXTS)}")
    _require_whole("pipeline", pipeline, most=MOST_RANKS)
    count = _played_count(pipeline, microbatches)
    chain = make_chain(read_model(config, basis=basis), basis=basis, target=target)
    chunks = _allowed_chunks(chain, pipeline, virtual=virtual, target=target, microbatches=count)
    question = CutQuestion(chain=chain, ranks=pipeline, microbatches=count)
    return _described(question, search_cuts(question, chunks=chunks), target=target, most_chunks=max(chunks))


def layout_builder(
    config: ModelConfig, *, microbatches: int | None = None, basis: CostBasis = COUNTED
) -> Callable[[int, int | None], list[list[str]] | None]:
    """A function of pipeline and virtual size for Megatron-Bridge's `_pipeline_model_parallel_layout_builder`."""

    def build(pipeline: int, virtual: int | None = None) -> list[list[str]] | None:
        if pipeline == 1 and virtual in (None, 1):
            return None
        return layout(config, pipeline, virtual=virtual or 1, microbatches=microbatches, basis=basis).as_lists()

    return build


def _require_whole(what: str, value: object, *, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{what} = {str(value)[:60]!r}; give a whole number from 1 to {most}")


def _played_count(pipeline: int, microbatches: int | None) -> int:
    if microbatches is None:
        return _EACH * pipeline
    _require_whole("microbatches", microbatches, most=10**9)
    most = MOST_PLAYED * pipeline
    return microbatches if microbatches <= most else most + microbatches % pipeline


def _allowed_chunks(
    chain: LayerChain, pipeline: int, *, virtual: int | None, target: LayoutTarget, microbatches: int
) -> list[int]:
    """Numbers of stages per rank; raises ValueError where there is none, or that which is asked for is none."""
    size = len(chain.letters)
    if size > MOST_LAYERS:
        raise ValueError(f"the model has {size} layers; give at most {MOST_LAYERS}")
    if size < pipeline:
        raise ValueError(f"{size} layers on {pipeline} ranks leave ranks empty; use fewer ranks")
    loops = pipeline > 1 and microbatches % pipeline == 0 and target != "deepspeed"
    has_rounds = microbatches % pipeline > 0 and microbatches % max(1, microbatches // pipeline) == 0
    if target == "torchtitan" and virtual != 1 and has_rounds and size >= 2 * pipeline:
        raise ValueError(
            f"microbatches = {microbatches}: torch interleaves them on {pipeline} ranks in rounds of another number, "
            f"of which no layouts are known; give a multiple of {pipeline}, or virtual = 1"
        )
    allowed = list(range(1, (min(MOST_CHUNKS, size // pipeline) if loops else 1) + 1))
    if virtual is None:
        return allowed
    _require_whole("virtual", virtual, most=size)
    if virtual in allowed or (loops and virtual * pipeline <= size):
        return [virtual]
    if target == "deepspeed":
        why = "DeepSpeed runs one stage per rank"
    elif pipeline == 1 or virtual * pipeline > size:
        why = f"{size} layers on {pipeline} ranks have no {virtual * pipeline} stages to interleave"
    else:
        why = f"{microbatches} microbatches are not a multiple of {pipeline} ranks, as interleaving needs"
    raise ValueError(f"virtual = {virtual}: {why}; give {', '.join(map(str, allowed[:4]))}")


def _described(question: CutQuestion, found: FoundCut, *, target: LayoutTarget, most_chunks: int) -> PipelineLayout:
    chain, ranks = question.chain, question.ranks
    costs = hardest_mix(chain, ranks=ranks)
    problem = as_problem(chain, costs, ranks=ranks, microbatches=question.microbatches, most_chunks=most_chunks)
    bound = find_least_time(problem, reached=found.time)
    cut = numpy.array([found.bounds], dtype=numpy.int64)
    passes = [question.stage_times(cut, variant=number).sum(axis=0)[:, 0] for number in range(len(chain.costs))]
    times = numpy.max(passes, axis=0)
    work = numpy.max([each.reshape(-1, ranks).sum(axis=0) for each in passes], axis=0)
    stages = stage_letters(chain, found.bounds)
    weights = [sum(chain.weights[a:b]) for a, b in pairwise(found.bounds)]
    return PipelineLayout(
        target=target,
        pipeline=ranks,
        virtual=found.chunks,
        microbatches=question.microbatches,
        value=TEXTS[target](stages),
        stages=stages,
        stage_times=tuple(round(time / _WHOLE, 4) for time in times.tolist()),
        rank_times=tuple(round(time / _WHOLE, 4) for time in work.tolist()),
        time=found.time / _WHOLE,
        lower_bound=bound.value_ns / _WHOLE,
        gap=1 - bound.value_ns / found.time,
        certificate=bound.certificate,
        rank_weights=tuple(sum(weights[rank::ranks]) for rank in range(ranks)),
        rank_activations=_most_held(question, [_blocks(stage) for stage in stages]),
        basis=chain.origin,
    )


def _blocks(stage: str) -> int:
    """Layers that keep activations."""
    return len(stage.replace("L", "").replace("E", "", stage.startswith("Et")))


def _most_held(question: CutQuestion, sizes: list[int]) -> tuple[int, ...]:
    """Per rank, the most that forwards have left behind and backwards not taken up."""
    order = order_of(ranks=question.ranks, chunks=len(sizes) // question.ranks, count=question.microbatches)
    held, most = [0] * question.ranks, [0] * question.ranks
    for rank, direction, stage, _ in order.steps:
        held[rank] += sizes[stage] if direction == IS_FORWARD else -sizes[stage]
        most[rank] = max(most[rank], held[rank])
    return tuple(most)
