"""Why a search has no plan: what it came by and did not count, by reasons, and what it does not look at."""

import re
from collections import Counter


class DroppedPlans:
    """Reasons that differ in numbers and names alone count as one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._notes: list[str] = []

    def add(self, reason: str) -> None:
        """One more plan did not count."""
        kind = re.sub(r"'[^']*'|\d[\d,]*", "", reason)
        self._counts[kind] += 1
        self._first.setdefault(kind, reason)

    def note(self, reason: str) -> None:
        """Plans of a kind were not looked for."""
        self._notes.append(reason)

    def reasons(self, most: int) -> list[str]:
        """What was not looked for, and the most frequent ones in the words of their first plan, with their counts."""
        return self._notes + [
            f"{count} {'plans were' if count > 1 else 'plan was'} dropped: {self._first[kind].rstrip('.')}"
            for kind, count in self._counts.most_common(most)
        ]
