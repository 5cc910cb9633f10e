"""Rows that take long to make: kept as lines of JSON as they come, so that what was stopped continues."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


class Records(list[Row], Generic[Row]):
    """Rows of one dataclass, or dictionaries, in the order they were made; a line that was not ended is made again."""

    def __init__(self, path: Path, row: type[Row]) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        super().__init__(row(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines())
        if text and not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")

    def add(self, row: Any) -> None:
        """Keep a row, at once."""
        self.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row if isinstance(row, dict) else asdict(row)) + "\n")
