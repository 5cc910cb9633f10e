"""`pipeplan import`: workloads of other tools, and traces of jobs."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, option
from api.cli.options.folded_help import Commands, folded
from api.cli.output import report_json, write_document
from api.failures import InputError

if TYPE_CHECKING:
    from profiles.workload import Workload

commands = Commands()

_composed = partial(option, panel="With aiconfigurator")


class _ComposedOptions(NamedTuple):
    """What is put together from measured tables."""

    model: Annotated[
        str | None,
        _composed(
            "--model NAME",
            "llama3-70b, qwen3-32b, deepseek-v3, gpt-oss-120b, mixtral-8x7b ..., a name on Hugging Face, or the "
            "path of a config.json.",
        ),
    ] = None
    gpu: Annotated[
        str | None, _composed("--gpu TYPE[,TYPE...]", "a100_sxm, h100_sxm, h200_sxm, b200_sxm, gb200 ...")
    ] = None
    tensor_parallel: Annotated[str, _composed("--tensor-parallel N[,N...]", "Devices that share a layer.")] = "1"
    dtype: Annotated[
        Literal["bf16", "fp8", "fp8_block", "nvfp4"],
        _composed("--dtype", "Of matrix products in blocks; fp8_block has a scale per block (MXFP8 and the like)."),
    ] = "bf16"
    microbatch_size: Annotated[
        str, _composed("--microbatch-size -b N[,N...]", "Sequences per microbatch, the profile's own first.")
    ] = "1"
    sequence: Annotated[int, _composed("--sequence N", "Tokens of a sequence.")] = 4096
    hosts: Annotated[
        str | None, _composed("--hosts N[,N...]", "Also make a cluster of so many hosts of each type.")
    ] = None


class _ImportFiles(NamedTuple):
    """What is written, and how it is told."""

    output: arg.Output = None
    json: arg.Json = False


class _ImportedBatch(NamedTuple):
    """What is said about an iteration."""

    num_microbatches: arg.NumMicrobatches = None
    global_batch: arg.GlobalBatch = None

    def over(self, workload: "Workload") -> "Workload":
        """The workload with what is given instead of its own."""
        if self.num_microbatches is not None and self.global_batch is not None:
            raise InputError(
                "--num-microbatches and --global-batch both state the size of an iteration; give one of them"
            )
        if self.num_microbatches is not None:
            return workload.with_microbatches(self.num_microbatches)
        return workload if self.global_batch is None else workload.with_batch(self.global_batch, None)


class _ImportSource(NamedTuple):
    """A workload, or files of another program."""

    source: Annotated[
        str,
        argument(
            "WORKLOAD",
            "A workload (JSON, PipeDream's graph.txt, demo:NAME, or - for standard input), or trace, solution, sailor "
            "or aiconfigurator.",
        ),
    ]
    traces: Annotated[
        list[str] | None,
        argument(
            "[TRACES...]",
            "After trace: .parquet, Megatron's log, the profiler's traces, or folders; after solution: the answer and "
            "the plan; after sailor: profile.json of every GPU, and llm_info.json.",
        ),
    ] = None


def _require_workload(source: str, options: Mapping[str, object]) -> None:
    """Refuse options that only a workload takes: nothing would come of them, in silence."""
    if given := next((name for name, value in options.items() if value is not None), None):
        option = f"--{given.replace('_', '-')} {options[given]}"
        raise InputError(f"{option}: `import {source}` does not take it; leave it out")


@commands.command(
    "import",
    cls=folded(
        *("source", "traces", "model", "gpu", "tensor_parallel", "hosts"),
        *("num_microbatches", "global_batch", "cluster", "output", "json"),
    ),
    epilog="Examples:\n\npipeplan import graph.txt --cluster cluster.json -m 32 -o workload.json\n\n"
    "pipeplan import trace traces/ -o workload.json\n\n"
    "pipeplan import solution answer.sol plan.json -o better.json\n\n"
    "pipeplan import aiconfigurator --model llama3-70b --gpu h100_sxm --hosts 8 --global-batch 128 -o workload.json",
)
def import_command(
    *,
    imported: _ImportSource,
    composed: _ComposedOptions,
    batch: _ImportedBatch,
    cluster: arg.Cluster = None,
    device_type: arg.DeviceType = None,
    files: _ImportFiles,
) -> None:
    """Turn other forms of workloads, and traces, into our documents.

    `import trace FILE` prints a summary of a job's traces; with -o also a profile, a layer per stage. `import solution
    ANSWER PLAN` makes a plan of a solver's answer to `export model PLAN`. `import sailor` takes Sailor's profiles in
    folders MODEL/GPU. `import aiconfigurator` composes a model from measured tables of GPUs.
    """
    from api.inputs import UNKNOWN_SIZE, read_workload, reading, rename_device_type, require_writable
    from profiles.unlikely_figures import unlikely_parts
    from profiles.workload import dump_workload

    source, traces = imported
    output, json = files.output, files.json
    require_writable(output)
    if source == "aiconfigurator":
        _import_tables(composed, batch, cluster=cluster, device_type=device_type, files=files)
        return
    if composed != _ComposedOptions():
        raise InputError(
            f"import {source}: --model, --gpu and their options belong to `import aiconfigurator`; leave them out"
        )
    if traces or source in ("trace", "solution", "sailor"):
        _require_workload(source, {"device_type": device_type, **batch._asdict()})
    if source == "solution":
        _import_solution(traces or [], cluster=cluster, output=output)
        return
    if source == "sailor":
        _import_sailor(traces or [], cluster=cluster, output=output)
        return
    if traces:
        _import_traces(source, traces, cluster=cluster, output=output, is_json=json)
        return
    workload = read_workload(source, cluster=cluster)
    if device_type is not None:
        workload = rename_device_type(workload, device_type)
    with reading():
        workload = batch.over(workload)
    doubts = unlikely_parts(workload.profile, workload.cluster)
    for doubt in (*doubts, *([] if workload.profile.microbatch_size else [UNKNOWN_SIZE])):
        print(f"{source}: {doubt}", file=sys.stderr)
    write_document(dump_workload(workload), output)


def _import_tables(
    composed: _ComposedOptions,
    batch: _ImportedBatch,
    *,
    cluster: str | None,
    device_type: str | None,
    files: _ImportFiles,
) -> None:
    """A model put together from measured tables."""
    from api.composing import compose_workload, render_composition, summarise_composition
    from api.inputs import reading, rename_device_type
    from profiles.load import load_cluster
    from profiles.workload import dump_workload

    if cluster is not None and composed.hosts is not None:
        raise InputError("--cluster and --hosts both name the devices; give one of them")
    workload, figures = compose_workload(**composed._asdict())
    with reading():
        if cluster is not None:
            workload = replace(workload, cluster=load_cluster(cluster))
        if device_type is not None:
            workload = rename_device_type(workload, device_type)
        workload = batch.over(workload)
    write_document(dump_workload(workload), files.output)
    if files.json:
        report_json(summarise_composition(workload, figures, output=files.output))
    else:
        print(render_composition(workload, figures, output=files.output), file=sys.stderr)


def _import_solution(files: list[str], *, cluster: str | None, output: str | None) -> None:
    """A plan from a solver's answer, judged like any other."""
    from api.formatting import render_ms
    from api.inputs import play, read_plan_and_problem, reading
    from planner.document import render_plan
    from planner.planning.complete.complete_files import read_solution
    from planner.verify import verify
    from profiles.documents.strict_json import read_text

    if not 2 <= len(files) <= 3:
        raise InputError(
            "import solution needs the answer and the plan whose model was solved; add its workload if the plan has "
            "none"
        )
    plan, problem = read_plan_and_problem(files[1], files[2] if len(files) == 3 else None, cluster=cluster)
    before = play(problem, plan, source=files[1])
    with reading():
        found = read_solution(problem, before, text=read_text(files[0]), source=files[0])
    verdict = verify(problem, found)
    if verdict.timeline is None or not verdict.passed:
        raise InputError(
            f"{files[0]}: the plan that it stands for breaks a rule: {verdict.violations[0].message}; "
            "give the solver's answer to the model of this plan"
        )
    ours, theirs = render_ms(verdict.timeline.makespan_ns), render_ms(before.makespan_ns)
    print(f"{files[0]}: {ours} ms, passed every rule; {files[1]}: {theirs} ms", file=sys.stderr)
    write_document(render_plan(found), output)


def _import_sailor(files: list[str], *, cluster: str | None, output: str | None) -> None:
    """The profile that Sailor's files state, with a cluster where one is given."""
    from api.inputs import reading
    from profiles.importers.sailor import read_sailor
    from profiles.load import load_cluster
    from profiles.workload import dump_workload

    with reading():
        try:
            workload = read_sailor({path: Path(path).read_bytes() for path in files})
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be read ({error.strerror}); give Sailor's files") from None
        if cluster is not None:
            workload = replace(workload, cluster=load_cluster(cluster))
    write_document(dump_workload(workload), output)


def _import_traces(what: str, traces: list[str], *, cluster: str | None, output: str | None, is_json: bool) -> None:
    """A summary of traces, and the workload that they give where it is wanted."""
    from api.inputs import reading
    from api.reporting.traces import describe_trace, summarise_trace
    from profiles.importers.trace_summary import make_traced_workload, summarise_traces
    from profiles.workload import dump_workload

    if what != "trace":
        raise InputError(f"import {what}: needs one workload; for traces of a job use pipeplan import trace FILE")
    if cluster is not None:
        raise InputError("--cluster: traces name their devices; leave it out")
    with reading():
        summary = summarise_traces([Path(trace) for trace in traces])
        document = dump_workload(make_traced_workload(summary))
    if output is not None:
        write_document(document, output)
    if is_json:
        report_json(summarise_trace(summary))
    else:
        for line in describe_trace(summary):
            print(line, file=sys.stderr if output == "-" else sys.stdout)
