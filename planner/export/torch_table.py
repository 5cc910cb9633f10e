"""A plan as the compute-only table of torch.distributed.pipelining (`_PipelineScheduleRuntime._load_csv`, torch 2.13).

Row r holds the actions of rank r, written as in a plan. Torch adds the communication itself, for which a stage may only
talk to its neighbours.
"""

from collections.abc import Collection

from planner.actions import Action
from planner.export.samples import require_told
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem


def render_torch_table(
    problem: Problem,
    plan: Plan,
    *,
    merges_backward: bool = True,
    has_groups: bool = False,
    copies: Collection[str] | None = None,
) -> str:
    """The table as CSV text, one row per rank (`torch_ranks`).

    `has_groups`: a rank of the pipeline may be a group of devices, all groups of one width. `copies`: the decisions
    that replicas may use, which copy the whole pipeline; None: there are none.

    `merges_backward`: an I that its own W follows at once becomes a B. That is cheaper for torch and holds less memory,
    but the gradient then leaves after W, not before; without merging, the order is kept as planned.

    Raises ValueError for a plan that torch cannot run as written.
    """
    _require_expressible(problem, plan, has_groups=has_groups, copies=copies)
    whole = _stages_with_whole_backward(problem, plan)
    rows = []
    for device in torch_ranks(plan):
        device_order = [_as_whole(action) if action.stage in whole else action for action in plan.schedule[device]]
        kept = [action for action in device_order if action is not None]
        rows.append(",".join(map(str, _merged(kept) if merges_backward else kept)))
    return "\n".join(rows) + "\n"


def torch_ranks(plan: Plan) -> tuple[str, ...]:
    """The device of every rank of the pipeline's process group, in order of first stage; idle devices stay outside.

    Of a group its first one, and of copies of the pipeline the first.
    """
    first = {stage.replicas[0][0] for stage in plan.stages}
    return tuple(device for device in plan.devices if device in first)


def _stages_with_whole_backward(problem: Problem, plan: Plan) -> set[int]:
    """The stages that torch 2.13 must be given B, whatever the plan says.

    A stage without W, as torch wants as many W as I; and a stage after the first one behind which nothing is trained:
    its input needs no gradient, so torch's I would do nothing and its W would silently leave every gradient out.
    """
    whole, is_trained = set(), False
    for number, stage in enumerate(plan.stages):
        has_weights = problem.profile.trains(stage.layers)
        if not has_weights or (number > 0 and not is_trained):
            whole.add(number)
        is_trained = is_trained or has_weights
    return whole


def _as_whole(action: Action) -> Action | None:
    """B in the place of I, where everything it needs has arrived; W is in it."""
    if action.kind == "W":
        return None
    return action._replace(kind="B") if action.kind == "I" else action


def _merged(device_order: list[Action]) -> list[Action]:
    merged: list[Action] = []
    for action in device_order:
        if action.kind == "W" and merged and merged[-1] == action._replace(kind="I"):
            merged[-1] = action._replace(kind="B")
        else:
            merged.append(action)
    return merged


def _require_expressible(problem: Problem, plan: Plan, *, has_groups: bool, copies: Collection[str] | None) -> None:
    problem.require_alike("torch's runtime")
    require_told(plan, what="torch's runtime", known={"fully_shard", *(copies or ())})
    _require_single_ranks(
        plan, width=len(plan.stages[0].replicas[0]) if has_groups else 1, has_copies=copies is not None
    )
    _require_work_everywhere(plan)
    require_neighbours(problem, plan)
    _require_last_stage_in_order(plan)


def _require_single_ranks(plan: Plan, *, width: int, has_copies: bool) -> None:
    """Torch gives every stage to exactly one rank of a pipeline."""
    for number, stage in enumerate(plan.stages):
        if len(stage.replicas) != 1 and not has_copies:
            raise ValueError(
                f"stage {number} has {len(stage.replicas)} replicas, but torch runs a stage on one rank; "
                "plan with max_replicas = 1, or replicate the whole pipeline outside"
            )
        if wrong := [len(group) for group in stage.replicas if len(group) != width]:
            row = "one device" if width == 1 else f"{width} devices, as stage 0 is"
            raise ValueError(
                f"stage {number} spans {wrong[0]} devices, but a row of the table is {row}; plan with max_width = 1"
            )


def _require_work_everywhere(plan: Plan) -> None:
    """Every rank of the process group holds a stage."""
    for device in plan.schedule:
        if device not in plan.devices:
            raise ValueError(
                f"device {device!r} is in the schedule without a stage, but torch needs a stage on every rank; leave "
                "it out of the schedule and of the process group"
            )


def require_neighbours(problem: Problem, plan: Plan, *, what: str = "torch") -> None:
    """Raise ValueError unless every stage sends to the next one alone, and hears back if there is anything to train."""
    traffic = CostModel(problem).traffic(plan.stages)
    for a, b in traffic:
        if b != a + 1:
            raise ValueError(
                f"stage {a} feeds stage {b}, but in {what} a stage feeds only the next one; "
                "plan with skip_edges = false, or pass the tensor on through the stages between"
            )
    is_trained = False
    for number, stage in enumerate(plan.stages[:-1]):
        if (number, number + 1) not in traffic:
            raise ValueError(
                f"stage {number} does not feed stage {number + 1}, but in {what} every stage feeds the next one; "
                "number the stages along a chain"
            )
        is_trained = is_trained or problem.profile.trains(stage.layers)
        if is_trained and not traffic[number, number + 1].has_gradient:
            raise ValueError(
                f"no gradient flows from stage {number + 1} back to stage {number}, behind which layers are trained; "
                "give the edge gradient_bytes, or freeze the layers"
            )


def _require_last_stage_in_order(plan: Plan) -> None:
    """Torch 2.13 files the k-th loss that is computed under microbatch k, whichever it belongs to."""
    last = len(plan.stages) - 1
    device_order = plan.schedule[plan.stages[last].replicas[0][0]]
    order = [action.microbatch for action in device_order if action.kind == "F" and action.stage == last]
    for position, microbatch in enumerate(order):
        if microbatch != position:
            raise ValueError(
                f"stage {last}, the last one, takes microbatch {microbatch} at position {position}, and torch would "
                "mix up the losses; renumber the microbatches so that the last stage takes them in order"
            )
