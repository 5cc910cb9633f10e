"""How much of a long piece of work is done at once, so that nobody waits long for its end."""


class Portion:
    """A size that falls where portions take longer than they should, and rises where they take less."""

    def __init__(self, *, least: int, most: int, goal_s: float) -> None:
        """The first is the largest; `goal_s` is how long one should take."""
        self._least, self._most, self._goal_s = least, most, goal_s
        self.size = most
        """Of the next portion, in whatever is counted."""

    def learn(self, took_s: float) -> None:
        """The last portion took so long."""
        fitting = int(self.size * self._goal_s / max(took_s, 1e-3))
        self.size = min(self._most, max(self._least, fitting))
