"""Words among which options choose, once for questions and the command line, which starts without loading questions."""

from typing import Literal

Objective = Literal["makespan", "span", "cost"]
"""`makespan`: end of the iteration; `span`: longest time from first to last action of a device; `cost`: makespan times
the prices of the devices used."""

RankingTime = Literal["makespan", "span"]
"""The times of a plan that an objective may rank by."""


def ranked_by(objective: Objective) -> RankingTime:
    """What decides between plans on the same devices; an objective that no case names is an error of types."""
    match objective:
        case "makespan" | "cost":
            return "makespan"
        case "span":
            return "span"


ShardChoice = Literal["never", "together", "allow", "always"]
"""Whether replicas shard the optimizer's state: nowhere; in every replicated stage or in none; in any; in all."""

OrderChoice = Literal["any", "looped"]
"""`any`: stages and orders as the rules allow; `looped`: rank p of P holds stages p, P + p, 2 P + p ..., and runs 1F1B,
interleaved where these are several: what Megatron-LM and DeepSpeed run."""

Synchronisation = Literal["after", "bucketed"]
"""`after`: a stage synchronises once its last W has ended, beside the transfers; `bucketed`: it queues on the links."""

TargetName = Literal["executor", "torch", "torchtitan", "megatron", "deepspeed", "deepspeed-dualpipev"]
"""Programs that plans are made for, as `planner.export.targets` has them."""

LayoutTarget = Literal["megatron", "megatron-hybrid", "torchtitan", "deepspeed"]
"""Programs that a layout is written for, as `planner.recipes.layout_texts` has them."""

DocumentKind = Literal["workload", "profile", "cluster", "plan"]
"""Documents that have a schema."""

Controller = Literal["jobset", "trainjob", "volcano"]
"""What runs a job on Kubernetes."""
