"""A plan for Megatron-LM: its pipeline layout and the flags around it, one argument per line.

Stages of a hybrid model are in its pattern (`planner.export.hybrid_pattern`).
Written for `--pipeline-model-parallel-layout` as Megatron core 0.16 to 0.20 read it (`PipelineParallelLayerLayout`);
what its own parser, checks and schedules make of it: tests/integration/test_foreign_programs.py.
"""

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.export.hybrid_pattern import is_hybrid, pattern_of, require_whole_blocks
from planner.export.looped_pipelines import require_looped
from planner.export.megatron_flags import assumed_flags, degree_flags
from planner.export.model_parts import Cut, cut_by, is_block, letters_of, require_blocks
from planner.export.samples import require_known_shares, require_samples, require_told
from planner.export.shards import is_sharded
from planner.export.stated_assumptions import degrees_of
from planner.plan import FULL_RECOMPUTATION, Plan
from planner.problem import Problem

SELECTIVE = "selective"
"""The kind of recomputation that Megatron's granularity of that name is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MegatronJob:
    """Megatron-LM's layout, flags and ranks."""

    arguments: tuple[tuple[str, ...], ...]
    """Flags, each with its values."""
    ranks: tuple[str, ...]
    """The device of every global rank: those of a group first (tensor, then context, then data), then replicas, then
    along the pipeline (Megatron's order tp-cp-ep-dp-pp)."""
    notes: tuple[str, ...] = ()
    """Where Megatron does something else than the plan counts on, for people."""


def make_megatron_job(problem: Problem, plan: Plan) -> _MegatronJob:
    """Raises ValueError with the reason why Megatron cannot run the plan exactly."""
    require_expressible(problem, plan)
    ranks = require_looped(problem, plan, what="Megatron-LM", has_widths=True)
    letters = letters_of(problem, cut_by(plan))
    replicas, degrees = len(plan.stages[0].replicas), degrees_of(problem, plan)
    per_replica = require_samples(problem, what="Megatron-LM") // replicas
    arguments: list[tuple[str, ...]] = [
        ("--pipeline-model-parallel-size", str(len(ranks))),
        *_cut_flags(plan, letters),
        ("--micro-batch-size", str(per_replica // degrees.data)),
        ("--global-batch-size", str(per_replica * replicas * problem.num_microbatches)),
    ]
    if degrees.tensor > 1:
        arguments.append(("--tensor-model-parallel-size", str(degrees.tensor)))
    arguments += degree_flags(problem, plan)
    if "m" in "".join(letters):
        arguments.append(("--mtp-num-layers", str("".join(letters).count("m"))))
    arguments += _recomputation(plan)
    if is_sharded(plan, what="Megatron"):
        arguments.append(("--use-distributed-optimizer",))
    arguments += assumed_flags(problem, plan)
    return _MegatronJob(
        arguments=tuple(arguments),
        ranks=tuple(itertools.chain.from_iterable(ranks)),
        notes=tuple(_notes(problem, plan)),
    )


def _cut_flags(plan: Plan, letters: Sequence[str]) -> list[tuple[str, ...]]:
    """Where stages begin: of a hybrid model in its pattern, beside which Megatron takes no layout."""
    if is_hybrid(name for stage in plan.stages for name in stage.layers):
        name, pattern = "--hybrid-layer-pattern", pattern_of(cut_by(plan))
        return [(f"{name}={pattern}",) if pattern.startswith("-") else (name, pattern)]  # else it looks like a flag
    return [
        ("--pipeline-model-parallel-layout", "|".join(_one_head(stage) for stage in letters)),
        ("--num-layers", str("".join(letters).count("t"))),
    ]


def require_expressible(problem: Problem, plan: Plan) -> None:
    """Raise ValueError for stages that no layout of Megatron's gives, whatever their order of actions."""
    require_told(plan, what="Megatron-LM")
    require_parts(problem, cut_by(plan))
    _require_interleaved(plan)
    _recomputation(plan)
    is_sharded(plan, what="Megatron")
    require_known_shares(problem, plan, what="Megatron-LM")
    assumed_flags(problem, plan)
    degree_flags(problem, plan)
    replicas = len(plan.stages[0].replicas) * degrees_of(problem, plan).data
    if not problem.profile.is_whole(Fraction(1, replicas)):
        raise ValueError(
            f"microbatches of {problem.profile.microbatch_size} samples cannot be cut for {replicas} replicas; plan "
            "with max_replicas = 1, or profile another size"
        )


def require_parts(problem: Problem, cut: Cut) -> None:
    """Raise ValueError for layers in stages that Megatron does not have, whatever ranks they are on.

    It also wants multi-token prediction in the last stage of a rank. Behind it is one stage at most, that of the head,
    and there are two ranks or more, so that it is.
    """
    letters = letters_of(problem, cut)
    layers = [name for stage in cut for name in stage]
    if is_hybrid(layers):
        pattern_of(cut)
    else:
        require_whole_blocks(layers)
        require_blocks(layers, what="Megatron-LM")
    for letter, what in (("E", "embedding"), ("L", "head")):
        if sum(letter in stage for stage in letters) > 1:
            raise ValueError(f"the layers of the {what} are in several stages, but Megatron has one {what}; merge them")
    predicting = [number for number, stage in enumerate(letters) if "m" in stage]
    if len(predicting) > 1:
        raise ValueError(
            f"stages {predicting[0]} and {predicting[1]} have layers of multi-token prediction, but Megatron needs "
            "them in one stage; merge them in the profile"
        )


def _require_interleaved(plan: Plan) -> None:
    """Raise ValueError for several stages on the one rank that there is."""
    num_ranks = len({stage.replicas for stage in plan.stages})
    if num_ranks == 1 < len(plan.stages):
        raise ValueError(
            f"one rank holds {len(plan.stages)} stages, but Megatron interleaves on at least two ranks; plan with "
            "max_stages_per_device = 1"
        )


def _recomputation(plan: Plan) -> list[tuple[str, ...]]:
    """Flags for all blocks, for the first so many of every stage, or for all selectively.

    Raises ValueError if no flags of Megatron's say which layers recompute.
    """
    if not any(isinstance(stage.recompute, tuple) for stage in plan.stages):
        if len({stage.recompute for stage in plan.stages}) > 1:
            raise ValueError(
                "only some stages recompute, but Megatron's flag applies to all; plan without recomputation"
            )
        return _full("uniform", 1) if plan.stages[0].recompute else []
    blocks = [[(name, stage.recomputed.get(name)) for name in stage.layers if is_block(name)] for stage in plan.stages]
    others = [name for stage in plan.stages for name in stage.recomputed if not is_block(name)]
    if others:
        raise ValueError(
            f"layer {others[0]!r} recomputes but is not a block, and Megatron's flags apply to blocks; plan with "
            "recompute_layers = false, or leave its checkpoint_bytes out of the profile"
        )
    kinds = [[kind for _, kind in stage] for stage in blocks]
    if {kind for stage in kinds for kind in stage} == {SELECTIVE}:
        return [("--recompute-granularity", SELECTIVE)]
    most = max(sum(kind is not None for kind in stage) for stage in kinds)
    if all(stage == [FULL_RECOMPUTATION if n < most else None for n in range(len(stage))] for stage in kinds):
        return _full("block", most)
    raise ValueError(
        "Megatron recomputes equally many first blocks of every stage fully, or all selectively, but this plan "
        "others; plan with recompute_layers = false"
    )


def _notes(problem: Problem, plan: Plan) -> Iterator[str]:
    """Megatron recomputes blocks alone, where a plan that says `recompute = true` means all layers of its stages."""
    for number, stage in enumerate(plan.stages):
        layers = [problem.profile.by_name[name] for name in stage.layers if not is_block(name)]
        saved = -(-sum(layer.stash_bytes - layer.checkpoint_bytes for layer in layers) // len(stage.replicas))
        if stage.recompute is True and saved > 0:
            yield (
                f"stage {number}: the plan recomputes {', '.join(repr(layer.name) for layer in layers)} too, and "
                f"Megatron does not: each device holds up to {saved:,} bytes more per microbatch, and takes less time; "
                "plan with recompute_layers = true for blocks alone"
            )


def _full(method: str, num_layers: int) -> list[tuple[str, ...]]:
    return [
        ("--recompute-granularity", "full"),
        ("--recompute-method", method),
        ("--recompute-num-layers", str(num_layers)),
    ]


def _one_head(stage: str) -> str:
    """Norm and head are one L, several embeddings one E."""
    return re.sub("L+", "L", re.sub("E+", "E", stage))


def render_megatron(job: _MegatronJob) -> str:
    """The arguments, one flag per line, quoted for a shell; `$(cat FILE)` will not do, `xargs` and `eval` will."""
    return "".join(f"{shlex.join(arguments)}\n" for arguments in job.arguments)
