"""`pipeplan audit` and `pipeplan layout`: configurations of other programs, judged and made."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from api.cli.options import arguments as arg
from api.cli.options import audit_answer_arguments as answered
from api.cli.options import audit_arguments as audited
from api.cli.options import layout_arguments as chosen
from api.cli.options.folded_help import Commands, folded
from api.cli.output import report_json
from api.failures import Exit, InputError

if TYPE_CHECKING:
    from api.auditing.configuration_audit import Audit

commands = Commands()


class AuditedOptions(NamedTuple):
    """The audited program, its model and its devices."""

    model: audited.AuditedModel = None
    gpu: audited.AuditedGpu = None
    gpu_memory: audited.MemoryGb = None
    profile: audited.MeasuredProfile = None
    devices: audited.AuditedDevices = None
    seq_length: audited.AuditedSequence = None
    micro_batch_size: audited.AuditedMicro = None
    global_batch_size: audited.AuditedBatch = None
    dtype: audited.AuditedDtype = None
    variables: audited.SetVariables = None


class LayoutOptions(NamedTuple):
    """Parallel degrees, and the cut into stages."""

    tp: audited.Tensor = None
    pp: audited.Pipeline = None
    vpp: audited.Virtual = None
    cp: audited.Context = None
    ep: audited.Expert = None
    layout: audited.Layout = None
    recompute_granularity: audited.RecomputeGranularity = None
    recompute_method: audited.RecomputeMethod = None
    recompute_num_layers: audited.RecomputeLayers = None
    use_distributed_optimizer: audited.ShardOptimizer = False
    partition_method: audited.PartitionMethod = None


class AnswerOptions(NamedTuple):
    """Time of the search, limits that decide the exit code, and the form and place of the answer."""

    time_limit: answered.AuditTime = 12.0
    other_degrees: answered.OtherDegrees = False
    max_slower: answered.MaxSlower = None
    strict: answered.Strict = False
    json: arg.Json = False
    output: answered.AuditFolder = None


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
    program: audited.Program,
    file: audited.ConfigurationFile = None,
    run: AuditedOptions,
    layout: LayoutOptions,
    answer: AnswerOptions,
) -> None:
    """Say how far another program's configuration is from the best.

    No GPU is needed: times come from measured tables, or from rates fitted to them. What is assumed, and what is not
    known, is named.
    """
    from api.auditing.audit_report import render_audit, summarise_audit
    from api.auditing.audited_problem import make_audited_problem
    from api.auditing.configuration_audit import audit
    from api.auditing.configuration_files import ASSUMED_GPU, read_configuration
    from api.inputs import read_workload, reading, require_limits
    from profiles.configurations.audit_question import AuditQuestion

    require_limits(time_limit_s=answer.time_limit)
    with reading():
        given = {name: value for name, value in run._asdict().items() if name != "profile"}
        found = read_configuration(AuditQuestion(program=program, file=file, **{**given, **layout._asdict()}))
        if answer.strict and found.notes.unknown:
            raise InputError(f"not known: {'; '.join(found.notes.unknown)}; leave them out, or --strict")
        memory = None if run.gpu_memory is None else int(run.gpu_memory * 2**30)
        measured = None if run.profile is None else read_workload(run.profile).profile
        question = make_audited_problem(found, gpu=run.gpu or ASSUMED_GPU, memory_bytes=memory, measured=measured)
        result = audit(question, time_limit_s=answer.time_limit, others=answer.other_degrees, memory_bytes=memory)
    if answer.output is not None:
        _write(result, Path(answer.output))
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

    gpu: chosen.LayoutGpu = None
    tensor: chosen.LayoutTensor = 1
    sequence: chosen.LayoutSequence = None
    predicting: chosen.LayoutPredicting = None
    mtp_loss: chosen.MtpLosses = None


@commands.command(
    "layout",
    epilog="Examples:\n\npipeplan layout deepseek-v3 --pp 8\n\n"
    "pipeplan layout config.json --pp 4 --vpp 2 --target torchtitan --json",
)
def layout_command(
    *,
    model: chosen.LayoutModel,
    target: chosen.LayoutTargets = "megatron",
    pp: chosen.LayoutRanks = 8,
    vpp: chosen.LayoutChunks = None,
    microbatches: chosen.LayoutMicrobatches = None,
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


def _write(result: "Audit", folder: Path) -> None:
    from api.auditing.audit_files import audit_files
    from profiles.documents.whole_file import write_whole

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in audit_files(result).items():
            write_whole(folder / name, text)
    except OSError as error:
        raise InputError(f"-o {folder}: cannot be written ({error.strerror}); choose another place") from None
