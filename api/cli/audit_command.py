"""`pipeplan audit` and `pipeplan layout`: configurations of other programs, judged and made."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import typer

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, count, network, option
from api.cli.options.folded_help import Commands, folded
from api.cli.output import report_json, write_folder
from api.failures import Exit, InputError
from planner.option_values import LayoutTarget

commands = Commands()

_RUN, _CUT, _MODEL, _PIPELINE = "What runs", "How it is cut", "Model", "Pipeline"
_run, _cut, _model, _pipeline = (partial(option, panel=panel) for panel in (_RUN, _CUT, _MODEL, _PIPELINE))
_answer = partial(option, panel="Answer")


class AuditedOptions(NamedTuple):
    """The audited program, its model and its devices."""

    model: Annotated[str | None, _run("--model NAME|FILE", "A known model, e.g. llama3-70b, or a config.json.")] = None
    gpu: Annotated[str | None, _run("--gpu NAME", "a100, h100 (default), h200, b200, b300, gb200, gb300.")] = None
    gpu_memory: Annotated[
        float | None, _run("--gpu-memory GIB", "Memory of a GPU, where it is not its data sheet's.", min=1, max=10**4)
    ] = None
    network_gb_per_s: Annotated[
        float | None,
        network("Nominal gigabytes, of a GPU to other nodes, where they are not its usual card's.", panel=_RUN),
    ] = None
    profile: Annotated[
        str | None,
        _run("--profile FILE", "A workload with measured layers, to take times and bytes from instead of estimates."),
    ] = None
    devices: Annotated[int | None, count("--devices", "GPUs in all.", panel=_RUN)] = None
    seq_length: Annotated[int | None, count("--seq-length", "Tokens of a sample.", panel=_RUN)] = None
    micro_batch_size: Annotated[int | None, count("--micro-batch-size", "Samples of a microbatch.", panel=_RUN)] = None
    global_batch_size: Annotated[int | None, count("--global-batch-size", "Samples of an iteration.", panel=_RUN)] = (
        None
    )
    dtype: Annotated[
        Literal["bf16", "fp8", "fp8_block", "nvfp4"] | None, _run("--dtype NAME", "bf16, fp8, fp8_block or nvfp4.")
    ] = None
    variables: Annotated[
        list[str] | None,
        _run("--set NAME=VALUE", "A variable of the script's environment; may be given several times."),
    ] = None


class LayoutOptions(NamedTuple):
    """Parallel degrees, and the cut into stages."""

    tp: Annotated[int | None, count("--tp", "Tensor-parallel degree.", panel=_CUT)] = None
    pp: Annotated[int | None, count("--pp", "Pipeline-parallel degree.", panel=_CUT)] = None
    vpp: Annotated[int | None, count("--vpp", "Stages per rank (virtual pipeline).", panel=_CUT)] = None
    cp: Annotated[int | None, count("--cp", "Context-parallel degree.", panel=_CUT)] = None
    ep: Annotated[int | None, count("--ep", "Expert-parallel degree.", panel=_CUT)] = None
    layout: Annotated[str | None, _cut("--layout LAYOUT", "Megatron's pipeline layout, e.g. 'Et*2|(t*2|)*34L'.")] = None
    recompute_granularity: Annotated[
        str | None, _cut("--recompute-granularity NAME", "full or selective, as Megatron's.")
    ] = None
    recompute_method: Annotated[str | None, _cut("--recompute-method NAME", "uniform or block, as Megatron's.")] = None
    recompute_num_layers: Annotated[
        int | None, count("--recompute-num-layers", "Blocks of every stage, as Megatron's.", panel=_CUT)
    ] = None
    use_distributed_optimizer: Annotated[
        bool, _cut("--use-distributed-optimizer", "Replicas shard the optimizer's state.")
    ] = False
    partition_method: Annotated[
        str | None, _cut("--partition-method METHOD", "DeepSpeed's: uniform, parameters or type:REGEX.")
    ] = None


class AnswerOptions(NamedTuple):
    """Time of the search, limits that decide the exit code, and the form and place of the answer."""

    time_limit: Annotated[float, _answer("--time-limit -t SECONDS", "For the better plan.")] = 12.0
    other_degrees: Annotated[bool, _answer("--other-degrees", "Try other degrees of every kind, too.")] = False
    max_slower: Annotated[
        float | None, _answer("--max-slower PERCENT", "Exit with 4 if proved slower.", min=0.0, max=1000)
    ] = None
    strict: Annotated[bool, _answer("--strict", "Refuse (exit 2) flags that are not known.")] = False
    json: arg.Json = False
    output: Annotated[str | None, _answer("-o --output FOLDER", "Write question, plans, and flags as files.")] = None


@commands.command(
    "audit",
    cls=folded(
        *("program", "file", "model", "gpu", "devices", "micro_batch_size", "global_batch_size", "tp", "pp", "vpp"),
        *("layout", "time_limit", "other_degrees", "max_slower", "strict", "json", "output"),
    ),
    epilog="Exit codes: 0 runs, 2 not understood, 3 does not fit, 4 too slow.\n\n"
    "Examples:\n\npipeplan audit megatron --model llama3-70b --gpu h100 --tp 4 --pp 8 "
    "--layout 'Et*2|(t*2|)*34,t*3|(t*2|)*3,tL'\n\n"
    "pipeplan audit megatron train.sh --devices 64 --max-slower 5 --json\n\n"
    "pipeplan audit torchtitan llama3_70b.toml --gpu h100 --devices 256",
)
def audit_command(
    *,
    program: Annotated[
        Literal["megatron", "torchtitan", "deepspeed"], argument("PROGRAM", "megatron, torchtitan or deepspeed.")
    ],
    file: Annotated[
        str | None,
        argument(
            "[FILE]",
            "What it is started with: a script with flags, YAML, JSON, TOML, a log, or FILE.py:FUNCTION. Options "
            "overrule it.",
        ),
    ] = None,
    run: AuditedOptions,
    layout: LayoutOptions,
    answer: AnswerOptions,
) -> None:
    """Say how far another program's configuration is from the best.

    No GPU is needed: times come from measured tables, or from rates fitted to them. What is assumed, and what is not
    known, is named.
    """
    from api.auditing.audit_files import audit_files
    from api.auditing.audit_report import render_audit, summarise_audit
    from api.auditing.audited_problem import make_audited_problem
    from api.auditing.configuration_audit import audit
    from api.auditing.configuration_files import read_configuration
    from api.inputs import read_workload, reading, require_limits
    from profiles.configurations.audit_question import AuditQuestion
    from profiles.configurations.known_models import find_sheet

    require_limits(time_limit_s=answer.time_limit)
    with reading():
        given = {name: value for name, value in run._asdict().items() if name != "profile"}
        found = read_configuration(AuditQuestion(program=program, file=file, **{**given, **layout._asdict()}))
        if answer.strict and found.notes.unknown:
            raise InputError(f"not known: {'; '.join(found.notes.unknown)}; leave them out, or --strict")
        measured = None if run.profile is None else read_workload(run.profile).profile
        sheet = find_sheet(run.gpu, memory_gib=run.gpu_memory, network_gb_per_s=run.network_gb_per_s)
        question = make_audited_problem(found, gpu=sheet, measured=measured)
        result = audit(question, time_limit_s=answer.time_limit, others=answer.other_degrees)
    if answer.output is not None:
        write_folder(audit_files(result), Path(answer.output))
    if answer.json:
        report_json(summarise_audit(result))
    else:
        sys.stdout.write(f"{render_audit(result)}\n")
    if result.verdict != "runs":
        raise typer.Exit(Exit.INFEASIBLE)
    if answer.max_slower is not None and result.at_least is not None and 100 * result.at_least > answer.max_slower:
        raise typer.Exit(Exit.GAP_MISSED)


class LaidOutModel(NamedTuple):
    """The model, and what its costs rest on."""

    gpu: Annotated[
        str | None,
        _model("--gpu NAME", "Costs by the achieved rates of a GPU (h100, b200 ...); by multiplications if not given."),
    ] = None
    tensor: Annotated[int, count("--tp", "Tensor-parallel degree, for --gpu.", panel=_MODEL)] = 1
    sequence: Annotated[int | None, count("--seq-length", "Tokens of a sample.", panel=_MODEL)] = None
    predicting: Annotated[
        int | None,
        _model(
            "--mtp-num-layers N", "Layers of multi-token prediction, where it is not the model's number.", min=0, max=8
        ),
    ] = None
    mtp_loss: Annotated[
        Literal["m", "L"] | None,
        _model(
            "--mtp-loss LETTER",
            "The stage that computes logits and loss of multi-token prediction: L in Megatron core to 0.19, m in "
            "published cost tables. Not given: the layout is chosen for the worse of both.",
        ),
    ] = None


@commands.command(
    "layout",
    epilog="Examples:\n\npipeplan layout deepseek-v3 --pp 8\n\n"
    "pipeplan layout config.json --pp 4 --vpp 2 --target torchtitan --json",
)
def layout_command(
    *,
    model: Annotated[str, argument("MODEL", "A known model (llama3-70b, deepseek-v3 ...) or its config.json.")],
    target: Annotated[
        LayoutTarget, _pipeline("--target NAME", f"One of {', '.join(get_args(LayoutTarget))}.")
    ] = "megatron",
    pp: Annotated[int, count("--pp", "Pipeline-parallel degree.", panel=_PIPELINE)] = 8,
    vpp: Annotated[
        int | None, count("--vpp", "Stages per rank (virtual pipeline); decided if not given.", panel=_PIPELINE)
    ] = None,
    microbatches: Annotated[
        int | None,
        count("--microbatches", "Of an iteration and pipeline; eight per rank if not given.", panel=_PIPELINE),
    ] = None,
    basis: LaidOutModel,
    json: arg.Json = False,
) -> None:
    """Write a pipeline layout for another program's recipe.

    It says what is left to gain at most.

    No GPU is needed, and memory is not looked at: `pipeplan audit` does that. The layout goes to standard output.
    """
    import json as documents
    from dataclasses import asdict

    from api.inputs import reading
    from planner.recipes import CostBasis, layout

    with reading():
        found = layout(
            model, pp, virtual=vpp, target=target, microbatches=microbatches, basis=CostBasis(**basis._asdict())
        )
    if json:
        report_json(asdict(found))
        return
    shown = found.value if isinstance(found.value, str) else documents.dumps(found.value)
    sys.stdout.write(f"{shown}\n")
    sys.stderr.write(f"{pp} ranks x {found.virtual}; no layout takes {100 * found.gap:.1f} % less; {found.basis}\n")
