"""What was typed becomes problems and plans; every mistake in it is an `InputError` with one clear message."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from api.failures import InputError, render_os_error
from planner.batch_problem import BatchProblem, Question, problem_answered, question_of_workload
from planner.decisions import choices
from planner.option_conflicts import require_consistent
from planner.plan import PLAN_FORMAT, Plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import Timeline
from profiles.field_rules import MAX_NANOSECONDS
from profiles.workload import Workload

NS_PER_MS = 10**6


@contextmanager
def reading() -> Iterator[None]:
    """Mistakes found inside are the user's, not ours."""
    try:
        yield
    except OSError as error:
        raise InputError(render_os_error(error)) from None
    except ValueError as error:
        raise InputError(str(error)) from None


UNKNOWN_SIZE = (
    "does not say how many samples a microbatch has (microbatch_size = null): state it in the profile, or no program "
    "can run replicas"
)
"""What is said of such a document when it is imported."""


def read_workload(source: str, *, cluster: str | None = None) -> Workload:
    """The workload of a file, a demo or standard input, on another cluster where one is given."""
    from profiles.load import load_cluster, load_workload

    if source == "-" == cluster:
        raise InputError("workload and cluster cannot both come from standard input; name a file for one of them")
    with reading():
        workload = load_workload(source)
        return workload if cluster is None else replace(workload, cluster=load_cluster(cluster))


def make_question(workload: Workload, *, changes: Mapping[str, Any] | None = None, opens_all: bool = False) -> Question:
    """The question that a workload states, with other options where they are given.

    `opens_all`: options that neither states are those under which all is decided that the profile states costs for.
    """
    from profiles.documents.validation import validate

    name = workload.profile.name
    if workload.cluster is None:
        raise InputError(f"{name}: contains no cluster; add --cluster FILE, or give a workload (see `pipeplan demos`)")
    counts = workload.num_microbatches, workload.global_batch_size, workload.microbatches
    if all(count is None for count in counts):
        raise InputError(f"{name}: contains no number of microbatches; add -m N, or --global-batch SAMPLES")
    with reading():
        stated = {**workload.options, **(changes or {})}
        opened = _opened(workload, stated) if opens_all else {}
        options = validate(Options, {**opened, **stated}, source="options")
        question = question_of_workload(workload, options)
        require_consistent(question)
        return question


def _opened(workload: Workload, stated: Mapping[str, Any]) -> dict[str, Any]:
    from planner.decide_all import open_decisions

    return open_decisions(workload.profile, stated=stated, has_one_size=workload.microbatches is None)


def make_problem(
    workload: Workload, *, num_microbatches: int | None = None, changes: Mapping[str, Any] | None = None
) -> Problem:
    """The problem that a workload states, with another number of microbatches or other options where they are given."""
    if num_microbatches is not None:
        with reading():
            workload = workload.cut_into(num_microbatches)
    question = make_question(workload, changes=changes)
    if isinstance(question, BatchProblem) and len(question.sizes) == 1:
        (question,) = question.candidates
    if isinstance(question, BatchProblem):
        raise InputError(
            f"{workload.profile.name}: states global_batch_size = {question.global_batch_size} and no microbatches; "
            "add -m N, or give a plan"
        )
    with reading():
        question.require_alike("this command")
    return question


def choose_batch(
    workload: Workload, *, num_microbatches: int | None, global_batch: int | None, sizes: str | None
) -> Workload:
    """The workload with the number of microbatches, or the global batch, that the command line asks for."""
    if num_microbatches is not None:
        for option, value in {"--global-batch": global_batch, "--microbatch-sizes": sizes}.items():
            if value is not None:
                raise InputError(f"-m {num_microbatches} and {option} {value} exclude each other; give one of them")
        with reading():
            return workload.cut_into(num_microbatches)
    chosen = None if sizes is None else _parse_sizes(sizes)
    whole = workload.global_batch_size if global_batch is None else global_batch
    if whole is None:
        if chosen is not None:
            raise InputError(f"--microbatch-sizes {sizes} needs a global batch; add --global-batch SAMPLES")
        return workload
    with reading():
        return workload.with_batch(whole, workload.microbatch_sizes if chosen is None else chosen)


def _parse_sizes(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
        raise InputError(f"--microbatch-sizes {text}: write numbers of samples with commas between, e.g. 1,2,4")
    return tuple(map(int, parts))


def read_plan(source: str) -> Plan:
    """The plan of a file, or of standard input if `source` is `-`."""
    from planner.document import parse_plan

    with reading():
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return parse_plan(data, source="<stdin>" if source == "-" else source)


def is_plan(source: str) -> bool:
    """Whether a file is a plan document, in whatever order its fields stand; what can be read once only is none."""
    from profiles.documents.strict_json import decode_text, parse_json

    if source == "-" or not Path(source).is_file():
        return False
    try:
        tree = parse_json(decode_text(Path(source).read_bytes(), source=source), source=source)
    except (OSError, ValueError):  # its own reader says what is wrong with it
        return False
    return isinstance(tree, dict) and tree.get("format") == PLAN_FORMAT


def question_of(plan: Plan, workload: Workload) -> Problem:
    """The question that `plan` says it answers: `workload` with the plan's microbatches and options."""
    from profiles.documents.validation import validate

    if workload.cluster is None:
        return make_problem(workload, num_microbatches=plan.problem.num_microbatches)
    with reading():
        options = validate(Options, dict(plan.problem.options), source="options")
        return problem_answered(plan.problem, profile=workload.profile, cluster=workload.cluster, options=options)


def read_plan_and_problem(source: str, workload: str | None, *, cluster: str | None = None) -> tuple[Plan, Problem]:
    """A plan and the question it answers: of `workload`, or the one that the plan brings along."""
    if source == "-" == workload:
        raise InputError("plan and workload cannot both come from standard input; name a file for one of them")
    plan = read_plan(source)
    if workload is not None:
        return plan, question_of(plan, read_workload(workload, cluster=cluster))
    if cluster is not None:
        raise InputError("--cluster needs a workload; name the workload after the plan")
    return plan, _brought_along(plan, source=source)


def _brought_along(plan: Plan, *, source: str) -> Problem:
    from planner.documents.embedded_problem import enclosed_problem

    with reading():
        problem = enclosed_problem(plan, source=source)
    if problem is None:
        raise InputError(f"{source}: contains no profile and cluster; name the workload after the plan")
    return problem


def rename_device_type(workload: Workload, name: str) -> Workload:
    """The workload as measured on the device type `name`; only where all its figures are of one type."""
    profile, cluster = workload.profile, workload.cluster
    types = {cost.device_type for layer in profile.layers for cost in layer.costs}
    if len(types) != 1:
        raise InputError(f"--device-type: the documents have {len(types)} device types; leave it out")
    with reading():
        layers = tuple(
            replace(layer, costs=tuple(replace(cost, device_type=name) for cost in layer.costs))
            for layer in profile.layers
        )
        if cluster is not None:
            cluster = replace(cluster, devices=tuple(replace(device, type=name) for device in cluster.devices))
        return replace(workload, profile=replace(profile, layers=layers), cluster=cluster)


def play(problem: Problem, plan: Plan, *, source: str) -> Timeline:
    """The plan's timeline; a plan that cannot be played on the problem is bad input."""
    from planner.errors import PlanError
    from planner.simulation.simulate import simulate

    try:
        return simulate(problem, plan)
    except (PlanError, ValueError, KeyError, IndexError) as error:
        raise InputError(
            f"{source}: cannot be played on this workload: {_first_violation(problem, plan) or error}; `pipeplan "
            "verify` lists all violations"
        ) from None


def _first_violation(problem: Problem, plan: Plan) -> str:
    from planner.verify import verify

    violations = verify(problem, plan).violations
    return violations[0].message.rstrip(".") if violations else ""


def parse_changes(switches: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were asked for on the command line: switches have their names, or `no_` before them."""
    asked = {name: value for name, value in switches.items() if value is not None and value is not False}
    named = {name.removeprefix("no_"): value if name[:3] != "no_" else False for name, value in asked.items()}
    changes = {field.name: named[field.name] for field in fields(Options) if field.name in named}
    changes |= choices.implied(changes)
    if switches["no_replication"]:
        changes["max_replicas"] = 1
    if switches.get("deadline") is not None:
        changes["deadline_ns"] = _parse_deadline(switches["deadline"])
    if switches["pin"]:
        changes["pinned"] = _parse_pins(switches["pin"])
    return changes


def _parse_deadline(milliseconds: float) -> int:
    """Nanoseconds, rounded down."""
    if not 0 <= milliseconds <= MAX_NANOSECONDS // NS_PER_MS:
        raise InputError(f"--deadline {milliseconds}: give milliseconds from 0 to {MAX_NANOSECONDS // NS_PER_MS:,}")
    return int(milliseconds * NS_PER_MS)


def _parse_pins(texts: Sequence[str]) -> list[dict[str, str]]:
    """`LAYER=DEVICE` pairs as the option `pinned` wants them."""
    pins = []
    for text in texts:
        layer, equals, device = text.rpartition("=")
        if not (layer and equals and device):
            raise InputError(f"--pin {text}: write LAYER=DEVICE, e.g. --pin embedding=gpu0")
        pins.append({"layer": layer, "device": device})
    return pins


def require_limits(**given: Any) -> Limits:
    """The limits among what the command line states, None where it is silent; what they refuse is said of switches."""
    known = {each.name: f"--{each.name.removesuffix('_s').replace('_', '-')}" for each in fields(Limits)}
    try:
        return Limits(**{name: given[name] for name in known if given.get(name) is not None})
    except ValueError as error:
        told = re.sub(rf"(?<!')\b({'|'.join(known)})\b( =)?", lambda found: known[found[1]], str(error))
        raise InputError(told.removeprefix("limits: ")) from None


def require_writable(*targets: str | None) -> None:
    """Refuse files that could not be written, before any work is done."""
    for target in targets:
        if target is None or target == "-":
            continue
        path = Path(target)
        folder = path.parent
        if not folder.is_dir():
            raise InputError(f"{target}: the folder {folder} does not exist; make it first (mkdir -p {folder})")
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise InputError(f"{target}: cannot be written; choose another file")
