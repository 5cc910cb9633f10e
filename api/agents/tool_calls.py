"""What the tools take beside the bodies that the service reads itself."""

from dataclasses import dataclass, field
from typing import Literal

from api.jobs.plan_forms import Export
from planner.progress import Limits

_STRICT = {"extra": "forbid", "use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCall:
    """A question: one of workload_id, demo, workload and start_from."""

    __pydantic_config__ = _STRICT

    workload_id: str | None = None
    """What `audit` answered."""
    demo: str | None = None
    """A workload of `list_demos`."""
    workload: dict[str, object] | None = None
    """A workload document, as `pipeplan profile` writes it."""
    start_from: str | None = None
    """A plan of this service, whose question is asked again, and whose plan the search begins with."""
    num_microbatches: int | None = None
    """Instead of the workload's own number."""
    global_batch_size: int | None = None
    """Samples per iteration, instead of a number of microbatches: their size and number are decided."""
    options: dict[str, object] = field(default_factory=dict)
    """Options of the problem, on top of the workload's own, e.g. {"max_stages_per_device": 2, "recompute": true}."""
    limits: Limits = field(default_factory=lambda: Limits(time_limit_s=20.0))
    """When to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCall:
    """A plan of this service."""

    __pydantic_config__ = _STRICT

    plan_id: str
    """Its `id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCall(JobCall):
    """What is made of a finished plan."""

    form: Literal["plan", "report", Export] = "plan"
    """`plan`: the document for `pipeplan launch` and `verify`; `report`: stages, devices, memory, baselines; `torch`: a
    table for torch's pipelining; `trace`: a Chrome trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCall:
    """A plan that is checked: one of plan_id and plan."""

    __pydantic_config__ = _STRICT

    plan_id: str | None = None
    """A finished plan of this service."""
    plan: dict[str, object] | None = None
    """A plan document from anywhere."""
    workload_id: str | None = None
    """What the plan answers, where it does not bring that along."""
    certificate: bool = False
    """Also derive everything that the plan states of itself, lower bound and gap included; takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoArguments:
    """The input of tools that take none: an empty object."""

    __pydantic_config__ = _STRICT
