"""What stands enclosed in a plan, as plain trees: for programs that have nothing but the standard library."""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

from planner.plan import Plan

KEY = "enclosed"
"""Where in the certificate the question stands; every kind of bound leaves the key free."""

MAX_INFLATED = 256 * 2**20
"""Bytes that a deflated question may hold."""


def enclosed_tree(plan: Plan, *, source: str = "plan") -> dict[str, Any] | None:
    """`{"profile": ..., "cluster": ...}` as their documents are, or None if the plan brings none.

    Raises ValueError that names the source and the path inside it if it cannot be read.
    """
    certificate = None if plan.evidence is None else plan.evidence.certificate
    enclosed = certificate.get(KEY) if isinstance(certificate, Mapping) else None
    if enclosed is None:
        return None
    place = f"{source}: evidence.certificate.{KEY}"
    is_deflated = isinstance(enclosed, dict) and set(enclosed) == {"deflated"}
    tree = _inflate(enclosed["deflated"], place=place) if is_deflated else enclosed
    if not isinstance(tree, dict) or set(tree) != {"profile", "cluster"}:
        raise ValueError(f"{place} is not a profile and a cluster; make the plan again, or give its workload")
    return tree


def _inflate(text: object, *, place: str) -> Any:
    try:
        data = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
        stream = zlib.decompressobj()
        inflated = stream.decompress(data, MAX_INFLATED)
        if not stream.eof:
            raise ValueError("it is cut off or too large")
        return json.loads(inflated)
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(
            f"{place}.deflated cannot be read ({str(error)[:80]}); make the plan again, or give its workload"
        ) from None
