"""Evidence of a plan document: unknown keys, wrong types and numbers out of range are refused.

What the figures say is for the verifier to recompute. Standard library only, so executors can read them.
"""

import re

from planner.documents.document_reader import DocumentReader
from planner.documents.plan_values import ALLOWED_VALUES, PARAMETER_NAME, TIMINGS
from planner.documents.records import RecordReader, one_of, require_known
from planner.plan import Evidence

_DEPTH = 3
"""So deep may lists stand in lists in a parameter of the search."""

_STRICT = RecordReader(has_ranges=True)


def read_evidence(reader: DocumentReader) -> Evidence:
    """The evidence of a plan; raises ValueError with what is unknown, missing, of a wrong type or out of range."""
    evidence = _STRICT.read(Evidence, reader.as_a(dict))
    for name, values in ALLOWED_VALUES.items():
        one_of(reader.get(name, str), values)
    _read_verdict(reader.get("verdict", dict))
    if (timings := reader.optional("timings", dict)) is not None:
        require_known(timings, TIMINGS)
        for name in timings.value:
            one_of(timings.get(name, str), TIMINGS[name])
    if (params := reader.optional("search_params", dict)) is not None:
        for name in params.value:
            if re.match(PARAMETER_NAME, name) is None:
                raise params.error(f"names {name[:40]!r}, which is not a group.field; see `pipeplan search-params`")
            if params.value[name] is not None:
                _read_param(params.get(name, object), depth=_DEPTH)
    return evidence


def _read_verdict(reader: DocumentReader) -> None:
    reader.get("passed", bool)
    reader.get("violations", list)


def _read_param(reader: DocumentReader, *, depth: int) -> None:
    """A parameter of the search is null, a number, or a list of numbers, nulls and lists."""
    if isinstance(reader.value, list) and reader.value and depth:
        for item in reader.items(object):
            if item.value is not None:
                _read_param(item, depth=depth - 1)
    elif not isinstance(reader.value, list):
        _STRICT.number(reader, float, name="")
    else:
        raise reader.error("is neither a number nor a list of numbers; see `pipeplan search-params`")
