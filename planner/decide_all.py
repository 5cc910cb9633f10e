"""The options under which all is decided that a profile states costs for."""

from collections.abc import Mapping
from typing import Any

from planner.decisions.choices import opened
from planner.export.targets import MOST_CHUNKS
from profiles.model_profile import ModelProfile


def open_decisions(
    profile: ModelProfile, *, stated: Mapping[str, Any] | None = None, has_one_size: bool = True
) -> dict[str, Any]:
    """Options by name: as many stages per device as are looked at, and what the profile says of the decisions.

    Replicas, cuts, devices and orders are open without them. What is stated holds, and so does what it excludes.
    """
    return {"max_stages_per_device": MOST_CHUNKS, **opened(profile, stated or {}, has_one_size=has_one_size)}
