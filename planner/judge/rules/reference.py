"""Rules: the plan answers this problem."""

import json
from collections.abc import Mapping
from dataclasses import fields

from planner.judge.batch import measured_at
from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.problem import Options
from profiles.documents.canonical_json import to_plain


def profile_name(case: Case) -> Findings:
    """The plan was made for a profile of this name."""
    yield from _same("the profile's name", expected=case.problem.profile.name, actual=case.plan.problem.profile)


def profile_hash(case: Case) -> Findings:
    """The plan was made for this profile."""
    yield from _same(
        "the profile's content hash", expected=case.problem.profile_sha256, actual=case.plan.problem.profile_sha256
    )


def cluster_hash(case: Case) -> Findings:
    """The plan was made for this cluster."""
    yield from _same(
        "the cluster's content hash", expected=case.problem.cluster_sha256, actual=case.plan.problem.cluster_sha256
    )


def microbatch_count(case: Case) -> Findings:
    """The plan was made for this number of microbatches."""
    yield from _same(
        "the number of microbatches", expected=case.problem.num_microbatches, actual=case.plan.problem.num_microbatches
    )


def microbatches_listed(case: Case) -> Findings:
    """The plan was made for microbatches of these sizes."""
    yield from _same(
        "the list of microbatches", expected=case.problem.microbatches, actual=case.plan.problem.microbatches
    )


def batch_size(case: Case) -> Findings:
    """The plan was made for this global batch, and to choose among these sizes of microbatches."""
    stated, asked = case.plan.problem, case.problem.batch
    whole = None if asked is None else asked.global_batch_size
    sizes = None if asked is None else asked.microbatch_sizes
    yield from _same("the global batch", expected=whole, actual=stated.global_batch_size)
    yield from _same("the choice of microbatch sizes", expected=sizes, actual=stated.microbatch_sizes)
    if asked is None:
        yield from _same("the microbatch size", expected=None, actual=stated.microbatch_size)


def batch_cut(case: Case) -> Findings:
    """The microbatches of the plan are the global batch: their size times their number."""
    stated, asked = case.plan.problem, case.problem.batch
    if asked is None:
        return
    size, count, whole = stated.microbatch_size, stated.num_microbatches, asked.global_batch_size
    if type(size) is not int or type(count) is not int or size * count != whole:
        message = f"The plan has {shown(count, 40)} microbatches of {shown(size, 40)} samples, which are not {whole}."
        yield Finding("the microbatch size", f"size x number = {whole}", f"{size} x {count}", message)


def size_unmeasured(case: Case) -> Findings:
    """The size of the plan's microbatches is one of those allowed, or measured where the question names none."""
    asked, size = case.problem.batch, case.plan.problem.microbatch_size
    if asked is None or size is None:
        return
    allowed = sorted(asked.microbatch_sizes or measured_at(asked.profile))
    if size not in allowed:
        message = f"The plan has microbatches of {size} samples, none of the sizes {shown(allowed, 80)}."
        yield Finding("the microbatch size", allowed, size, message)


def _same(subject: str, *, expected: object, actual: object) -> Findings:
    if type(actual) is not type(expected) or actual != expected:
        message = (
            f"The plan answers another problem: {subject} is {shown(actual, 80)} instead of {shown(expected, 80)}."
        )
        yield Finding(subject, expected, actual, message)


def options_differ(case: Case) -> Findings:
    """The plan was made under these options; an option left out stands for its default."""
    given = case.plan.problem.options
    defaults = {entry.name: to_plain(getattr(Options(), entry.name)) for entry in fields(Options)}
    expected = {entry.name: to_plain(getattr(case.options, entry.name)) for entry in fields(Options)}
    actual = defaults | to_plain(dict(given)) if isinstance(given, Mapping) else {"options": given}
    for name in sorted(expected.keys() | actual.keys()):
        texts = [_json(values[name]) if name in values else "nothing" for values in (expected, actual)]
        if texts[0] != texts[1]:
            message = f"The plan answers another problem: option {shown(name, 80)} is {shown(texts[1], 80)} "
            yield Finding(f"option {name}", texts[0], texts[1], f"{message}instead of {shown(texts[0], 80)}.")


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


RULES: Rules = {
    profile_name: "Give the question that the plan was made for, or plan again.",
    profile_hash: "Give the question that the plan was made for, or plan again.",
    cluster_hash: "Give the question that the plan was made for, or plan again.",
    microbatch_count: "Give the question that the plan was made for, or plan again.",
    microbatches_listed: "Give the question that the plan was made for, or plan again.",
    batch_size: "Give the question that the plan was made for, or plan again.",
    batch_cut: "Correct the plan's number of microbatches or their size.",
    size_unmeasured: "Measure this size, or plan with one that was measured.",
    options_differ: "Give the question that the plan was made for, or plan again.",
}
