"""Degrees that an audit tells, as their program reads them: tests of api/auditing/better_degrees.py."""

import pytest

from api.auditing.audit_flags import flags_of
from api.auditing.audited_problem import audited_plan, make_audited_problem
from api.auditing.better_degrees import degree_flags
from profiles.configurations.argument_forms import ReadArguments, read_arguments
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import RunConfiguration
from profiles.configurations.torchtitan_run import read_titan_document, read_torchtitan

DEGREES = [("mixtral-8x7b", 2, 2, 4, 8), ("gpt-oss-20b", 1, 1, 2, 4), ("moonlight-16b-a3b", 4, 1, 3, 1)]
"""Model; tensor, context and pipeline ranks; devices that share experts."""


def told(run: RunConfiguration) -> list[str]:
    """The lines of an audit, degrees and the plan's own."""
    audited = make_audited_problem(run, gpu="h200")
    plan = audited_plan(audited, recompute=audited.recompute)
    return [*degree_flags(run, before=run), *flags_of(audited, plan)]


def shown(run: RunConfiguration) -> tuple[object, ...]:
    return (run.tensor, run.context, run.experts, run.pipeline, run.data, run.stages, run.notes.unknown)


@pytest.mark.parametrize(("model", "tensor", "context", "pipeline", "experts"), DEGREES)
def test_megatron_reads_degrees_back(model: str, tensor: int, context: int, pipeline: int, experts: int) -> None:
    """Tests that an audit of the told flags has the degrees and stages that they were told of."""
    own = f"--bf16 --sequence-parallel --seq-length 4096 --micro-batch-size 1 --global-batch-size {8 * pipeline}"
    start = f"torchrun --nnodes {2 * pipeline} --nproc_per_node {4 * tensor * context} pretrain_gpt.py {own} "
    degrees = ("tensor", tensor), ("context", context), ("pipeline", pipeline), ("expert", experts)
    stated = {f"{name}{'' if name == 'context' else '_model'}_parallel_size": str(value) for name, value in degrees}
    stated |= {"expert_tensor_parallel_size": "1", "world_size": str(8 * tensor * context * pipeline)}
    stated |= {"global_batch_size": str(8 * pipeline), "sequence_parallel": True, "seq_length": "4096"}
    run = read_megatron(ReadArguments(values={}, kind="options"), options=stated, model=model)
    assert run.experts == experts
    back = read_megatron(read_arguments(start + " ".join(told(run)), source="a.sh"), options={}, model=model)
    assert shown(back) == shown(run)


@pytest.mark.parametrize(("model", "tensor", "context", "pipeline", "experts"), DEGREES)
def test_torchtitan_reads_degrees_back(model: str, tensor: int, context: int, pipeline: int, experts: int) -> None:
    """Tests that every told field stands there once, as TOML demands, and says the same run but for its schedule."""
    fixed = "data_parallel_shard_degree = 8\n[training]\nlocal_batch_size = 24\nseq_len = 4096\n"
    before = f"tensor_parallel_degree = {tensor}\ncontext_parallel_degree = {context}\n"
    before += f"pipeline_parallel_degree = {pipeline}\nexpert_parallel_degree = {experts}\n"
    devices = 8 * tensor * context * pipeline
    document = read_titan_document(f"[parallelism]\n{before}{fixed}", source="a.toml")
    run = read_torchtitan(document, model=model, devices=devices)
    lines = "".join(f"{line}\n" for line in told(run) if "schedule" not in line)
    document = read_titan_document(f"[parallelism]\n{lines}{fixed}", source="a.toml")
    back = read_torchtitan(document, model=model, devices=devices)
    assert shown(back) == shown(run)
