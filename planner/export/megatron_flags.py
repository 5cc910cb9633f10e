"""A profile's assumptions as flags of Megatron-LM (0.16 to 0.20)."""

from collections.abc import Mapping
from typing import Any

from planner.export.stated_assumptions import ExportedRun, States, run_of, state
from planner.plan import Plan
from planner.problem import Problem

Flags = list[tuple[str, ...]]

PRECISIONS: Mapping[str, Flags] = {
    "fp32": [],
    "fp16": [("--fp16",)],
    "bf16": [("--bf16",)],
    "fp8": [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")],
    "fp8_blockwise": [("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")],
    "fp8_mx": [("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")],
    "nvfp4": [("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")],
}


def _gradients(value: str, run: ExportedRun) -> Flags:
    precision = run.assumptions.precision
    if value == "fp32":
        return [] if precision == "fp32" else [("--accumulate-allreduce-grads-in-fp32",)]
    if value == "fp16" and precision == "fp16":
        return []
    if value == "bf16" and run.is_sharded:
        return [("--use-precision-aware-optimizer",), ("--main-grads-dtype", "bf16")]
    raise ValueError(
        f"supports this only in {value}, or in bf16 with a distributed optimizer; profile with gradients in fp32, or "
        "plan with shard_optimizer = 'always'"
    )


def _attention(value: str, run: ExportedRun) -> Flags:
    if value == "flash" and run.assumptions.precision == "fp32":
        raise ValueError("has no attention that stores no scores in fp32; profile in bf16 or fp16")
    return [("--attention-backend", value)]


def _on(flag: str) -> Any:
    """A switch that is off by default."""
    return lambda value, _: [(flag,)] if value else []


def _expert_parallel(value: bool, run: ExportedRun) -> Flags:
    if not value:
        return [("--expert-tensor-parallel-size", str(run.degrees.tensor))]
    _require_sequence_parallel(run)
    return [("--expert-model-parallel-size", str(run.degrees.tensor)), ("--expert-tensor-parallel-size", "1")]


def _require_sequence_parallel(run: ExportedRun) -> None:
    if run.degrees.tensor > 1 and run.assumptions.sequence_parallel is not True:
        raise ValueError("needs sequence parallelism for it; profile with sequence_parallel = true")


def degree_flags(problem: Problem, plan: Plan) -> Flags:
    """What the devices of a group share, the tensor degree aside; raises ValueError for what Megatron refuses."""
    run = run_of(problem, plan)
    flags: Flags = []
    if run.degrees.context > 1:
        flags.append(("--context-parallel-size", str(run.degrees.context)))
    if run.degrees.expert > 1:
        try:
            _require_sequence_parallel(run)
        except ValueError as reason:
            raise ValueError(
                f"profile {problem.profile.name!r}: degrees {run.degrees}, and Megatron-LM {reason}"
            ) from None
        flags.append(("--expert-model-parallel-size", str(run.degrees.expert)))
    if run.names_degrees and run.degrees.tensor > 1:
        flags.append(("--expert-tensor-parallel-size", "1"))
    return flags


def _hidden_exchanges(value: bool, run: ExportedRun) -> Flags:
    if value and run.assumptions.sequence_parallel is not True:
        raise ValueError("overlaps only the exchanges of sequence parallelism; profile with sequence_parallel = true")
    return [("--tp-comm-overlap",)] if value else []


_STATES: States = {
    "precision": lambda value, _: PRECISIONS[value],
    "gradients": _gradients,
    "attention": _attention,
    "fused_loss": _on("--cross-entropy-loss-fusion"),
    "sequence_parallel": _on("--sequence-parallel"),
    "expert_parallel": _expert_parallel,
    "hidden_exchanges": _hidden_exchanges,
    "selective_modules": lambda value, _: [("--recompute-modules", *value)],
    "sequence_length": lambda value, _: [("--seq-length", str(value))],
}
"""Context parallelism of all costs has no entry: its ranks would come on top of the plan's. Degrees by name have it."""


def assumed_flags(problem: Problem, plan: Plan) -> Flags:
    """The flags; raises ValueError with field, value and remedy for what Megatron cannot be told."""
    told = state(problem, plan, how=_STATES, what="Megatron-LM")
    return [parts for _, each in told for parts in each]
