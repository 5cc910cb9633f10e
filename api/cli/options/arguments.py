"""What the commands accept: every argument and option that is more than a word, with its help text."""

from typing import Annotated, Literal

import typer

WHAT = "What may be decided"
"""The heading of options that ask for decisions."""
_HOW = "When to stop"
_OUT = "Output"
_WHERE = "Where"
_HEAL = "When devices are lost"
_COMPOSED = "With aiconfigurator"

Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload file, demo:NAME, or - for standard input.",
        show_default=False,
    ),
]
ImportSource = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload (JSON, PipeDream's graph.txt, demo:NAME, or - for standard input), or trace, solution, sailor "
        "or aiconfigurator.",
        show_default=False,
    ),
]
TraceFiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TRACES...]",
        help="After trace: .parquet, Megatron's log, the profiler's traces, or folders; after solution: the answer and "
        "the plan; after sailor: profile.json of every GPU, and llm_info.json.",
        show_default=False,
    ),
]
ComposedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="llama3-70b, qwen3-32b, deepseek-v3, gpt-oss-120b, mixtral-8x7b ..., a name on Hugging Face, or the path "
        "of a config.json.",
        rich_help_panel=_COMPOSED,
    ),
]
ComposedGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="TYPE[,TYPE...]",
        help="a100_sxm, h100_sxm, h200_sxm, b200_sxm, gb200 ...",
        rich_help_panel=_COMPOSED,
    ),
]
TensorParallel = Annotated[
    str,
    typer.Option(
        "--tensor-parallel",
        metavar="N[,N...]",
        help="Devices that share a layer.",
        rich_help_panel=_COMPOSED,
    ),
]
ProductDtype = Annotated[
    Literal["bf16", "fp8", "fp8_block", "nvfp4"],
    typer.Option(
        "--dtype",
        help="Of matrix products in blocks; fp8_block has a scale per block (MXFP8 and the like).",
        rich_help_panel=_COMPOSED,
    ),
]
ComposedSizes = Annotated[
    str,
    typer.Option(
        "--microbatch-size",
        "-b",
        metavar="N[,N...]",
        help="Sequences per microbatch, the profile's own first.",
        rich_help_panel=_COMPOSED,
    ),
]
SequenceLength = Annotated[
    int, typer.Option("--sequence", metavar="N", help="Tokens of a sequence.", rich_help_panel=_COMPOSED)
]
ComposedHosts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="N[,N...]",
        help="Also make a cluster of so many hosts of each type.",
        rich_help_panel=_COMPOSED,
    ),
]
TraceFile = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="All operations of all ranks (.parquet), or the folder of a trace per rank.",
        show_default=False,
    ),
]
BlocksPerStage = Annotated[
    int,
    typer.Option(
        "--blocks",
        metavar="N",
        min=1,
        max=64,
        help="Equal blocks that a stage is assumed to consist of, since a trace does not show layers.",
    ),
]
Top = Annotated[
    int,
    typer.Option(
        "--top",
        metavar="K",
        min=1,
        max=20,
        help="The best plan and up to K - 1 of other kinds, each verified; -o plan.json also writes plan.2.json, ...",
        rich_help_panel=_OUT,
    ),
]
Pareto = Annotated[
    bool,
    typer.Option(
        "--pareto",
        help="The front of time and money over subsets of the devices; -o plan.json also writes plan.2.json, ...",
        rich_help_panel=_OUT,
    ),
]
SchemaKind = Annotated[
    Literal["workload", "profile", "cluster", "plan"],
    typer.Argument(metavar="DOCUMENT", help="workload, profile, cluster or plan.", show_default=False),
]
Template = Literal["workload", "cluster"]
TemplateKind = Annotated[Template, typer.Argument(metavar="DOCUMENT", help="workload or cluster.", show_default=False)]
TemplateLayers = Annotated[int, typer.Option("--layers", metavar="N", min=1, max=10_000, help="Layers of the model.")]
TemplateDevices = Annotated[int, typer.Option("--devices", metavar="N", min=1, max=1024, help="Devices of the host.")]
TemplateMicrobatches = Annotated[
    int, typer.Option("-m", "--num-microbatches", metavar="N", min=1, help="Microbatches per iteration.")
]
SchemaFile = Annotated[
    str | None, typer.Option("--schema", metavar="FILE", help="Write the schema as well, and name it in the document.")
]
PlansWorkload = Annotated[
    str | None,
    typer.Argument(
        metavar="[WORKLOAD]",
        help="The workload that the plan is for (left out: the one inside the plan).",
        show_default=False,
    ),
]
PlanFile = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan document, or - for standard input.", show_default=False)
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="PLAN... [WORKLOAD]",
        help="Plan documents, then the workload unless --workload gives it; or a plan and the folder of its run.",
        show_default=False,
    ),
]
WorkloadOption = Annotated[
    str | None, typer.Option("--workload", "-w", metavar="WORKLOAD", help="The workload that the plans are for.")
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", "-c", metavar="CLUSTER", help="Another machine: a cluster or workload file."),
]
NumMicrobatches = Annotated[
    int | None,
    typer.Option(
        "--num-microbatches",
        "-m",
        metavar="N",
        help="Microbatches per iteration (left out: decided).",
    ),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        "--global-batch",
        "-g",
        metavar="SAMPLES",
        min=1,
        help="Samples per iteration; size and number of microbatches are decided.",
    ),
]
ChosenSizes = Annotated[
    str | None,
    typer.Option(
        "--microbatch-sizes",
        "-b",
        metavar="N[,N...]",
        help="With a global batch: the sizes to decide among; e.g. 1,2,4.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.", rich_help_panel=_OUT)]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the document goes (- or nothing: standard output).",
        rich_help_panel=_OUT,
    ),
]
OutputFile = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Where the model goes.", rich_help_panel=_OUT)
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Also draw the timeline: one HTML file.", rich_help_panel=_OUT),
]
Trace = Annotated[
    str | None,
    typer.Option("--trace", metavar="FILE", help="Also write a Chrome trace for Perfetto.", rich_help_panel=_OUT),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_OUT)]

TimeLimit = Annotated[
    float, typer.Option("--time-limit", "-t", metavar="SECONDS", help="Wall-clock limit.", rich_help_panel=_HOW)
]
Gap = Annotated[
    float | None,
    typer.Option(
        "--gap",
        metavar="FRACTION",
        help="Stop at this gap to the best possible plan; exit with 4 if it is not reached.",
        rich_help_panel=_HOW,
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of every random choice.", rich_help_panel=_HOW)]

MaxRounds = Annotated[
    int | None,
    typer.Option(
        "--max-rounds",
        metavar="N",
        help="Limit the search by steps instead of time: runs give the same plan.",
        min=0,
        rich_help_panel=_HOW,
    ),
]
PatienceRounds = Annotated[
    int | None,
    typer.Option(
        "--patience",
        metavar="N",
        help="Stop after N steps of the search without a better plan (200 unless --max-rounds is given).",
        min=1,
        rich_help_panel=_HOW,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="Threads that search at once (left out: all cores that this process may use).",
        min=1,
        show_default=False,
        rich_help_panel=_HOW,
    ),
]
MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="NAME",
        help="auto; search: without the complete search; cp-sat or ilp: a solver decides everything at once, for small "
        "problems.",
        rich_help_panel=_HOW,
    ),
]
SolverName = Annotated[
    str | None,
    typer.Option(
        "--solver",
        metavar="NAME",
        help="PuLP's name of the solver of --method ilp: HiGHS unless given, PULP_CBC_CMD, SCIP_PY, GUROBI, ... "
        "as installed.",
        show_default=False,
        rich_help_panel=_HOW,
    ),
]
ModelFormName = Annotated[
    str, typer.Option("--format", "-f", metavar="FORM", help="mps, lp or cp-sat (CP-SAT's text form).")
]
SearchParameters = Annotated[
    list[str] | None,
    typer.Option(
        "--search-param",
        metavar="NAME=VALUE",
        help="What steers the search, as `pipeplan search-params` lists it; repeatable.",
        rich_help_panel=_HOW,
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Let a service (pipeplan serve) do it; its key: PIPEPLAN_KEY.",
        envvar="PIPEPLAN_SERVER",
        show_default=False,
        show_envvar=False,
    ),
]


Objective = Annotated[
    Literal["makespan", "span", "cost"] | None,
    typer.Option(
        "--objective",
        metavar="WHAT",
        help="makespan: end of the iteration; span: longest busy stretch of a device; cost: makespan times the prices "
        "of the devices used.",
        rich_help_panel=WHAT,
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        "--deadline",
        metavar="MS",
        help="With --objective cost or --pareto: the iteration takes so many milliseconds at most.",
        rich_help_panel=WHAT,
    ),
]
MaxStages = Annotated[
    int | None,
    typer.Option("--max-stages-per-device", metavar="N", help="1: one stage per device.", rich_help_panel=WHAT),
]
MaxReplicas = Annotated[
    int | None,
    typer.Option("--max-replicas", metavar="N", help="Largest number of replicas of a stage.", rich_help_panel=WHAT),
]
NoReplication = Annotated[
    bool, typer.Option("--no-replication", help="The same as --max-replicas 1.", rich_help_panel=WHAT)
]
NoSplit = Annotated[
    bool,
    typer.Option("--no-split-backward", help="Compute input and weight gradients in one action.", rich_help_panel=WHAT),
]
NoUneven = Annotated[
    bool, typer.Option("--no-uneven-replication", help="All stages have equally many replicas.", rich_help_panel=WHAT)
]
NoSkips = Annotated[
    bool, typer.Option("--no-skip-edges", help="Tensors pass between neighbouring stages only.", rich_help_panel=WHAT)
]
NoIdle = Annotated[bool, typer.Option("--no-idle-devices", help="Every device holds a stage.", rich_help_panel=WHAT)]
DecideAll = Annotated[
    bool,
    typer.Option(
        "--decide-all",
        help="Decide all that the profile has costs for: devices per stage replica, up to 12 stages per device, "
        "recomputation per layer and microbatch, sharded optimizer.",
        rich_help_panel=WHAT,
    ),
]
ReceiveBuffers = Annotated[
    int | None,
    typer.Option(
        "--receive-buffers", metavar="N", help="Tensors that may wait at each input of a stage; 0 counts none.",
        rich_help_panel=WHAT,
    ),
]  # fmt: skip
Synchronisation = Annotated[
    Literal["after", "bucketed"] | None,
    typer.Option(
        "--synchronisation",
        metavar="HOW",
        help="Reduce gradients of replicas beside other transfers (after), or in one queue with them (bucketed).",
        rich_help_panel=WHAT,
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="LAYER=DEVICE", help="Put a layer on this device; repeatable.", rich_help_panel=WHAT),
]
TargetName = Annotated[
    Literal["executor", "torch", "torchtitan", "megatron", "deepspeed", "deepspeed-dualpipev"] | None,
    typer.Option(
        "--target",
        metavar="PROGRAM",
        help="Plan only what it can run: executor (torchrun), torch, torchtitan, megatron, deepspeed, "
        "deepspeed-dualpipev (see `pipeplan targets`).",
        rich_help_panel=WHAT,
    ),
]

KeepSplit = Annotated[
    bool,
    typer.Option(
        "--keep-split",
        help="Keep input and weight gradients apart, as planned, instead of merging neighbours.",
        rich_help_panel=_OUT,
    ),
]
Communication = Annotated[
    bool,
    typer.Option(
        "--communication",
        help="With sends, receives and reductions, for format=compute_comms; needs torch.",
        rich_help_panel=_OUT,
    ),
]
OpenIt = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]
AsText = Annotated[
    bool,
    typer.Option("--text", help="Draw it as text, as wide as the terminal, on standard output or to the file of -o."),
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="PLAN", help="A second plan, drawn below on the same scale.")
]
Baselines = Annotated[bool, typer.Option("--baselines", help="Also play what others would have done.")]
Calibrate = Annotated[
    str | None,
    typer.Option(
        "--calibrate",
        metavar="PROFILE",
        help="Write this profile or workload, with the figures of the run, to the file of -o.",
        rich_help_panel=_OUT,
    ),
]
WarmUp = Annotated[
    int | None,
    typer.Option("--warm-up", metavar="N", help="Iterations of the run that do not count (default 1).", min=0),
]
DeviceType = Annotated[
    str | None,
    typer.Option("--device-type", metavar="TYPE", help="The device type that the figures were measured on."),
]
Certificate = Annotated[
    bool,
    typer.Option("--certificate", help="Also derive bound, gap, status and baselines again, without a solver."),
]
WithBaselines = Annotated[
    bool | None,
    typer.Option(
        "--baselines/--no-baselines",
        help="Also play the baselines again (left out: where that is cheap); with --certificate.",
        show_default=False,
    ),
]
ShadowPrices = Annotated[
    bool,
    typer.Option("--shadow-prices", help="Also say what more memory, faster links or another device are worth."),
]
Question = Annotated[
    str,
    typer.Argument(
        metavar="PLAN|WORKLOAD",
        help="A plan, or a workload (a file, demo:NAME, or - for standard input) that is planned first.",
        show_default=False,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        metavar="FIELD=VALUE",
        help="devices=N more (or -N), memory_bytes=8GiB more per device (or -8GiB), link_speed=FACTOR, "
        "num_microbatches=N, lost=DEVICE or HOST; repeatable.",
    ),
]
PerKind = Annotated[
    int,
    typer.Option("--per-kind", metavar="N", help="Devices and links asked about, the fullest and busiest.", min=1),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")]

Program = Annotated[
    list[str],
    typer.Argument(
        metavar="-- PROGRAM...",
        help="What every process runs: train.py ARGUMENTS, or -m MODULE ARGUMENTS.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be written and run, and do neither.", rich_help_panel=_OUT)
]
JobName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the job; default: plan and hash.")]
JobFolder = Annotated[
    str | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="Where plan, scripts and log stand, as all hosts see it; default: pipeplan-jobs/NAME.",
        rich_help_panel=_OUT,
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="PLANNED=REAL", help="The real name of a host; repeatable.", rich_help_panel=_WHERE),
]
Python = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="The interpreter on the hosts.", rich_help_panel=_WHERE)
]
OnProcessors = Annotated[
    bool,
    typer.Option("--processors", help="Run on processors, even where there are accelerators.", rich_help_panel=_WHERE),
]
IsHere = Annotated[
    bool,
    typer.Option(
        "--here", help="Run all processes on this machine instead of the plan's hosts.", rich_help_panel=_WHERE
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master-addr", metavar="ADDRESS", help="Address of the first host; default: its name.", rich_help_panel=_WHERE
    ),
]
MasterPort = Annotated[
    int, typer.Option("--master-port", metavar="PORT", help="Where several hosts meet.", rich_help_panel=_WHERE)
]
PlanUrl = Annotated[
    str | None,
    typer.Option(
        "--plan-url",
        metavar="URL",
        help="Where every process fetches the plan, instead of a file.",
        rich_help_panel=_WHERE,
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it running; see `pipeplan job`.")]
IsHealed = Annotated[
    bool,
    typer.Option(
        "--heal",
        help="Stay with the job: when a device is lost, plan for the others and continue from the newest checkpoint.",
        rich_help_panel=_HEAL,
    ),
]
Heals = Annotated[
    int, typer.Option("--heals", metavar="N", help="How many losses are healed.", min=0, rich_help_panel=_HEAL)
]
HealTime = Annotated[
    float,
    typer.Option("--heal-time-limit", metavar="SECONDS", help="Time for each new plan.", rich_help_panel=_HEAL),
]
StorageRate = Annotated[
    float,
    typer.Option(
        "--storage-rate",
        metavar="GB/S",
        help="Speed at which all devices together read checkpoints: part of the cost of a new plan.",
        rich_help_panel=_HEAL,
    ),
]
WithGpus = Annotated[
    bool,
    typer.Option("--gpus", help="Ask for as many accelerators per host as the plan needs.", rich_help_panel=_WHERE),
]
SbatchOptions = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="OPTION", help="A further option of sbatch, e.g. --sbatch=--time=2:00:00."),
]
SkyAccelerators = Annotated[
    str | None,
    typer.Option("--accelerators", metavar="NAME:N", help="Per node, e.g. H100:8; without them, processors."),
]
SkyInfra = Annotated[
    str | None, typer.Option("--infra", metavar="INFRA", help="Cloud, region and zone, e.g. aws/us-east-1.")
]
SkyImage = Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="docker:IMAGE, or a machine image.")]
SkyWorkdir = Annotated[
    str | None,
    typer.Option("--workdir", metavar="FOLDER", help="Local folder that every node gets, and starts the program in."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="URL", help="Ray's dashboard, e.g. http://head:8265; default: RAY_API_SERVER_ADDRESS."
    ),
]
JobPlace = Annotated[
    str, typer.Argument(metavar="FOLDER", help="The folder that `pipeplan launch` named.", show_default=False)
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new lines.")]

ExportFolder = Annotated[
    str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the files go.", rich_help_panel=_OUT)
]

Timings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TIMINGS...]",
        help="Folders of the executor's --trace, or traces of torch's profiler.",
        show_default=False,
    ),
]
Lost = Annotated[
    list[str] | None, typer.Option("--lost", metavar="NAME", help="A device or host that is gone; repeatable.")
]
RecipeFile = Annotated[
    str | None,
    typer.Option("--recipe", metavar="FILE", help="Also write which state moves where (JSON).", rich_help_panel=_OUT),
]
Notify = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="URL",
        help="The plan's URL at a service, which reports drift and losses to webhooks; key: PIPEPLAN_KEY.",
        envvar="PIPEPLAN_NOTIFY",
        show_default=False,
        show_envvar=False,
    ),
]
StepsLeft = Annotated[
    int,
    typer.Option(
        "--steps-left",
        metavar="N",
        help="Iterations under a new plan, over which it has to earn what moves for it.",
        min=1,
        rich_help_panel=_HOW,
    ),
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", metavar="FRACTION", help="Differences up to this fraction count as none.", min=0)
]

DiscoverySource = Annotated[
    Literal["slurm", "kubernetes", "nvidia-smi", "hostfile"],
    typer.Argument(
        metavar="SOURCE",
        help="What describes the machine: slurm, kubernetes, nvidia-smi (this machine) or hostfile.",
        show_default=False,
    ),
]
DiscoveryFile = Annotated[
    str | None, typer.Option("--file", metavar="FILE", help="Its answer, saved on another machine; or the hostfile.")
]
ClusterName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="What the cluster is called.")]
AcceleratorGib = Annotated[
    float | None,
    typer.Option(
        "--accelerator-gib", metavar="N", help="Memory per accelerator, where the source does not state it.", min=0
    ),
]
SlotType = Annotated[str, typer.Option("--type", metavar="TYPE", help="Device type of a hostfile's slots.")]
CountsProcessors = Annotated[
    bool, typer.Option("--cpus", help="Hosts without accelerators are devices as well; otherwise they are left out.")
]
WorkersPerHost = Annotated[
    int | None,
    typer.Option(
        "--workers-per-host",
        metavar="N",
        help="With --cpus: devices of a host without accelerators; default 1.",
        min=1,
        show_default=False,
    ),
]
ToleratedTaints = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerate",
        metavar="KEY",
        help="A taint of Kubernetes' nodes that the job tolerates; repeatable.",
        show_default=False,
    ),
]
HostSpeed = Annotated[
    float, typer.Option("--host-gbps", metavar="GB/S", help="Nominal, between a device and its host.", min=0.001)
]
NetworkSpeed = Annotated[
    float, typer.Option("--network-gbps", metavar="GB/S", help="Nominal, between a host and the network.", min=0.001)
]
Oversubscription = Annotated[
    float,
    typer.Option(
        "--oversubscription",
        metavar="N",
        help="How many times the hosts below a switch exceed its link upwards.",
        min=0.001,
    ),
]
TopologyFile = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="FILE",
        help="The answer of `scontrol show topology` (topology.conf and .yaml as well) or `nvidia-smi topo -m`.",
    ),
]
TopologyLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--topology-label",
        metavar="KEY",
        help="A label of Kubernetes' nodes that names a switch; the outermost first, repeatable.",
        show_default=False,
    ),
]
IsFlat = Annotated[
    bool, typer.Option("--flat", help="Join all hosts by one switch, whatever the source says of others.")
]
LinkFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Tables of the link benchmark (`pipeplan profile --links`), or nccl-tests' output.",
        show_default=False,
    ),
]
MeasuredLinks = Annotated[
    str | None,
    typer.Option(
        "--links",
        metavar="FILE",
        help="Tables of the link benchmark (`pipeplan profile --links`), or nccl-tests' output: measured links instead "
        "of nominal ones.",
        show_default=False,
    ),
]
_MEASURED = "What is measured"
_MACHINE = "On what"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="module:factory, or a family of models: gpt:layers=4,width=256.",
        show_default=False,
    ),
]
MicrobatchSizes = Annotated[
    str | None,
    typer.Option(
        "--microbatch-size",
        "-b",
        metavar="N[,N...]",
        help="Samples per microbatch, the profile's own first (left out: batch / -m, or doublings).",
        rich_help_panel=_MEASURED,
    ),
]
MeasuredBatch = Annotated[
    int | None,
    typer.Option(
        "--global-batch",
        "-g",
        metavar="SAMPLES",
        min=1,
        help="Samples per iteration; `plan` decides the microbatches.",
        rich_help_panel=_MEASURED,
    ),
]
Widths = Annotated[
    str,
    typer.Option("--widths", metavar="N[,N...]", help="CPU threads per layer, e.g. 1,2.", rich_help_panel=_MEASURED),
]
GroupWidths = Annotated[
    str | None,
    typer.Option(
        "--group-widths",
        metavar="N[,N...]",
        help="Processes that run each layer together, tensor-parallel, e.g. 2.",
        rich_help_panel=_MEASURED,
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where layers run.", rich_help_panel=_MACHINE)
]
NumDevices = Annotated[
    int | None,
    typer.Option(
        "--devices", metavar="N", help="Devices (left out: all GPUs, or one per core).",
        rich_help_panel=_MACHINE,
    ),
]  # fmt: skip
MemoryGib = Annotated[
    float | None,
    typer.Option(
        "--memory", metavar="GIB", help="Memory of a device; layers that need more are estimated.",
        rich_help_panel=_MACHINE,
    ),
]  # fmt: skip
Dtype = Annotated[
    Literal["fp32", "bf16", "fp16"] | None,
    typer.Option("--dtype", help="Bring weights and activations into this type.", rich_help_panel=_MEASURED),
]
Estimate = Annotated[
    str | None,
    typer.Option(
        "--estimate", metavar="TYPE", help="Run nothing: estimate for A100, H100, H200, B200, GB200, A10 or L4.",
        rich_help_panel=_MACHINE,
    ),
]  # fmt: skip
Clock = Annotated[
    Literal["thread", "wall"],
    typer.Option("--clock", help="On a CPU at width 1: the thread's own time, or all.", rich_help_panel=_MEASURED),
]
Repetitions = Annotated[
    int, typer.Option("--repetitions", metavar="N", help="Per layer, after the warm-up.", rich_help_panel=_HOW)
]
SecondsPerLayer = Annotated[
    float,
    typer.Option("--seconds", metavar="S", help="Per layer: then three repetitions are enough.", rich_help_panel=_HOW),
]
Attempts = Annotated[
    int,
    typer.Option(
        "--attempts",
        metavar="N",
        help="Repeat all timings up to N times, until the figures and a short run are within 10 % of each other.",
        rich_help_panel=_HOW,
    ),
]
NoRecompute = Annotated[
    bool, typer.Option("--no-recompute", help="Leave recomputation out.", rich_help_panel=_MEASURED)
]
EachLayer = Annotated[
    bool, typer.Option("--each-layer", help="Measure layers that are alike one by one.", rich_help_panel=_MEASURED)
]
Alone = Annotated[
    bool,
    typer.Option(
        "--alone",
        help="Time layers one by one on an idle host, not as run beside the other devices of the host.",
        rich_help_panel=_HOW,
    ),
]
WholeBackward = Annotated[
    bool,
    typer.Option(
        "--no-split", help="For plans with whole backward passes: no weight gradient waits.", rich_help_panel=_MEASURED
    ),
]
NoLinks = Annotated[
    bool, typer.Option("--no-links", help="Measure no links, write no cluster.", rich_help_panel=_MACHINE)
]
Links = Annotated[
    str | None,
    typer.Option(
        "--links", metavar="FILE", help="Tables of links, read or, if there are none, written.",
        rich_help_panel=_MACHINE,
    ),
]  # fmt: skip
JournalFile = Annotated[
    str | None,
    typer.Option(
        "--journal",
        metavar="FILE",
        help="Measurements are saved here at once, and an interrupted run continues from them; left out: FILE.partial.",
        rich_help_panel=_OUT,
    ),
]

TuneWorkload = Annotated[
    str | None,
    typer.Option(
        "--workload", "-w", metavar="FILE", help="Measured before; left out: the model is profiled first.",
        rich_help_panel=_MACHINE,
    ),
]  # fmt: skip
TuneRuns = Annotated[
    int, typer.Option("--runs", metavar="N", help="Runs of every plan, in turns, per round.", rich_help_panel=_HOW)
]
TuneSteps = Annotated[
    int | None,
    typer.Option(
        "--steps", metavar="N", help="Iterations of a run; left out: a few seconds of them.", rich_help_panel=_HOW
    ),
]
Within = Annotated[
    float,
    typer.Option(
        "--within", metavar="PERCENT", help="Prediction and run agree if they differ by no more.", rich_help_panel=_HOW
    ),
]
