"""Workloads between two calls: an agent passes an identifier on, not a document of a hundred thousand characters."""

import hashlib
import json
from collections import OrderedDict
from typing import Any

from api.agents.tool_problem import ToolProblem

_MOST_BYTES = 64 * 2**20
"""Of all that are kept; the one used last goes last."""


class KeptWorkloads:
    """Documents by the hash of their text: who can name one has had it."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._num_bytes = 0

    def keep(self, text: str) -> str:
        """The identifier of a workload's text."""
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        if name not in self._texts:
            self._num_bytes += len(text)
            self._texts[name] = text
        self._texts.move_to_end(name)
        while self._num_bytes > _MOST_BYTES and len(self._texts) > 1:
            self._num_bytes -= len(self._texts.popitem(last=False)[1])
        return name

    def find(self, name: str) -> dict[str, Any]:
        """The document; raises ToolProblem for one that is not kept any more."""
        text = self._texts.get(name)
        if text is None:
            error = {"pointer": "/workload_id", "detail": "it is not kept any more; call audit again"}
            raise ToolProblem(
                "not_found", detail="there is no such workload; call audit again", errors=[error], status=404
            )
        self._texts.move_to_end(name)
        document: dict[str, Any] = json.loads(text)
        return document
