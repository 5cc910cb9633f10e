"""The exception tree: what can go wrong between a question and a plan.

    PipeplanError
    ├── InfeasibleProblemError   no plan exists: which limit binds is proved
    │   └── ContradictionError   because two statements of the question exclude each other: a mistake in the input
    ├── NoPlanFoundError         none was found within the limits; one may exist
    ├── PlanError                our own broken promise: a plan that its verifier rejects or that cannot be played
    │   └── OutOfRangeError      its times or bytes add up to more than 64 bits hold: such plans do not count
    └── ExecutionError           the processes that run a plan do not agree, or one of them has failed

Mistakes in the input are plain `ValueError`; outcomes (status, violations, bounds) are data, never exceptions.
"""


class PipeplanError(Exception):
    """Base of everything this project raises on purpose, apart from ValueError for bad input."""


class InfeasibleProblemError(PipeplanError):
    """No plan can satisfy the limits; the message names the limit that binds and by how much."""


class NoPlanFoundError(PipeplanError):
    """No plan was found within the limits given, and none was proved impossible."""


class PlanError(PipeplanError):
    """A plan breaks its own rules: it cannot be played, or the verifier rejected it."""


class OutOfRangeError(PlanError):
    """Times or bytes of a plan add up to more than 64 bits hold."""


class ExecutionError(PipeplanError):
    """A plan was not run to its end; the message is the same on every process and names the one at fault."""


class ContradictionError(InfeasibleProblemError, ValueError):
    """Two statements of a question exclude each other, so that no plan can satisfy both; the message names them."""


def refused_certificate(reason: str) -> ValueError:
    """The error of a certificate that proves nothing."""
    return ValueError(f"certificate: {reason}; make the bound again")
