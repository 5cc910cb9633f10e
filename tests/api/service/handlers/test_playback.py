"""Tests of api/service/handlers/playback.py."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from api.auditing.audit_request import AuditRequest
from api.jobs.request import SOURCE, Ceilings, parse_tree, read_submission
from api.jobs.stores.sqlite import SqliteDatabase
from api.service.handlers.notice_handlers import Notice
from api.service.handlers.picture_handlers import RangeOrder
from api.service.handlers.plan_handlers import Filing
from api.service.handlers.playback import Playback, Verification, WhatIf
from api.service.handlers.route_notes import example_submission
from api.service.handlers.webhook_handlers import NewWebhook
from api.service.openapi import make_document
from api.service.webhooks import Webhooks
from planner.plan import PLAN_FORMAT
from profiles.documents.validation import validate

KINDS = {
    kind.__name__: kind
    for kind in (AuditRequest, Notice, RangeOrder, Filing, Playback, Verification, WhatIf, NewWebhook)
}


PLAN = {"format": PLAN_FORMAT}


@cache
def validator(name: str) -> Any:
    """What the document says of a body."""
    components = {"components": make_document()["components"]}
    return jsonschema.Draft202012Validator({**components, "$ref": f"#/components/schemas/{name}"})


def is_taken(name: str, text: str) -> bool:
    """Whether the program reads the body; what its names refer to does not count."""
    try:
        if name == "Submission":
            read_submission(text.encode(), Ceilings())
        else:
            read = validate(KINDS[name], parse_tree(text.encode()), source=SOURCE)
            if isinstance(read, NewWebhook):
                return Webhooks(SqliteDatabase(Path("nowhere")), hosts=("*",)).allows(read.url)
    except ValueError:
        return False
    return True


def submission(**changes: Any) -> str:
    """The example with changes, which are written as they are."""
    return json.dumps({**example_submission(), **changes})


EXAMPLE = json.dumps(example_submission())


ROUNDS = {"max_rounds": 3}


RIGHT: list[tuple[str, str]] = [
    ("AuditRequest", json.dumps({"program": "megatron", "model": "llama3-8b", "tp": 2, "gpu": "h100"})),
    ("AuditRequest", json.dumps({"program": "deepspeed", "file": "ds.json", "text": "{}", "model": None})),
    ("Submission", submission(priority=-6.0)),
    ("Submission", submission(limits={"seed": 4.0, "max_rounds": 2.0, "threads": 1.0, "time_limit_s": 5})),
    ("Submission", EXAMPLE.replace("1000000,", "1e6,")),
    ("Submission", EXAMPLE.replace("1000000,", "1000000.000,")),
    ("Submission", EXAMPLE.replace("1000000,", "0.1e7,")),
    ("Submission", submission(num_microbatches=None, global_batch_size=None, microbatch_sizes=None)),
    ("Submission", submission(num_microbatches=3, global_batch_size=None)),
    ("Submission", submission(start_from=None, limits=ROUNDS)),
    ("Submission", submission(limits={"method": "ilp", "solver": "PULP_CBC_CMD"})),
    ("Submission", submission(limits={"method": "search", "solver": None})),
    ("WhatIf", '{"base": "", "change": {"devices": -1.0, "memory_bytes": 1e3}, "priority": 2.0}'),
    ("WhatIf", '{"base": "", "change": {"num_microbatches": 4, "microbatch_size": 2, "global_batch_size": null}}'),
    ("RangeOrder", '{"base": "", "changes": [{"lost": ["a b", "\\u00e9"]}, {"devices": 1e0}]}'),
    ("Notice", '{"event": "drifted", "detail": {"a": {"b": ["\\u0001", 1.5, null, {}]}, "": 6.0}}'),
    ("Filing", '{"project": "", "tags": ["a/b.c-d", "7"]}'),
    ("Verification", json.dumps({"plan": {**PLAN, "more": [1.0]}, "workload": None, "certificate": True})),
    ("Playback", json.dumps({"plan": PLAN, "what": "view", "other": None})),
    ("NewWebhook", '{"url": "HTTPS://hooks.example.com:8443/a%20b?c=[1]#d"}'),
]


WRONG: list[tuple[str, str]] = [
    ("AuditRequest", json.dumps({"program": "megatron"})),
    ("AuditRequest", json.dumps({"program": "megatron", "model": "llama3-8b", "tp": 0})),
    ("AuditRequest", json.dumps({"program": "megatron", "model": "llama3-8b", "text": "{}"})),
    ("AuditRequest", json.dumps({"program": "megatron", "model": "llama3-8b", "config": {}})),
    ("AuditRequest", json.dumps({"program": "torchtitan", "file": "train.toml"})),
    ("AuditRequest", json.dumps({"program": "megatron", "model": "llama3-8b", "time_limit_s": 0})),
    ("Submission", submission(priority=-6.5)),
    ("Submission", submission(priority=1).replace('"priority": 1', '"priority": 15e-1')),
    ("Submission", submission(surprise=1)),
    ("Submission", submission(**{"a\0b": 1})),
    ("Submission", json.dumps({"start_from": None, "priority": 1})),
    ("Submission", json.dumps({"limits": ROUNDS})),
    ("Submission", "{}"),
    ("Submission", submission(num_microbatches=2**30 + 1)),
    ("Submission", submission(num_microbatches=1, global_batch_size=8)),
    ("Submission", submission(num_microbatches=1, microbatch_sizes=[8])),
    ("Submission", submission(islands=1)),
    ("Submission", submission(start_from="0" * 32, limits=ROUNDS)),
    ("Submission", submission(limits={"solver": "HiGHS"})),
    ("Submission", submission(limits={"method": "cp-sat", "solver": "HiGHS"})),
    ("Submission", submission(project="a\0")),
    ("WhatIf", '{"base": "", "change": {"num_microbatches": 4, "microbatch_size": 2, "global_batch_size": 8}}'),
    ("WhatIf", '{"base": "", "change": {"devices": 0.5}}'),
    ("RangeOrder", '{"base": "", "changes": [{"lost": ["\\u0000"]}]}'),
    ("Notice", '{"event": "drifted", "detail": {"a": {"b": ["\\u0000"]}}}'),
    ("Notice", '{"event": "drifted", "detail": {"a": [{"\\u0000": 1}]}}'),
    ("Filing", '{"tags": ["a", "b c"]}'),
    ("NewWebhook", '{"url": ""}'),
    ("NewWebhook", '{"url": "http://hooks.example.com/a b"}'),
    ("NewWebhook", '{"url": "http://hooks.example.com/%zz"}'),
    ("NewWebhook", '{"url": "mailto:a@example.com"}'),
]


@pytest.mark.parametrize(
    ("name", "text", "is_right"), [(*each, True) for each in RIGHT] + [(*each, False) for each in WRONG]
)
def test_document_and_program_agree(name: str, text: str, is_right: bool):
    """Tests that what the document allows is taken, and what it does not is refused."""
    found = [error.message[:200] for error in validator(name).iter_errors(json.loads(text))]
    assert (not found) == is_right, found
    assert is_taken(name, text) == is_right
