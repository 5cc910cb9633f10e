"""Plan documents: a `Plan` to `pipeline-plan/1` JSON and back. Standard library only, so executors can read them."""

import hashlib
import json
from dataclasses import replace
from typing import Any

from planner.actions import Action
from planner.documents.document_reader import DocumentReader
from planner.documents.evidence_document import read_evidence
from planner.documents.plan_values import DEGREES
from planner.documents.records import RecordReader, require_known, to_plain
from planner.plan import PLAN_FORMAT, Evidence, Plan, Share, Stage

_LINES = ("stages", "schedule", "evidence")
"""What a document writes in several lines."""


def render_plan(plan: Plan) -> str:
    """The document of a plan: stable order, one line per stage, device and piece of evidence, ends with a newline."""
    parts = plan_to_plain(plan).items()
    texts = (f"{_text(key)}: {_lines(value) if key in _LINES else _text(value)}" for key, value in parts)
    return "{" + ",\n ".join(texts) + "}\n"


def plan_sha256(plan: Plan) -> str:
    """Content hash of a plan: of its document as we write it, however it was written."""
    return hashlib.sha256(render_plan(plan).encode()).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lines(value: Any) -> str:
    """A line for each item of a list or an object."""
    if isinstance(value, dict):
        return "{\n  " + ",\n  ".join(f"{_text(key)}: {_text(each)}" for key, each in value.items()) + "}"
    return _text(value) if value is None else "[\n  " + ",\n  ".join(map(_text, value)) + "]"


def plan_to_plain(plan: Plan) -> dict[str, Any]:
    """The document of a plan as plain dictionaries and lists."""
    return {"format": PLAN_FORMAT, **to_plain(plan)}


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
    own = {key: value for key, value in top.value.items() if key not in ("format", "$schema")}
    return _PLANS.read(Plan, DocumentReader(own, dict, source=source, path=""))


def _read_stage(reader: DocumentReader) -> Stage:
    stage = _STAGES.read(Stage, reader.as_a(dict))
    if reader.value.get("recompute_microbatches") == []:
        given = reader.get("recompute_microbatches", list)
        raise given.error("is empty; leave it out where all microbatches recompute, or say recompute = false")
    if reader.value.get("offload") == []:
        raise reader.get("offload", list).error("is empty; leave it out where no stash travels")
    if stage.shard != "none" and len(stage.replicas) == 1:
        raise reader.get("shard", str).error("needs several replicas, and the stage has one; leave it out")
    degrees = dict(stage.degrees)
    if unknown := degrees.keys() - set(DEGREES):
        raise reader.get("degrees", dict).error(f"names {min(unknown)[:40]!r}; give some of {', '.join(DEGREES)}")
    return replace(stage, degrees=tuple((name, degrees[name]) for name in DEGREES if name in degrees))


def _read_action(reader: DocumentReader) -> Action:
    found: Action = reader.as_a(str).action()
    return found


def _read_share(reader: DocumentReader) -> Share:
    whole = reader.as_a(dict)
    require_known(whole, {"share": None, "group": None})
    numbers = [item.value for item in whole.get("share", list).items(int)]
    if len(numbers) != 2 or min(numbers) < 1:
        raise whole.get("share", list).error("is not two positive integers, as [1, 2]; see the plan format")
    group = tuple(item.value for item in whole.get("group", list).items(str))
    return Share(group=group, numerator=numbers[0], denominator=numbers[1])


_STAGES = RecordReader(has_ranges=False, forms={Share: _read_share, Action: _read_action})
_PLANS = RecordReader(has_ranges=False, forms={Stage: _read_stage, Evidence: read_evidence})
