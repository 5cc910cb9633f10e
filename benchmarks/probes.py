"""How far profiles are from a short run at the same moment: `python -m benchmarks.probes -o FILE` (about 15 minutes).

README's first command on every model of `benchmarks.fidelity`, each time in fresh processes. A profile ends with a
short run of its own under one plan; what its figures say of that run, measured in the same minute, is in no way the
host's drift, which the whole way from profile to run is subject to (`benchmarks.fidelity`).
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fidelity import MODELS
from benchmarks.report import Table, make_parser, ms, percent
from benchmarks.user_flow import Flow, FlowError, FlowModel
from profiles.model_profile import ProbeRun

HEADER = ("model", "predicted ms", "measured ms", "errors", "median error", "profile s")

MEDIAN, WORST = 0.03, 0.10
"""What is asked of plans in `benchmarks.fidelity`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model, profiled several times."""

    model: FlowModel
    probes: tuple[ProbeRun, ...]
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the errors, with their sign."""
        return statistics.median(probe.error for probe in self.probes)


def profile_often(model: FlowModel, *, times: int, folder: Path) -> Row:
    """Profile a model anew so often; raises FlowError."""
    probes, seconds = [], []
    for number in range(times):
        begin = time.monotonic()
        probe = Flow(model, folder / str(number)).profile().profile.probe
        if probe is None:
            raise FlowError("its profile has no short run")
        probes.append(probe)
        seconds.append(time.monotonic() - begin)
    return Row(model=model, probes=tuple(probes), seconds=tuple(seconds))


def cells(row: Row) -> list[str]:
    """A row of the table."""
    return [
        row.model.name,
        ", ".join(ms(probe.predicted_ns) for probe in row.probes),
        ", ".join(ms(probe.measured_ns) for probe in row.probes),
        ", ".join(f"{100 * probe.error:+.1f} %" for probe in row.probes),
        f"{100 * row.median:+.1f} %",
        f"{statistics.median(row.seconds):.0f}",
    ]


def summarise(rows: Sequence[Row]) -> Iterator[str]:
    """All errors of models that are no emulation."""
    errors = [probe.error for row in rows if not row.model.is_emulated for probe in row.probes]
    if errors:
        middle, worst = statistics.median(map(abs, errors)), max(map(abs, errors))
        slow = sum(error < 0 for error in errors)
        yield (
            f"{len(errors)} profiles: error {percent(middle)} on the median ({percent(MEDIAN)} is asked of plans), "
            f"{percent(worst)} at worst ({percent(WORST)}); {slow} predicted too fast, {len(errors) - slow} too slow."
        )


PREFACE = (
    "# Profiles against a run at the same moment",
    "",
    "`pipeplan profile MODEL -m 8 --devices 2` in fresh processes, several times per model. Predicted: the short run",
    "that ends the profile, under the plan that it was made with, by the profile's own figures. Measured: that run's",
    "median iteration. Errors: (predicted - measured) / measured, profile by profile. What plans are predicted by is",
    "the same; what they take minutes later is the host's as well ([fidelity](fidelity.md)). The emulation has paced",
    "layers, four processes and is in no summary.",
    "",
)


def main() -> None:
    """Print the table, and write it where `-o` says."""
    parser = make_parser(__doc__)
    parser.add_argument("--times", type=int, default=2, help="profiles of every model")
    given = parser.parse_args()
    table, rows = Table(preface=PREFACE, header=HEADER, output=given.output), []
    with tempfile.TemporaryDirectory(prefix="pipeplan-probes-") as folder:
        for number, model in enumerate(MODELS[:1] if given.quick else MODELS):
            try:
                rows.append(profile_often(model, times=given.times, folder=Path(folder, str(number))))
            except FlowError as error:
                table.add((model.name, f"failed: {error}", "", "", "", ""))
                continue
            table.add(cells(rows[-1]))
    table.close(*summarise(rows))


if __name__ == "__main__":
    main()
