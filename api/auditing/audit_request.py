"""An audit as a service, or any program, asks for it: nothing of this machine's files is read."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from profiles.configurations.audit_question import MOST_COUNT, MOST_GIB, AuditQuestion
from profiles.configurations.known_models import MODELS
from profiles.documents.schema_rules import JSON_OBJECT, Stated, given
from profiles.documents.validation import validate
from profiles.field_rules import MAX_NAME_LENGTH

MOST_SECONDS = 60.0
"""For a better plan."""

_MODEL, _CONFIG = given("model", {"type": "string"}), given("config", {"type": "object"})
_FILE, _TEXT = (given(name, {"type": "string"}) for name in ("file", "text"))
_STRICT = {"extra": "forbid", "use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest(AuditQuestion):
    """The body of `POST /v1/audits`: what the command is given, with files as their texts."""

    __pydantic_config__ = _STRICT
    __schema_rules__ = {  # noqa: RUF012
        "anyOf": [_MODEL, _CONFIG, _FILE, given("workload", {"type": "object"})],
        "allOf": [{"not": {"allOf": [_MODEL, _CONFIG]}}, {"if": _FILE, "then": _TEXT, "else": {"not": _TEXT}}],
    }

    config: Annotated[dict[str, object], Stated(JSON_OBJECT)] | None = None
    """A model's config.json, instead of a known model's name."""
    workload: Annotated[dict[str, object], Stated(JSON_OBJECT)] | None = None
    """One with measured layers, instead of estimates."""
    time_limit_s: Annotated[float, Stated(exclusiveMinimum=0, maximum=MOST_SECONDS)] = 5.0
    """For the better plan."""
    other_degrees: bool = False
    """Whether other degrees are looked for as well, as long again."""
    files: bool = False
    """Whether workload, plans and flags are wanted as well, as the command writes them."""

    def __post_init__(self) -> None:
        """Raise ValueError for what would be read from this machine, or takes too long."""
        if self.file is not None and self.text is None:
            raise ValueError("file: is a name; give its text beside it")
        if self.text is not None and self.file is None:
            raise ValueError("text: has no name; give file, whose ending says what it is")
        if self.file is not None and len(self.file) > MAX_NAME_LENGTH:
            raise ValueError(f"file: has {len(self.file)} characters; give at most {MAX_NAME_LENGTH}")
        if all(each is None for each in (self.model, self.config, self.file, self.workload)):
            raise ValueError("model: is missing; give it, or config, or file and text")
        if self.model is not None and self.config is not None:
            raise ValueError("model, config: give one of them")
        if self.model is not None and self.model.lower() not in MODELS:
            raise ValueError(f"model: not known; give one of {', '.join(MODELS)}, or give config")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= MOST_COUNT:
                raise ValueError(f"{each.name} = {value}: give 1 or more, and at most {MOST_COUNT:,}")
        if self.gpu_memory is not None and not 1 <= self.gpu_memory <= MOST_GIB:
            raise ValueError(f"gpu_memory = {self.gpu_memory:g}: give GiB, 1 or more, and at most {MOST_GIB:,}")
        if not 0 < self.time_limit_s <= MOST_SECONDS:
            raise ValueError(f"time_limit_s = {self.time_limit_s:g}: give more than 0, and at most {MOST_SECONDS:g}")


def read_audit_request(tree: dict[str, Any], *, source: str) -> AuditRequest:
    """The request; raises ValueError with the field."""
    return validate(AuditRequest, tree, source=source)
