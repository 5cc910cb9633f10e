"""Whole configurations that AMD's Primus starts its search from, played by one simulator beside our choice.

Primus is at github.com/AMD-AGI/Primus (MIT), commit fd1eeabb. Its tuning agent lists them on a CPU:
`python -m primus.agents.tuning_agent --workload examples/megatron/configs/MI355X/NAME-BF16-pretrain.yaml
--target-cluster examples/agents/tuning_agent/target_cluster_mi355x_4nodes.yaml --out-dir SEEDS/NAME --dry-run
--seed-only --seed-budget 500`. Then `python -m benchmarks.primus_seeds --clone PRIMUS --seeds SEEDS` makes the table.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api.auditing.audited_problem import AuditedProblem, make_audited_problem
from api.auditing.better_degrees import BetterDegrees, find_better_degrees
from api.auditing.configuration_audit import play_run
from benchmarks.report import Table, make_parser
from planner.verify import verify
from profiles.configurations.argument_forms import ReadArguments, Value, read_arguments
from profiles.configurations.megatron_run import read_megatron

GPU = "b200"
GPUS = 32
MODELS = {
    "llama3.1_70B": "llama3-70b",
    "llama2_70B": "llama2-70b",
    "qwen3_8B": "qwen3-8b",
    "qwen3_32B": "qwen3-32b",
    "mixtral_8x7B_v0.1": "mixtral-8x7b",
    "mixtral_8x22B_v0.1": "mixtral-8x22b",
    "qwen3_30B_A3B": "qwen3-30b-a3b",
    "gpt_oss_120B": "gpt-oss-120b",
}
"""Primus' workloads whose model the audit knows and that fit on so many GPUs."""
DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
}
"""Numbers of a seed by Megatron's names."""

Seed = Mapping[str, Any]
"""A configuration as Primus writes it; what is null is the workload's."""


@dataclass(frozen=True, kw_only=True)
class PlayedSeeds:
    """What became of a workload's seeds."""

    outcomes: Counter[str]
    """How many were refused, do not start, do not fit, and run."""
    best: tuple[int, AuditedProblem] | None
    """The shortest that runs, in ns, and its question."""


def seed_flags(seed: Seed) -> dict[str, Value]:
    """A seed as Megatron's flags over its workload's; raises ValueError for what the audit has no flag of."""
    if seed["pp_schedule"] != "auto":
        raise ValueError(f"pp_schedule = {seed['pp_schedule']}")
    if seed["sync_free_stage"]:
        raise ValueError(f"sync_free_stage = {seed['sync_free_stage']}")
    flags: dict[str, Value] = {name: str(seed[key]) for key, name in DEGREES.items()}
    if seed["vpp"] is not None:
        flags["num_virtual_stages_per_pipeline_rank"] = str(seed["vpp"]) if seed["vpp"] > 1 else False
        flags["pipeline_model_parallel_layout"] = False
    if seed["recompute_granularity"] in (None, "none"):
        flags["recompute_granularity"] = False
    else:
        flags["recompute_granularity"] = seed["recompute_granularity"]
        flags["recompute_method"] = "block"
        flags["recompute_num_layers"] = str(seed["recompute_num_layers"])
    flags["use_torch_fsdp2"] = bool(seed["use_torch_fsdp2"])
    flags["use_distributed_optimizer"] = not seed["use_torch_fsdp2"]
    if seed["use_turbo_deepep"]:
        flags["moe_token_dispatcher_type"] = "flex"
    if seed["fp8"]:
        flags |= {"fp8_format": str(seed["fp8"]), "fp8_recipe": "delayed"}
    return flags | {"world_size": str(GPUS), "expert_tensor_parallel_size": "1", "sequence_parallel": seed["tp"] > 1}


def read_seed(seed: Seed, workload: ReadArguments, *, model: str) -> AuditedProblem:
    """Raises ValueError where the audit refuses it."""
    run = read_megatron(replace(workload), options=seed_flags(seed), model=model)
    return make_audited_problem(run, gpu=GPU)


def play_seeds(seeds: Sequence[Seed], workload: ReadArguments, *, model: str) -> PlayedSeeds:
    """All of bf16, in the order of the list."""
    outcomes, best = Counter[str](), None
    for seed in seeds:
        try:
            audited = read_seed(seed, workload, model=model)
        except ValueError:
            outcomes["refused"] += 1
            continue
        if audited.run.notes.refusals:
            outcomes["do not start"] += 1
            continue
        played = play_run(audited, recompute=audited.recompute)
        outcomes["do not fit" if played.over_bytes else "run"] += 1
        length = played.timeline.makespan_ns
        if not played.over_bytes and (best is None or length < best[0]):
            best = length, audited
    return PlayedSeeds(outcomes=outcomes, best=best)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Our configuration of an iteration."""

    degrees: BetterDegrees
    """With the plan."""
    bound_ns: int | None
    """No plan at any microbatch and degrees looked at is shorter; None: not known."""


def choose(start: AuditedProblem, sizes: Sequence[int], *, time_limit_s: float) -> Choice | None:
    """Our degrees, microbatch and stages for the same iteration; `sizes` are the seeds' microbatches."""
    found = []
    for size in sizes:
        run = replace(start.run, micro_batch=size)
        if run.global_batch % size == 0:
            audited = replace(start, run=run)
            found.append(find_better_degrees(audited, time_limit_s=time_limit_s / len(sizes)))
    plans = [each for each in found if each is not None]
    if not plans:
        return None
    bounds = [None if each is None else each.lower_bound_ns for each in found]
    known = [bound for bound in bounds if bound is not None]
    return Choice(degrees=min(plans, key=_makespan), bound_ns=min(known) if len(known) == len(bounds) else None)


def _makespan(degrees: BetterDegrees) -> int:
    assert degrees.plan.evidence is not None
    return degrees.plan.evidence.makespan_ns


def read_seeds(folder: Path) -> Iterator[Seed]:
    """What the agent's dry run lists, without those of fp8, which compute something else."""
    for line in (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines():
        seed = json.loads(line)["config"]
        if not seed["fp8"]:
            yield seed


def main() -> None:
    """A row per workload."""
    parser = make_parser(__doc__)
    parser.add_argument("--clone", type=Path, required=True, help="a clone of Primus")
    parser.add_argument("--seeds", type=Path, required=True, help="folders of its agent's dry runs, by workload")
    parser.add_argument("--time-limit", type=float, default=30, help="seconds of search per workload")
    given = parser.parse_args()
    table = Table(
        preface=["## Beside Primus' seeds, on 32 B200", ""],
        header=("workload", "seeds", "refused", "no start", "no fit", "best seed, s", "plan, s", "ratio", "gap"),
        output=given.output,
    )
    for name, model in list(MODELS.items())[: 2 if given.quick else None]:
        file = given.clone / "examples/megatron/configs/MI355X" / f"{name}-BF16-pretrain.yaml"
        workload = read_arguments(file.read_text(encoding="utf-8"), source=file.name)
        table.add((name, *_row(list(read_seeds(given.seeds / name)), workload, model=model, limit_s=given.time_limit)))
    table.close()


def _row(seeds: Sequence[Seed], workload: ReadArguments, *, model: str, limit_s: float) -> tuple[str, ...]:
    played = play_seeds(seeds, workload, model=model)
    counts = (str(len(seeds)), *(str(played.outcomes[kind]) for kind in ("refused", "do not start", "do not fit")))
    if played.best is None:
        return (*counts, "-", "-", "-", "-")
    seed_ns, audited = played.best
    chosen = choose(audited, sorted({seed["mbs"] for seed in seeds}), time_limit_s=limit_s)
    if chosen is None:
        return (*counts, f"{seed_ns / 1e9:.3f}", "-", "-", "-")
    assert verify(chosen.degrees.audited.problem, chosen.degrees.plan).passed
    own_ns, bound_ns = _makespan(chosen.degrees), chosen.bound_ns
    gap = "-" if bound_ns is None else f"{100 * (1 - bound_ns / own_ns):.1f} %"
    return (*counts, f"{seed_ns / 1e9:.3f}", f"{own_ns / 1e9:.3f}", f"{own_ns / seed_ns:.3f}", gap)


if __name__ == "__main__":
    main()
