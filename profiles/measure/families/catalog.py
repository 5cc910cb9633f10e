"""Well-known models in plain torch.nn, layer by layer, each from a line of settings: `gpt:layers=48,width=1600`."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from profiles.measure.families.residual import make_resnet
from profiles.measure.families.transformers import make_gpt, make_llama, make_mixture, make_vit
from profiles.measure.model import Model

FAMILIES: dict[str, Callable[..., Model]] = {
    "gpt": make_gpt,
    "llama": make_llama,
    "vit": make_vit,
    "mixture": make_mixture,
    "resnet": make_resnet,
}
"""By the names that the command line takes."""

MOST = 2**31 - 1


def make_family(name: str, settings: str) -> Model:
    """The model of a family with some settings (`layers=4,width=256`) and defaults for the others.

    Raises ValueError that names the setting, its value and what may be given.
    """
    known = {key: parameter.default for key, parameter in inspect.signature(FAMILIES[name]).parameters.items()}
    chosen: dict[str, Any] = {}
    for item in filter(None, settings.split(",")):
        key, sign, text = item.partition("=")
        if not sign or key not in known:
            meant = difflib.get_close_matches(key, known, n=1)
            example = ",".join(f"{key}={value}" for key, value in list(known.items())[:2])
            given = f"give one of {', '.join(known)}, e.g. {example}"
            remedy = f"did you mean {meant[0]!r}?" if meant else given
            raise ValueError(f"{name}: {item!r} is not a setting; {remedy}")
        if key in chosen:
            raise ValueError(f"{name}: {key} is given twice; keep one of them")
        chosen[key] = _number(name, key, text=text)
    return FAMILIES[name](**chosen)


def _number(name: str, key: str, *, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or not 1 <= int(text) <= MOST:
        raise ValueError(f"{name}: {key} = {text[:40]!r} is out of range; give a whole number from 1 to {MOST:,}")
    return int(text)
