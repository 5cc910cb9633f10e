"""Chakra's linked traces (JSON: a host's execution trace with times of the profiler's), as events of the profiler.

What `chakra_trace_link` writes, schema 1.0.2 to 1.1.1: operators with `ts` and `inclusive_dur` in microseconds, kernels
behind the operator that launched them. Written anew from the format; nothing of Chakra's is copied.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_ANNOTATION = re.compile(r"(?:PP:)?[0-9]+[FIWB][0-9]+|Optimizer\.step#.*|ProfilerStep#.*|gloo:(?:send|recv)")
"""Names of nodes that are no operators; the format does not say it of them."""


BACKWARD = "autograd::engine::evaluate_function"
"""How the names of autograd's steps begin."""


def rank_of_name(path: Path) -> int | None:
    """The last number of a file's name: the format says no rank, and its tools name files by them."""
    numbers = re.findall(r"[0-9]+", path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".et"))
    return int(numbers[-1]) if numbers else None


def read_nodes(nodes: Iterable[Mapping[str, Any]], *, path: Path) -> Iterator[dict[str, Any]]:
    """Events of the profiler's form, node by node, with a launch for every kernel.

    Raises ValueError with one message where no node has times: a host's trace that was not linked.
    """
    launched: dict[object, tuple[object, object]] = {}
    has_times, backward = False, _Backward()
    for node in nodes:
        told = {str(one.get("name")): one.get("value") for one in node.get("attrs", ()) if isinstance(one, dict)}
        category, start = node.get("cat"), node.get("ts")
        if start is None:
            continue
        has_times = True
        yield from backward.heard(node, told)
        span = {"ph": "X", "name": node.get("name"), "ts": start, "dur": node.get("inclusive_dur")}
        if category is None:
            launched[node.get("id")] = start, told.get("tid")
            is_mark = _ANNOTATION.fullmatch(str(node.get("name"))) is not None
            arguments = {"Sequence number": told.get("seq_id"), "Fwd thread id": told.get("fw_tid"), **_inputs(node)}
            event = span | {
                "cat": "user_annotation" if is_mark else "cpu_op",
                "tid": told.get("tid"),
                "args": arguments,
            }
            if not backward.holds(event, node=node):
                yield event
            continue
        began, thread = launched.get(node.get("ctrl_deps"), (start, told.get("tid")))
        launch = {"ph": "X", "name": "launch", "cat": "cuda_runtime", "ts": began, "dur": 0, "tid": thread}
        yield launch | {"args": {"correlation": node.get("id")}}
        yield span | {"cat": category, "args": {"correlation": node.get("id"), "stream": node.get("stream")}}
    yield from backward.heard({}, {})
    if not has_times:
        raise ValueError(
            f"{path}: is a host's execution trace without times; link it with the profiler's trace of the same rank "
            "(chakra_trace_link) and give what that writes"
        )


class _Backward:
    """A step of autograd, whose number torch's observer states with the first operator that it called (2.13 does)."""

    def __init__(self) -> None:
        self._event: dict[str, Any] | None = None
        self._id: object = None

    def holds(self, event: dict[str, Any], *, node: Mapping[str, Any]) -> bool:
        """Whether the event waits for its number."""
        is_numberless = event["args"].get("Sequence number") in (None, -1)
        if not (is_numberless and str(event["name"]).startswith(BACKWARD)):
            return False
        self._event, self._id = event, node.get("id")
        return True

    def heard(self, node: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The event that waited, once the node after it is there."""
        if self._event is not None:
            if node.get("ctrl_deps") == self._id:
                self._event["args"]["Sequence number"] = told.get("seq_id")
                self._event["args"]["Fwd thread id"] = told.get("fw_tid")
            yield self._event
            self._event = None


def _inputs(node: Mapping[str, Any]) -> dict[str, Any]:
    """Of a node, in the words of the profiler; what is not stated is left out."""
    given = node.get("inputs")
    if not isinstance(given, dict):
        return {}
    names = {"values": "Concrete Inputs", "shapes": "Input Dims", "types": "Input type"}
    found = {name: given[key] for key, name in names.items() if isinstance(given.get(key), list)}
    if "Input type" in found:
        kinds = map(str, found["Input type"])  # `float` of `Tensor(float)`
        found["Input type"] = [kind[kind.rfind("(") + 1 : -1] if kind.endswith(")") else kind for kind in kinds]
    return found
