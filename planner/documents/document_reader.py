"""A value of a parsed document together with the path that led to it. Standard library only."""

from typing import Any

from planner.actions import parse_action


class DocumentReader:
    """Hands out values of the asked kind; raises ValueError that names source, path, value and remedy."""

    def __init__(self, value: Any, kind: type, *, source: str, path: str) -> None:
        self.source, self.path, self.value = source, path, value
        if not isinstance(value, kind) or (kind is not bool and kind is not object and isinstance(value, bool)):
            raise self.error(f"is not {_KIND_NAMES[kind]}; see the plan format")

    def error(self, problem: str) -> ValueError:
        """What is wrong with this value."""
        return ValueError(f"{self.source}: {self.path or 'the document'} = {repr(self.value)[:60]} {problem}")

    def get(self, key: str, kind: type) -> "DocumentReader":
        """The value under a key that must be there."""
        if key not in self.value:
            raise ValueError(f"{self.source}: {self._at(key)} is missing; see the plan format")
        return DocumentReader(self.value[key], kind, source=self.source, path=self._at(key))

    def optional(self, key: str, kind: type) -> "DocumentReader | None":
        """The value under a key; None where it is missing or null."""
        return None if self.value.get(key) is None else self.get(key, kind)

    def items(self, kind: type) -> list["DocumentReader"]:
        """The values of an array."""
        return [
            DocumentReader(item, kind, source=self.source, path=f"{self.path}[{index}]")
            for index, item in enumerate(self.value)
        ]

    def as_a(self, kind: type) -> "DocumentReader":
        """The same value, held to a kind."""
        return DocumentReader(self.value, kind, source=self.source, path=self.path)

    def action(self) -> Any:
        """The action that a text names."""
        try:
            return parse_action(self.value)
        except ValueError as error:
            raise ValueError(f"{self.source}: {self.path}: {error}") from None

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


_KIND_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    object: "a value",
}
