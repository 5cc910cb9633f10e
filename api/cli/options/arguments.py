"""What the commands accept: every argument and option that is more than a word, with its help text."""

from typing import Annotated, Literal, get_args

from api.cli.options.declare import argument, option
from planner import option_values

WHAT = "What may be decided"
"""The heading of options that ask for decisions."""
_HOW = "When to stop"
_OUT = "Output"
_WHERE = "Where"
_HEAL = "When devices are lost"
_COMPOSED = "With aiconfigurator"

Workload = Annotated[str, argument("WORKLOAD", "A workload file, demo:NAME, or - for standard input.")]
ImportSource = Annotated[
    str,
    argument(
        "WORKLOAD",
        "A workload (JSON, PipeDream's graph.txt, demo:NAME, or - for standard input), or trace, solution, sailor or "
        "aiconfigurator.",
    ),
]
TraceFiles = Annotated[
    list[str] | None,
    argument(
        "[TRACES...]",
        "After trace: .parquet, Megatron's log, the profiler's traces, or folders; after solution: the answer and the "
        "plan; after sailor: profile.json of every GPU, and llm_info.json.",
    ),
]
ComposedModel = Annotated[
    str | None,
    option(
        "--model NAME",
        "llama3-70b, qwen3-32b, deepseek-v3, gpt-oss-120b, mixtral-8x7b ..., a name on Hugging Face, or the path of a "
        "config.json.",
        panel=_COMPOSED,
    ),
]
ComposedGpu = Annotated[
    str | None, option("--gpu TYPE[,TYPE...]", "a100_sxm, h100_sxm, h200_sxm, b200_sxm, gb200 ...", panel=_COMPOSED)
]
TensorParallel = Annotated[str, option("--tensor-parallel N[,N...]", "Devices that share a layer.", panel=_COMPOSED)]
ProductDtype = Annotated[
    Literal["bf16", "fp8", "fp8_block", "nvfp4"],
    option(
        "--dtype",
        "Of matrix products in blocks; fp8_block has a scale per block (MXFP8 and the like).",
        panel=_COMPOSED,
    ),
]
ComposedSizes = Annotated[
    str, option("--microbatch-size -b N[,N...]", "Sequences per microbatch, the profile's own first.", panel=_COMPOSED)
]
SequenceLength = Annotated[int, option("--sequence N", "Tokens of a sequence.", panel=_COMPOSED)]
ComposedHosts = Annotated[
    str | None, option("--hosts N[,N...]", "Also make a cluster of so many hosts of each type.", panel=_COMPOSED)
]
TraceFile = Annotated[
    str, argument("TRACE", "All operations of all ranks (.parquet), or the folder of a trace per rank.")
]
BlocksPerStage = Annotated[
    int,
    option(
        "--blocks N",
        "Equal blocks that a stage is assumed to consist of, since a trace does not show layers.",
        min=1,
        max=64,
    ),
]
Top = Annotated[
    int,
    option(
        "--top K",
        "The best plan and up to K - 1 of other kinds, each verified; -o plan.json also writes plan.2.json, ...",
        panel=_OUT,
        min=1,
        max=20,
    ),
]
SchemaKind = Annotated[option_values.DocumentKind, argument("DOCUMENT", "workload, profile, cluster or plan.")]
Template = Literal["workload", "cluster"]
TemplateKind = Annotated[Template, argument("DOCUMENT", "workload or cluster.")]
TemplateLayers = Annotated[int, option("--layers N", "Layers of the model.", min=1, max=10_000)]
TemplateDevices = Annotated[int, option("--devices N", "Devices of the host.", min=1, max=1024)]
TemplateMicrobatches = Annotated[int, option("-m --num-microbatches N", "Microbatches per iteration.", min=1)]
SchemaFile = Annotated[str | None, option("--schema FILE", "Write the schema as well, and name it in the document.")]
PlansWorkload = Annotated[
    str | None, argument("[WORKLOAD]", "The workload that the plan is for (left out: the one inside the plan).")
]
PlanFile = Annotated[str, argument("PLAN", "A plan document, or - for standard input.")]
Files = Annotated[
    list[str],
    argument(
        "PLAN... [WORKLOAD]",
        "Plan documents, then the workload unless --workload gives it; or a plan and the folder of its run.",
    ),
]
WorkloadOption = Annotated[str | None, option("--workload -w WORKLOAD", "The workload that the plans are for.")]
Cluster = Annotated[str | None, option("--cluster -c CLUSTER", "Another machine: a cluster or workload file.")]
NumMicrobatches = Annotated[
    int | None, option("--num-microbatches -m N", "Microbatches per iteration (left out: decided).")
]
GlobalBatch = Annotated[
    int | None,
    option("--global-batch -g SAMPLES", "Samples per iteration; size and number of microbatches are decided.", min=1),
]
ChosenSizes = Annotated[
    str | None, option("--microbatch-sizes -b N[,N...]", "With a global batch: the sizes to decide among; e.g. 1,2,4.")
]
Json = Annotated[bool, option("--json", "Write JSON.", panel=_OUT)]
Output = Annotated[
    str | None, option("--output -o FILE", "Where the document goes (- or nothing: standard output).", panel=_OUT)
]
OutputFile = Annotated[str, option("--output -o FILE", "Where the model goes.", panel=_OUT)]
Html = Annotated[str | None, option("--html FILE", "Also draw the timeline: one HTML file.", panel=_OUT)]
Trace = Annotated[str | None, option("--trace FILE", "Also write a Chrome trace for Perfetto.", panel=_OUT)]
Quiet = Annotated[bool, option("--quiet -q", "Print errors only.", panel=_OUT)]

TimeLimit = Annotated[float, option("--time-limit -t SECONDS", "Wall-clock limit.", panel=_HOW)]
Gap = Annotated[
    float | None,
    option(
        "--gap FRACTION", "Stop at this gap to the best possible plan; exit with 4 if it is not reached.", panel=_HOW
    ),
]
Seed = Annotated[int, option("--seed N", "Seed of every random choice.", panel=_HOW)]

MaxRounds = Annotated[
    int | None,
    option("--max-rounds N", "Limit the search by steps instead of time: runs give the same plan.", panel=_HOW, min=0),
]
PatienceRounds = Annotated[
    int | None,
    option(
        "--patience N",
        "Stop after N steps of the search without a better plan (200 unless --max-rounds is given).",
        panel=_HOW,
        min=1,
    ),
]
Threads = Annotated[
    int | None,
    option(
        "--threads N", "Threads that search at once (left out: all cores that this process may use).", panel=_HOW, min=1
    ),
]
MethodName = Annotated[
    str,
    option(
        "--method NAME",
        "auto; search: without the complete search; cp-sat or ilp: a solver decides everything at once, for small "
        "problems.",
        panel=_HOW,
    ),
]
SolverName = Annotated[
    str | None,
    option(
        "--solver NAME",
        "PuLP's name of the solver of --method ilp: HiGHS unless given, PULP_CBC_CMD, SCIP_PY, GUROBI, ... as "
        "installed.",
        panel=_HOW,
    ),
]
ModelFormName = Annotated[str, option("--format -f FORM", "mps, lp or cp-sat (CP-SAT's text form).")]
SearchParameters = Annotated[
    list[str] | None,
    option(
        "--search-param NAME=VALUE",
        "What steers the search, as `pipeplan search-params` lists it; repeatable.",
        panel=_HOW,
    ),
]
Server = Annotated[
    str | None,
    option("--server URL", "Let a service (pipeplan serve) do it; its key: PIPEPLAN_KEY.", envvar="PIPEPLAN_SERVER"),
]


Objective = Annotated[
    option_values.Objective | None,
    option(
        "--objective WHAT",
        "makespan: end of the iteration; span: longest busy stretch of a device; cost: makespan times the prices of "
        "the devices used.",
        panel=WHAT,
    ),
]
Deadline = Annotated[
    float | None,
    option(
        "--deadline MS",
        "With --objective cost: the iteration takes so many milliseconds at most.",
        panel=WHAT,
    ),
]
MaxStages = Annotated[int | None, option("--max-stages-per-device N", "1: one stage per device.", panel=WHAT)]
MaxReplicas = Annotated[int | None, option("--max-replicas N", "Largest number of replicas of a stage.", panel=WHAT)]
NoReplication = Annotated[bool, option("--no-replication", "The same as --max-replicas 1.", panel=WHAT)]
NoSplit = Annotated[
    bool, option("--no-split-backward", "Compute input and weight gradients in one action.", panel=WHAT)
]
NoUneven = Annotated[bool, option("--no-uneven-replication", "All stages have equally many replicas.", panel=WHAT)]
NoSkips = Annotated[bool, option("--no-skip-edges", "Tensors pass between neighbouring stages only.", panel=WHAT)]
NoIdle = Annotated[bool, option("--no-idle-devices", "Every device holds a stage.", panel=WHAT)]
DecideAll = Annotated[
    bool,
    option(
        "--decide-all",
        "Decide all that the profile has costs for: devices per stage replica, up to 12 stages per device, "
        "recomputation per layer and microbatch, sharded optimizer.",
        panel=WHAT,
    ),
]
ReceiveBuffers = Annotated[
    int | None,
    option("--receive-buffers N", "Tensors that may wait at each input of a stage; 0 counts none.", panel=WHAT),
]
Synchronisation = Annotated[
    option_values.Synchronisation | None,
    option(
        "--synchronisation HOW",
        "Reduce gradients of replicas beside other transfers (after), or in one queue with them (bucketed).",
        panel=WHAT,
    ),
]
Pins = Annotated[list[str] | None, option("--pin LAYER=DEVICE", "Put a layer on this device; repeatable.", panel=WHAT)]
TargetName = Annotated[
    option_values.TargetName | None,
    option(
        "--target PROGRAM",
        f"Plan only what it can run: {', '.join(get_args(option_values.TargetName))} (see `pipeplan targets`).",
        panel=WHAT,
    ),
]

KeepSplit = Annotated[
    bool,
    option(
        "--keep-split", "Keep input and weight gradients apart, as planned, instead of merging neighbours.", panel=_OUT
    ),
]
OpenIt = Annotated[bool, option("--open", "Show it in the browser.")]
AsText = Annotated[
    bool, option("--text", "Draw it as text, as wide as the terminal, on standard output or to the file of -o.")
]
Against = Annotated[str | None, option("--against PLAN", "A second plan, drawn below on the same scale.")]
Baselines = Annotated[bool, option("--baselines", "Also play what others would have done.")]
Calibrate = Annotated[
    str | None,
    option(
        "--calibrate PROFILE",
        "Write this profile or workload, with the figures of the run, to the file of -o.",
        panel=_OUT,
    ),
]
WarmUp = Annotated[int | None, option("--warm-up N", "Iterations of the run that do not count (default 1).", min=0)]
DeviceType = Annotated[str | None, option("--device-type TYPE", "The device type that the figures were measured on.")]
Certificate = Annotated[
    bool, option("--certificate", "Also derive bound, gap, status and baselines again, without a solver.")
]
WithBaselines = Annotated[
    bool | None,
    option(
        "--baselines/--no-baselines",
        "Also play the baselines again (left out: where that is cheap); with --certificate.",
    ),
]
ShadowPrices = Annotated[
    bool, option("--shadow-prices", "Also say what more memory, faster links or another device are worth.")
]
Question = Annotated[
    str,
    argument(
        "PLAN|WORKLOAD", "A plan, or a workload (a file, demo:NAME, or - for standard input) that is planned first."
    ),
]
Changes = Annotated[
    list[str] | None,
    option(
        "--change FIELD=VALUE",
        "devices=N more (or -N), memory_bytes=8GiB more per device (or -8GiB), link_speed=FACTOR, num_microbatches=N, "
        "lost=DEVICE or HOST; repeatable.",
    ),
]
PerKind = Annotated[int, option("--per-kind N", "Devices and links asked about, the fullest and busiest.", min=1)]
Debug = Annotated[bool, option("--debug", "Show the traceback of an internal error.")]

Program = Annotated[
    list[str], argument("-- PROGRAM...", "What every process runs: train.py ARGUMENTS, or -m MODULE ARGUMENTS.")
]
DryRun = Annotated[bool, option("--dry-run", "Print what would be written and run, and do neither.", panel=_OUT)]
JobName = Annotated[str | None, option("--name NAME", "Name of the job; default: plan and hash.")]
JobFolder = Annotated[
    str | None,
    option(
        "--folder FOLDER",
        "Where plan, scripts and log stand, as all hosts see it; default: pipeplan-jobs/NAME.",
        panel=_OUT,
    ),
]
Hosts = Annotated[list[str] | None, option("--host PLANNED=REAL", "The real name of a host; repeatable.", panel=_WHERE)]
Python = Annotated[str | None, option("--python PATH", "The interpreter on the hosts.", panel=_WHERE)]
OnProcessors = Annotated[
    bool, option("--processors", "Run on processors, even where there are accelerators.", panel=_WHERE)
]
IsHere = Annotated[
    bool, option("--here", "Run all processes on this machine instead of the plan's hosts.", panel=_WHERE)
]
Master = Annotated[
    str | None, option("--master-addr ADDRESS", "Address of the first host; default: its name.", panel=_WHERE)
]
MasterPort = Annotated[int, option("--master-port PORT", "Where several hosts meet.", panel=_WHERE)]
PlanUrl = Annotated[
    str | None, option("--plan-url URL", "Where every process fetches the plan, instead of a file.", panel=_WHERE)
]
Detach = Annotated[bool, option("--detach", "Leave it running; see `pipeplan job`.")]
IsHealed = Annotated[
    bool,
    option(
        "--heal",
        "Stay with the job: when a device is lost, plan for the others and continue from the newest checkpoint.",
        panel=_HEAL,
    ),
]
Heals = Annotated[int, option("--heals N", "How many losses are healed.", panel=_HEAL, min=0)]
HealTime = Annotated[float, option("--heal-time-limit SECONDS", "Time for each new plan.", panel=_HEAL, min=0.001)]
StorageRate = Annotated[
    float,
    option(
        "--storage-rate GB/S",
        "Speed at which all devices together read checkpoints: part of the cost of a new plan.",
        panel=_HEAL,
        min=0.001,
    ),
]
WithGpus = Annotated[bool, option("--gpus", "Ask for as many accelerators per host as the plan needs.", panel=_WHERE)]
SbatchOptions = Annotated[
    list[str] | None, option("--sbatch OPTION", "A further option of sbatch, e.g. --sbatch=--time=2:00:00.")
]
SkyAccelerators = Annotated[
    str | None, option("--accelerators NAME:N", "Per node, e.g. H100:8; without them, processors.")
]
SkyInfra = Annotated[str | None, option("--infra INFRA", "Cloud, region and zone, e.g. aws/us-east-1.")]
SkyImage = Annotated[str | None, option("--image IMAGE", "docker:IMAGE, or a machine image.")]
SkyWorkdir = Annotated[
    str | None, option("--workdir FOLDER", "Local folder that every node gets, and starts the program in.")
]
RayAddress = Annotated[
    str | None, option("--address URL", "Ray's dashboard, e.g. http://head:8265; default: RAY_API_SERVER_ADDRESS.")
]
JobPlace = Annotated[str, argument("FOLDER", "The folder that `pipeplan launch` named.")]
Follow = Annotated[bool, option("--follow -f", "Keep showing new lines.")]

ExportFolder = Annotated[str, option("--output -o FOLDER", "Where the files go.", panel=_OUT)]

Timings = Annotated[
    list[str] | None, argument("[TIMINGS...]", "Folders of the executor's --trace, or traces of torch's profiler.")
]
Lost = Annotated[list[str] | None, option("--lost NAME", "A device or host that is gone; repeatable.")]
RecipeFile = Annotated[str | None, option("--recipe FILE", "Also write which state moves where (JSON).", panel=_OUT)]
Notify = Annotated[
    str | None,
    option(
        "--notify URL",
        "The plan's URL at a service, which reports drift and losses to webhooks; key: PIPEPLAN_KEY.",
        envvar="PIPEPLAN_NOTIFY",
    ),
]
StepsLeft = Annotated[
    int,
    option(
        "--steps-left N", "Iterations under a new plan, over which it has to earn what moves for it.", panel=_HOW, min=1
    ),
]
Tolerance = Annotated[
    float, option("--tolerance FRACTION", "Differences up to this fraction count as none.", min=0, max=1000)
]

DiscoverySource = Annotated[
    Literal["slurm", "kubernetes", "nvidia-smi", "hostfile"],
    argument("SOURCE", "What describes the machine: slurm, kubernetes, nvidia-smi (this machine) or hostfile."),
]
DiscoveryFile = Annotated[str | None, option("--file FILE", "Its answer, saved on another machine; or the hostfile.")]
ClusterName = Annotated[str | None, option("--name NAME", "What the cluster is called.")]
AcceleratorGib = Annotated[
    float | None, option("--accelerator-gib N", "Memory per accelerator, where the source does not state it.", min=0.0)
]
SlotType = Annotated[str, option("--type TYPE", "Device type of a hostfile's slots.")]
CountsProcessors = Annotated[
    bool, option("--cpus", "Hosts without accelerators are devices as well; otherwise they are left out.")
]
WorkersPerHost = Annotated[
    int | None, option("--workers-per-host N", "With --cpus: devices of a host without accelerators; default 1.", min=1)
]
ToleratedTaints = Annotated[
    list[str] | None, option("--tolerate KEY", "A taint of Kubernetes' nodes that the job tolerates; repeatable.")
]
HostSpeed = Annotated[
    float, option("--host-gb-per-s --host-gbps GB/S", "Nominal gigabytes, between a device and its host.", min=0.001)
]
NetworkSpeed = Annotated[
    float,
    option("--network-gb-per-s --network-gbps GB/S", "Nominal gigabytes, not gigabits, to the network.", min=0.001),
]
Oversubscription = Annotated[
    float, option("--oversubscription N", "How many times the hosts below a switch exceed its link upwards.", min=0.001)
]
TopologyFile = Annotated[
    str | None,
    option(
        "--topology FILE",
        "The answer of `scontrol show topology` (topology.conf and .yaml as well) or `nvidia-smi topo -m`.",
    ),
]
TopologyLabels = Annotated[
    list[str] | None,
    option(
        "--topology-label KEY", "A label of Kubernetes' nodes that names a switch; the outermost first, repeatable."
    ),
]
IsFlat = Annotated[bool, option("--flat", "Join all hosts by one switch, whatever the source says of others.")]
LinkFile = Annotated[
    str, argument("FILE", "Tables of the link benchmark (`pipeplan profile --links`), or nccl-tests' output.")
]
MeasuredLinks = Annotated[
    str | None,
    option(
        "--links FILE",
        "Tables of the link benchmark (`pipeplan profile --links`), or nccl-tests' output: measured links instead of "
        "nominal ones.",
    ),
]
_MEASURED = "What is measured"
_MACHINE = "On what"

Model = Annotated[str, argument("MODEL", "module:factory, or a family of models: gpt:layers=4,width=256.")]
MicrobatchSizes = Annotated[
    str | None,
    option(
        "--microbatch-size -b N[,N...]",
        "Samples per microbatch, the profile's own first (left out: batch / -m, or doublings).",
        panel=_MEASURED,
    ),
]
MeasuredBatch = Annotated[
    int | None,
    option(
        "--global-batch -g SAMPLES", "Samples per iteration; `plan` decides the microbatches.", panel=_MEASURED, min=1
    ),
]
Widths = Annotated[str, option("--widths N[,N...]", "CPU threads per layer, e.g. 1,2.", panel=_MEASURED)]
GroupWidths = Annotated[
    str | None,
    option(
        "--group-widths N[,N...]", "Processes that run each layer together, tensor-parallel, e.g. 2.", panel=_MEASURED
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], option("--device", "Where layers run.", panel=_MACHINE)]
NumDevices = Annotated[
    int | None, option("--devices N", "Devices (left out: all GPUs, or one per core).", panel=_MACHINE)
]
MemoryGib = Annotated[
    float | None, option("--memory GIB", "Memory of a device; layers that need more are estimated.", panel=_MACHINE)
]
Dtype = Annotated[
    Literal["fp32", "bf16", "fp16"] | None,
    option("--dtype", "Bring weights and activations into this type.", panel=_MEASURED),
]
Estimate = Annotated[
    str | None,
    option("--estimate TYPE", "Run nothing: estimate for A100, H100, H200, B200, GB200, A10 or L4.", panel=_MACHINE),
]
Clock = Annotated[
    Literal["thread", "wall"], option("--clock", "On a CPU at width 1: the thread's own time, or all.", panel=_MEASURED)
]
Repetitions = Annotated[int, option("--repetitions N", "Per layer, after the warm-up.", panel=_HOW)]
SecondsPerLayer = Annotated[float, option("--seconds S", "Per layer: then three repetitions are enough.", panel=_HOW)]
Attempts = Annotated[
    int,
    option(
        "--attempts N",
        "Repeat all timings up to N times, until the figures and a short run are within 10 % of each other.",
        panel=_HOW,
    ),
]
NoRecompute = Annotated[bool, option("--no-recompute", "Leave recomputation out.", panel=_MEASURED)]
EachLayer = Annotated[bool, option("--each-layer", "Measure layers that are alike one by one.", panel=_MEASURED)]
Alone = Annotated[
    bool,
    option(
        "--alone",
        "Time layers one by one on an idle host, not as run beside the other devices of the host.",
        panel=_HOW,
    ),
]
WholeBackward = Annotated[
    bool, option("--no-split", "For plans with whole backward passes: no weight gradient waits.", panel=_MEASURED)
]
NoLinks = Annotated[bool, option("--no-links", "Measure no links, write no cluster.", panel=_MACHINE)]
Links = Annotated[
    str | None, option("--links FILE", "Tables of links, read or, if there are none, written.", panel=_MACHINE)
]
JournalFile = Annotated[
    str | None,
    option(
        "--journal FILE",
        "Measurements are saved here at once, and an interrupted run continues from them; left out: FILE.partial.",
        panel=_OUT,
    ),
]

TuneWorkload = Annotated[
    str | None, option("--workload -w FILE", "Measured before; left out: the model is profiled first.", panel=_MACHINE)
]
TuneRuns = Annotated[int, option("--runs N", "Runs of every plan, in turns, per round.", panel=_HOW)]
TuneSteps = Annotated[
    int | None, option("--steps N", "Iterations of a run; left out: a few seconds of them.", panel=_HOW)
]
Within = Annotated[
    float,
    option("--within PERCENT", "Prediction and run agree if they differ by no more.", panel=_HOW, min=0, max=1000),
]
