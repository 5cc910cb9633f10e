"""Parts of a model that were cut into layers, but not trained beside the model as it is for a trial."""

from collections.abc import Sequence

NOT_COMPARED = "not compared with the model as it is"
"""How the sentence begins, in a profile's provenance as well."""


def tell_not_compared(names: Sequence[str]) -> str:
    """Some of their names, and how many there are more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{NOT_COMPARED}: {', '.join(names[:3])}{more}"
