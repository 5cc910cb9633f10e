"""A stand-in for triton where it is not installed, as beside a torch for processors.

Modules of Megatron-LM and torchtitan name its types and decorate kernels by it when they are imported; none is run.
"""

import importlib
import importlib.util
import sys
import types
from typing import Any


class Lacking(types.ModuleType):
    """A module that is not here: its decorators give back what they are given."""

    __path__ = ()
    __version__ = "3.5.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **_: given[0] if given and callable(given[0]) else lambda function: function


def stand_in() -> None:
    """To be called before their modules are imported."""
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        importlib.import_module("torch._inductor.compile_fx")  # asks whether it is there: it must hear that it is not

        sys.modules["triton"] = triton = Lacking("triton")
        sys.modules["triton.language"] = triton.language = Lacking("triton.language")  # type: ignore[attr-defined]
