"""Plan documents: a `Plan` to `pipeline-plan/1` JSON and back. Standard library only, so executors can read them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from planner.actions import Offload
from planner.documents.document_reader import DocumentReader
from planner.documents.evidence_document import read_evidence
from planner.documents.plan_values import DEGREES
from planner.plan import (
    PLAN_FORMAT,
    SHARDS,
    Evidence,
    ImproverTally,
    Plan,
    ProblemReference,
    RecomputeMap,
    Shard,
    Share,
    SizeResult,
    Stage,
)


def render_plan(plan: Plan) -> str:
    """The document of a plan: stable order, one line per stage, device and piece of evidence, ends with a newline."""
    plain = plan_to_plain(plan)
    stages = ",\n  ".join(_text(stage) for stage in plain["stages"])
    some = "".join(f' "{key}": {_text(plain[key])},\n' for key in ("dealing", "max_active_stages") if key in plain)
    evidence = "null" if plain["evidence"] is None else _lines(plain["evidence"])
    return (
        f'{{"format": {_text(plain["format"])},\n'
        f' "problem": {_text(plain["problem"])},\n'
        f' "stages": [\n  {stages}],\n'
        f"{some}"
        f' "schedule": {_lines(plain["schedule"])},\n'
        f' "evidence": {evidence}}}\n'
    )


def plan_sha256(plan: Plan) -> str:
    """Content hash of a plan: of its document as we write it, however it was written."""
    return hashlib.sha256(render_plan(plan).encode()).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lines(mapping: Mapping[str, Any]) -> str:
    return "{\n  " + ",\n  ".join(f"{_text(key)}: {_text(value)}" for key, value in mapping.items()) + "}"


def plan_to_plain(plan: Plan) -> dict[str, Any]:
    """The document of a plan as plain dictionaries and lists."""
    return {
        "format": PLAN_FORMAT,
        "problem": _problem_to_plain(plan.problem),
        "stages": [_stage_to_plain(stage) for stage in plan.stages],
        **({"dealing": [list(assignment) for assignment in plan.dealing]} if plan.dealing else {}),
        **({} if plan.max_active_stages is None else {"max_active_stages": plan.max_active_stages}),
        "schedule": {device: [str(action) for action in order] for device, order in plan.schedule.items()},
        "evidence": None if plan.evidence is None else _evidence_to_plain(plan.evidence),
    }


def _problem_to_plain(problem: ProblemReference) -> dict[str, Any]:
    """The size of a microbatch is mentioned only where it was decided, or where sizes are listed."""
    lists = {"microbatch_sizes": problem.microbatch_sizes, "microbatches": problem.microbatches}
    plain = _fields(problem) | {name: None if sizes is None else list(sizes) for name, sizes in lists.items()}
    return {key: value for key, value in plain.items() if value is not None}


def _stage_to_plain(stage: Stage) -> dict[str, Any]:
    """What only some stages have is mentioned only where it is used."""
    shares = {"input_grad_replicas": stage.input_grad_replicas, "weight_grad_replicas": stage.weight_grad_replicas}
    return {
        "layers": list(stage.layers),
        "replicas": [list(group) for group in stage.replicas],
        "recompute": stage.recompute if isinstance(stage.recompute, bool) else dict(stage.recompute),
        **({"recompute_microbatches": list(stage.recompute_microbatches)} if stage.recompute_microbatches else {}),
        **({"offload": [_offload_to_plain(each) for each in stage.offload]} if stage.offload else {}),
        **({} if stage.shard == "none" else {"shard": stage.shard}),
        **({"samples": list(stage.samples)} if stage.samples else {}),
        **({"degrees": dict(stage.degrees)} if stage.degrees else {}),
    } | {
        key: [{"group": list(share.group), "share": [share.numerator, share.denominator]} for share in value]
        for key, value in shares.items()
        if value
    }


def _offload_to_plain(moved: Offload) -> dict[str, Any]:
    return _fields(moved) | {name: str(getattr(moved, name)) for name in ("freed_before", "fetched_before")}


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _evidence_to_plain(evidence: Evidence) -> dict[str, Any]:
    plain = _fields(evidence) | {
        "baselines": [_fields(row) for row in evidence.baselines],
        "interpolated_costs": list(evidence.interpolated_costs),
        "assumed_divisible": None if evidence.assumed_divisible is None else list(evidence.assumed_divisible),
        "timings": dict(evidence.timings) or None,
        "search_params": dict(evidence.search_params) or None,
        "bucket_bytes": evidence.bucket_bytes or None,
        "improvers": [_stated_fields(tally) for tally in evidence.improvers] or None,
        "sizes": [_stated_fields(row) for row in evidence.sizes] or None,
        "rental": None if evidence.rental is None else _fields(evidence.rental),
    }
    return {key: value for key, value in plain.items() if value is not None or key not in _LEFT_OUT}


def _stated_fields(value: ImproverTally | SizeResult) -> dict[str, Any]:
    return {
        key: each
        for key, each in _fields(value).items()
        if each is not None and each != "" and not (key in _LATER and each == 0)
    }


_LATER = {"bounds_raised", "bound_gain_ns", "cases_closed"}
"""What a part of the search may have done and most parts never do."""


_LEFT_OUT = {
    "proved_by",
    "assumed_divisible",
    "timings",
    "bucket_bytes",
    "threads",
    "search_params",
    "improvers",
    "sizes",
    "rental",
}
"""Fields of the evidence that are left out where there is nothing to say."""


def parse_plan(text: str | bytes, *, source: str = "plan") -> Plan:
    """Read a plan document.

    Raises ValueError that names the source, the path inside the document, the value and the remedy.
    """
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:120]
        raise ValueError(f"{source}: not JSON ({reason}); give a plan document as `pipeplan plan` writes it") from None
    return plan_from_plain(document, source=source)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ; two lists for one device must not silently become one."""
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated[:60]!r} occurs twice in one object; keep one of them")
    return result


def plan_from_plain(document: Any, *, source: str = "plan") -> Plan:
    """Build a plan from the parsed document; raises ValueError as `parse_plan` does."""
    top = DocumentReader(document, dict, source=source, path="")
    if top.get("format", str).value != PLAN_FORMAT:
        raise top.get("format", str).error(f"is not {PLAN_FORMAT!r}; convert the document or use a matching version")
    evidence = top.optional("evidence", dict)
    return Plan(
        problem=_read_problem(top.get("problem", dict)),
        stages=tuple(_read_stage(item) for item in top.get("stages", list).items(dict)),
        schedule={
            device: tuple(item.action() for item in top.get("schedule", dict).get(device, list).items(str))
            for device in top.get("schedule", dict).value
        },
        evidence=None if evidence is None else read_evidence(evidence),
        dealing=_read_balance(top.optional("dealing", list)),
        max_active_stages=_value(top.optional("max_active_stages", int)),
    )


def _read_balance(reader: DocumentReader | None) -> tuple[tuple[int, ...], ...]:
    """Whether it deals every microbatch once is for the verifier to say."""
    return () if reader is None else tuple(_read_sizes(assignment) or () for assignment in reader.items(list))


def _read_problem(reader: DocumentReader) -> ProblemReference:
    return ProblemReference(
        profile=reader.get("profile", str).value,
        profile_sha256=reader.get("profile_sha256", str).value,
        cluster_sha256=reader.get("cluster_sha256", str).value,
        num_microbatches=reader.get("num_microbatches", int).value,
        options=reader.get("options", dict).value,
        microbatch_size=_value(reader.optional("microbatch_size", int)),
        global_batch_size=_value(reader.optional("global_batch_size", int)),
        microbatch_sizes=_read_sizes(reader.optional("microbatch_sizes", list)),
        microbatches=_read_sizes(reader.optional("microbatches", list)),
    )


def _value(reader: DocumentReader | None) -> Any:
    return None if reader is None else reader.value


def _read_sizes(reader: DocumentReader | None) -> tuple[int, ...] | None:
    return None if reader is None else tuple(item.value for item in reader.items(int))


def _read_stage(reader: DocumentReader) -> Stage:
    replicas = tuple(
        tuple(item.value for item in group.items(str)) for group in reader.get("replicas", list).items(list)
    )
    return Stage(
        layers=tuple(item.value for item in reader.get("layers", list).items(str)),
        replicas=replicas,
        recompute=_read_recompute(reader),
        recompute_microbatches=_read_recomputed(reader),
        offload=_read_offload(reader.optional("offload", list)),
        shard=_read_shard(reader, num_replicas=len(replicas)),
        input_grad_replicas=_read_shares(reader, "input_grad_replicas"),
        weight_grad_replicas=_read_shares(reader, "weight_grad_replicas"),
        samples=_read_sizes(reader.optional("samples", list)) or (),
        degrees=_read_degrees(reader.optional("degrees", dict)),
    )


def _read_degrees(reader: DocumentReader | None) -> tuple[tuple[str, int], ...]:
    if reader is None:
        return ()
    if unknown := reader.value.keys() - set(DEGREES):
        raise reader.error(f"names {min(unknown)[:40]!r}; give some of {', '.join(DEGREES)}")
    return tuple((name, reader.get(name, int).value) for name in DEGREES if name in reader.value)


def _read_recompute(reader: DocumentReader) -> bool | RecomputeMap:
    given = reader.optional("recompute", object)
    if given is None or isinstance(given.value, bool):
        return given is not None and bool(given.value)
    if not isinstance(given.value, dict):
        raise given.error("is neither true or false nor an object of layers and kinds; see the plan format")
    return tuple((name, given.get(name, str).value) for name in given.value)


def _read_recomputed(reader: DocumentReader) -> tuple[int, ...]:
    given = reader.optional("recompute_microbatches", list)
    if given is not None and not given.value:
        raise given.error("is empty; leave it out where all microbatches recompute, or say recompute = false")
    return _read_sizes(given) or ()


def _read_offload(reader: DocumentReader | None) -> tuple[Offload, ...]:
    if reader is not None and not reader.value:
        raise reader.error("is empty; leave it out where no stash travels")
    return tuple(
        Offload(
            microbatch=each.get("microbatch", int).value,
            freed_before=each.get("freed_before", str).action(),
            fetched_before=each.get("fetched_before", str).action(),
        )
        for each in (() if reader is None else reader.items(dict))
    )


def _read_shard(reader: DocumentReader, *, num_replicas: int) -> Shard:
    given = reader.optional("shard", str)
    found: Shard | None = "none" if given is None else next((each for each in SHARDS if each == given.value), None)
    if given is not None and found is None:
        raise given.error(f"is none of {', '.join(SHARDS)}; leave it out where nothing is sharded")
    if given is not None and found != "none" and num_replicas == 1:
        raise given.error("needs several replicas, and the stage has one; leave it out")
    assert found is not None
    return found


def _read_shares(reader: DocumentReader, key: str) -> tuple[Share, ...]:
    shares = reader.optional(key, list)
    return () if shares is None else tuple(_read_share(item) for item in shares.items(dict))


def _read_share(reader: DocumentReader) -> Share:
    numbers = [item.value for item in reader.get("share", list).items(int)]
    if len(numbers) != 2 or min(numbers) < 1:
        raise reader.get("share", list).error("is not two positive integers, as [1, 2]; see the plan format")
    group = tuple(item.value for item in reader.get("group", list).items(str))
    return Share(group=group, numerator=numbers[0], denominator=numbers[1])
