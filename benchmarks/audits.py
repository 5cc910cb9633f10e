"""Configurations of other people's training, audited: what is read of them, and which of two variants is faster.

`python -m benchmarks.audits --clones FOLDER -o out/benchmarks/audits.md` wants clones as `FOLDER/OWNER/NAME` of the
repositories in `measured/audited-configurations.csv`; without `--clones` it makes the second table alone.
"""

import csv
import itertools
import math
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.auditing.audited_problem import make_audited_problem
from api.auditing.configuration_audit import play_run
from api.auditing.configuration_files import read_configuration
from benchmarks.report import Table, make_parser
from planner.simulation.timeline import Timeline
from profiles.configurations.argument_forms import ReadArguments, Value
from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import RunConfiguration

FOLDER = Path(__file__).parent / "measured"
APART = 0.05
"""Two variants whose measured times differ by less answer no question."""
AUDITED = "audited-configurations.csv"
REFUSALS = ("refused", "does not start")
"""What an outcome begins with where nothing is played."""
B200_MODELS: dict[str, dict[str, Value]] = {
    name: {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "group_query_attention": True,
        "num_query_groups": groups,
        "ffn_hidden_size": inner,
        "swiglu": True,
        "vocab_size": "128256",
        "position_embedding_type": "rope",
        "untie_embeddings_and_output_weights": True,
    }
    for name, hidden, heads, groups, inner in (
        ("llama3_70b", "8192", "64", "8", "28672"),
        ("llama3_405b", "16384", "128", "16", "53248"),
    )
}
"""As SimuMax's scripts state them: 405B with twice the published model's groups."""
COUNTS = ("devices", "pp")
"""Options of the list that are numbers."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One published row as Megatron's flags."""

    group: str
    """Rows of the same model, devices and batch."""
    precision: str = ""
    """Of Megatron-Bridge's rows."""
    release: str = ""
    """Rows of one release are compared."""
    model: str | None
    gpu: str
    flags: dict[str, Value]
    measured_s: float
    kernels: tuple[str, str] | None = None
    """Degree and microbatch of rows whose devices run the same kernels; None: others differ in more than stages."""
    rounds: float = 1.0
    """How many microbatches' times of the whole model a pipeline's device is busy or waits for its stages."""

    @property
    def shares_factor(self) -> str:
        """What it has in common with rows of the same measured over predicted."""
        return f"Megatron-Bridge, {self.gpu.upper()}, {self.precision}" if self.precision else self.group


def audited_file(row: dict[str, str], clones: Path) -> str:
    """What became of a configuration, in a cell."""
    path, _, function = row["file"].partition(".py:")
    path += ".py" if function else ""
    shown = ("git", "-C", str(clones / row["repository"]), "show", f"{row['commit']}:{path}")
    text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    options = [each.partition("=")[::2] for each in row["options"].split()]
    typed: dict[str, Any] = {name: int(value) if name in COUNTS else value for name, value in options if name != "set"}
    variables = [value for name, value in options if name == "set"]
    program: Any = row["program"]
    try:
        run = read_configuration(
            AuditQuestion(program=program, file=row["file"], text=text, variables=variables, **typed)
        )
        problem = make_audited_problem(run, gpu="h100")
    except ValueError as reason:
        return f"refused: {str(reason).partition('; ')[0].replace('.py:', ':')}"
    named = f"; {len(run.notes.unknown)} not known" if run.notes.unknown else ""
    if run.notes.refusals:
        return f"does not start: {run.notes.refusals[0]}{named}"
    played = play_run(problem, recompute=problem.recompute)
    seconds = f"{played.timeline.makespan_ns / 1e9:.3g} s"
    return f"{_degrees(run)}: {f'does not fit ({seconds})' if played.over_bytes else seconds}{named}"


def _degrees(run: RunConfiguration) -> str:
    experts = f", e {run.experts}" if run.experts else ""
    return f"t {run.tensor}, c {run.context}{experts}, p {run.pipeline} x {run.chunks}, d {run.data}, {run.dtype}"


def read_variants() -> Iterator[Variant]:
    """The published iterations of vTrain and of Megatron-Bridge's dense models.

    vTrain's `ground_truth_single.csv` is left out: its 640 times without replicas are linear in layers to the
    nanosecond, as a simulator's are.
    """
    for row in read_rows("vtrain-a100.csv"):
        yield Variant(
            group=f"vTrain {row['Parameters (billion)']}B, {row['# GPUs']} A100",
            model=None,
            gpu="a100",
            flags={
                "num_layers": row["# layers"],
                "hidden_size": row["hidden size"],
                "num_attention_heads": row["attention heads"],
                "padded_vocab_size": "51200",
                "seq_length": row["sequence length"],
                "micro_batch_size": row["micro batch"],
                "global_batch_size": row["global batch"],
                "tensor_model_parallel_size": row["tensor parallelism"],
                "pipeline_model_parallel_size": row["pipeline parallelism"],
                "world_size": row["# GPUs"],
                "fp16": True,
                "grad_reduce_in_bf16": True,
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "deepspeed": True,
            },
            measured_s=float(row["iteration time (ms)"]) / 1e3,
            kernels=(row["tensor parallelism"], row["micro batch"]),
            rounds=_rounds(row),
        )
    yield from (_bridge(row) for row in read_rows("megatron-bridge-dense.csv") if row["task"] == "Pre-Training")


def _rounds(row: dict[str, str]) -> float:
    """Of 1F1B: as many microbatches as there are, and a bubble of one less than the stages."""
    stages = int(row["pipeline parallelism"])
    microbatches = int(row["global batch"]) // (int(row["data parallelism"]) * int(row["micro batch"]))
    return (microbatches + stages - 1) / stages


def read_rows(name: str) -> list[dict[str, str]]:
    """Of a file of `benchmarks/measured`."""
    with (FOLDER / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


PRECISIONS: dict[str, dict[str, Value]] = {
    "FP8": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "MXFP8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "NVFP4": {"fp4_format": "e2m1"},
}
LAYOUTS = {8: "Et*8|(t*8|)*6t*5mL", 16: "Et*4|(t*4|)*14tmL"}
"""Of DeepSeek-V3, by stages, as its recipes have them."""


def _bridge(row: dict[str, str]) -> Variant:
    is_large = "405B" in row["model"]
    model = "llama3-405b" if is_large else "llama3-70b"
    return Variant(
        group=f"Megatron-Bridge, {model}, {row['gpus']} {row['system'].removeprefix('DGX-')}",
        precision=row["precision"],
        release=row["release"],
        model=model,
        gpu=row["system"].removeprefix("DGX-").lower(),
        flags={
            **_common_flags(row),
            "tp_comm_overlap": True,
            "use_megatron_fsdp": row["fsdp"] != "0",
            "account_for_embedding_in_pipeline_split": is_large,
            "account_for_loss_in_pipeline_split": is_large,
        },
        measured_s=_measured_s(row),
    )


def _measured_s(row: dict[str, str]) -> float:
    if "s per iteration" in row:
        return float(row["s per iteration"])
    tokens = int(row["global batch"]) * int(row["sequence"])
    return tokens / float(row["tokens per s per GPU"]) / int(row["gpus"])


def _common_flags(row: dict[str, str]) -> dict[str, Value]:
    return {
        "seq_length": row["sequence"],
        "micro_batch_size": row["micro batch"],
        "global_batch_size": row["global batch"],
        "tensor_model_parallel_size": row["tp"],
        "pipeline_model_parallel_size": row["pp"],
        "context_parallel_size": row["cp"],
        "num_virtual_stages_per_pipeline_rank": False if row["vp"] == "n/a" else row["vp"],
        "world_size": row["gpus"],
        "bf16": True,
        "grad_reduce_in_bf16": True,
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        **PRECISIONS.get(row["precision"], {}),
    }


def read_mixtures() -> Iterator[Variant]:
    """Megatron-Bridge's iterations of models with experts, and those of Megatron-MoE-ModelZoo."""
    for row in (*read_rows("megatron-bridge-experts.csv"), *read_rows("model-zoo-experts.csv")):
        flags = _common_flags(row) | {
            "expert_model_parallel_size": row["ep"],
            "expert_tensor_parallel_size": "1",
            "moe_token_dispatcher_type": row["dispatcher"],
            "overlap_moe_expert_parallel_comm": row["all-to-all hidden"] == "1",
            "use_transformer_engine_op_fuser": row["all-to-all hidden"] == "1",  # matters to GPT-OSS alone
        }
        is_counted = row["model"] == "qwen3-235b-a22b"
        flags |= {f"account_for_{end}_in_pipeline_split": is_counted for end in ("embedding", "loss")}
        if row["model"] == "deepseek-v3":
            chunks = 1 if row["vp"] == "n/a" else int(row["vp"])
            flags |= {
                "pipeline_model_parallel_layout": LAYOUTS[int(row["pp"]) * chunks],
                "num_virtual_stages_per_pipeline_rank": False,
            }
        gpu = row["system"].removeprefix("DGX-")
        yield Variant(
            group=f"{gpu}, {row['precision']}".replace("BF16", "bf16"),
            release=row["release"],
            model=row["model"],
            gpu=gpu.lower(),
            flags=flags,
            measured_s=_measured_s(row),
        )


def predicted_s(variant: Variant) -> float | None:
    """By the audit, without a search; None: refused by a flag."""
    try:
        run = read_megatron(ReadArguments(values={}, kind="options"), options=variant.flags, model=variant.model)
    except ValueError:
        return None
    return play(run, gpu=variant.gpu).makespan_ns / 1e9


def play(run: RunConfiguration, *, gpu: str) -> Timeline:
    """As it is configured."""
    problem = make_audited_problem(run, gpu=gpu)
    return play_run(problem, recompute=problem.recompute).timeline


def scatter(variants: Sequence[Variant]) -> dict[str, float]:
    """By tensor degree, how many times the time of the fastest the slowest of the same kernels takes, on the median.

    Time per round is compared, so that bubbles count for nothing; what is left are exchanges between stages and
    replicas, and noise. No prediction has a part in it.
    """
    rounds: dict[tuple[str, str], list[float]] = {}
    for variant in variants:
        if variant.kernels is not None:
            rounds.setdefault(variant.kernels, []).append(variant.measured_s / variant.rounds)
    spreads: dict[str, list[float]] = {}
    for (degree, _), each in rounds.items():
        if len(each) > 1:
            spreads.setdefault(degree, []).append(max(each) / min(each))
    return {degree: statistics.median(each) for degree, each in spreads.items()}


def right_orders(times: Sequence[tuple[Variant, float]], *, spreads: Mapping[str, float]) -> tuple[int, int]:
    """Pairs in the order measured, and all, of those further apart than 5 % and than rows of their degrees scatter."""
    right = count = 0
    for (a, a_s), (b, b_s) in itertools.combinations(times, 2):
        first, second = sorted((a.measured_s, b.measured_s))
        degrees = [each.kernels[0] for each in (a, b) if each.kernels is not None]
        least = max(1 + APART, *(spreads.get(degree, 1.0) for degree in degrees), 1.0)
        if a.release == b.release and second > least * first:
            count += 1
            right += (a.measured_s < b.measured_s) == (a_s < b_s)
    return right, count


def main() -> None:
    """Both tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--clones", type=Path, help="clones of the repositories, as OWNER/NAME")
    given = parser.parse_args()
    if given.clones is not None:
        _outcome_table(given.clones, given.output)
    _memory_table(read_rows("simumax-b200-dense.csv")[: 2 if given.quick else None], given.output)
    _mixture_table(list(itertools.islice(read_mixtures(), 4 if given.quick else None)), given.output)
    _order_table(list(itertools.islice(read_variants(), 4 if given.quick else None)), given.output)


def _outcome_table(clones: Path, output: Path | None) -> None:
    """How many of each repository are played, refused, or could not start; each outcome goes into the list."""
    rows = [row | {"outcome": audited_file(row, clones)} for row in read_rows(AUDITED)]
    with (FOLDER / AUDITED).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table = Table(
        preface=["## What is read", ""],
        header=("repository, commit", "played", *REFUSALS),
        output=output,
    )
    for source in dict.fromkeys((row["repository"], row["commit"][:7]) for row in rows):
        outcomes = [row["outcome"] for row in rows if (row["repository"], row["commit"][:7]) == source]
        counts = [sum(outcome.startswith(kind) for outcome in outcomes) for kind in REFUSALS]
        table.add((" ".join(source), *map(str, (len(outcomes) - sum(counts), *counts))))
    table.close()


def on_b200(row: dict[str, str]) -> tuple[float, float]:
    """Measured over predicted: seconds of an iteration, bytes of the peak."""
    flags: dict[str, Value] = {
        **B200_MODELS[row["model"]],
        "num_layers": row["layers"],
        "seq_length": row["sequence"],
        "micro_batch_size": "1",
        "global_batch_size": str(int(row["microbatches"]) * int(row["data"])),
        "tensor_model_parallel_size": row["tensor"],
        "pipeline_model_parallel_size": row["pipeline"],
        "world_size": "8",
        "bf16": True,
        "use_distributed_optimizer": True,
    }
    run = read_megatron(ReadArguments(values={}, kind="options"), options=flags, model=None)
    timeline = play(run, gpu="b200")
    peak_gib = max(timeline.peak_bytes.values()) / 2**30
    return float(row["measured_ms"]) * 1e6 / timeline.makespan_ns, float(row["measured_peak_gib"]) / peak_gib


def _memory_table(rows: Sequence[dict[str, str]], output: Path | None) -> None:
    table = Table(
        preface=["## Time and peak memory on 8 B200", ""],
        header=("dense rows", "what", "measured / predicted", "error with that factor", "worst"),
        output=output,
    )
    for what, ratios in zip(("time", "peak memory"), zip(*map(on_b200, rows), strict=True), strict=True):
        table.add((str(len(rows)), what, *with_factor(ratios)[1]))
    table.close()


def with_factor(ratios: Sequence[float]) -> tuple[list[float], tuple[str, str, str]]:
    """Errors that are left with the median ratio as a factor; and cells: the factor, their median and the worst."""
    factor = statistics.median(ratios)
    errors = [abs(factor / ratio - 1) for ratio in ratios]
    middle, worst = (f"{100 * size:.1f} %" for size in (statistics.median(errors), max(errors)))
    return errors, (f"{factor:.3f} ({min(ratios):.2f} to {max(ratios):.2f})", middle, worst)


def _mixture_table(variants: Sequence[Variant], output: Path | None) -> None:
    table = Table(
        preface=["## Models with experts", ""],
        header=("GPU, precision", "rows", "measured / predicted", "error with that factor", "worst"),
        output=output,
    )
    errors: list[float] = []
    for group in dict.fromkeys(variant.group for variant in variants):
        own = [variant for variant in variants if variant.group == group]
        ratios = [variant.measured_s / (predicted_s(variant) or math.nan) for variant in own]
        found, cells = with_factor(ratios)
        errors += found
        table.add((group, str(len(own)), *cells))
    table.close(f"All: {100 * statistics.median(errors):.1f} % on the median of {len(errors)} rows.")


def _order_table(variants: Sequence[Variant], output: Path | None) -> None:
    table = Table(
        preface=["## Which of two is faster", ""],
        header=("rows", "audited", "refused", "pairs", "in the order measured", "beyond scatter", "in order"),
        output=output,
    )
    found = []
    for group in dict.fromkeys(variant.group for variant in variants):
        times = [(variant, predicted_s(variant)) for variant in variants if variant.group == group]
        played = [(variant, seconds) for variant, seconds in times if seconds is not None]
        spreads = scatter([variant for variant, _ in played])
        counts = (*right_orders(played, spreads={}), *right_orders(played, spreads=spreads))
        found.append(counts)
        if counts[1]:
            audited = map(str, (len(played), len(times) - len(played)))
            table.add((group, *audited, *_shares(*counts[:2]), *_shares(*counts[2:])))
    right, pairs, clear, beyond = (sum(each) for each in zip(*found, strict=True))
    table.close(
        f"All: {right} of {pairs} pairs ({_shares(right, pairs)[1]}); {clear} of {beyond} beyond scatter "
        f"({_shares(clear, beyond)[1]})."
    )


def _shares(right: int, pairs: int) -> tuple[str, str]:
    return str(pairs), f"{100 * right / max(1, pairs):.1f} %"


if __name__ == "__main__":
    main()
