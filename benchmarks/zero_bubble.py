"""The published zero-bubble settings as problems, and what our baselines make of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.report import line
from planner.baselines.layouts import EVEN
from planner.baselines.registry import METHODS, make_method_plan
from planner.layout.costs import CostModel
from planner.problem import Objective, Options, Problem
from planner.simulation.simulate import Timeline, simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

METHOD_OF = {method.name: method for method in METHODS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One measured setting of the zero-bubble paper: a model cut into p equal stages."""

    model: str
    """Its size, as the paper calls it."""
    hidden_size: int
    """h; 0 for the setting with equal times, whose stash is held as a whole until the end of W."""
    num_heads: int
    """a."""
    num_devices: int
    """p."""
    num_microbatches: int
    """m."""
    forward_us: int
    """T_F of a stage."""
    input_grad_us: int
    """T_B of a stage, our I."""
    weight_grad_us: int
    """T_W of a stage."""
    transfer_us: int
    """T_comm."""

    @property
    def stash_bytes(self) -> int:
        """m_F of a stage, 34 h + 5 a s with s = 1024, in the paper's units."""
        return 34 * self.hidden_size + 5 * self.num_heads * 1024 if self.hidden_size else 2

    @property
    def weight_stash_bytes(self) -> int:
        """What stays until the end of W: 32 h."""
        return 32 * self.hidden_size or 2


def _setting(model: str, *numbers: int) -> Setting:
    h, a, p, m, f, b, w, c = numbers
    return Setting(
        model=model, hidden_size=h, num_heads=a, num_devices=p, num_microbatches=m,
        forward_us=f, input_grad_us=b, weight_grad_us=w, transfer_us=c,
    )  # fmt: skip


SPAN_ROWS: tuple[tuple[Setting, tuple[str, str, str]], ...] = (
    (_setting("1.5B", 2304, 24, 8, 24, 18522, 18086, 9337, 601), (".2431", ".1585", ".0433")),
    (_setting("1.5B", 2304, 24, 8, 32, 18513, 18086, 9331, 626), (".1985", ".1242", ".0039")),
    (_setting("1.5B", 2304, 24, 8, 64, 18546, 18097, 9321, 762), (".1240", ".0674", ".0026")),
    (_setting("6.2B", 4096, 32, 8, 24, 29718, 29444, 19927, 527), (".2347", ".1323", ".0029")),
    (_setting("6.2B", 4096, 32, 8, 32, 29802, 29428, 19530, 577), (".1898", ".1045", ".0022")),
    (_setting("6.2B", 4096, 32, 8, 64, 29935, 29621, 19388, 535), (".1091", ".0554", ".0010")),
    (_setting("14.6B", 5120, 40, 16, 48, 11347, 11248, 8132, 377), (".2552", ".1397", ".0066")),
    (_setting("14.6B", 5120, 40, 16, 64, 11307, 11254, 8101, 379), (".2082", ".1088", ".0054")),
    (_setting("14.6B", 5120, 40, 16, 128, 11325, 11308, 8109, 378), (".1251", ".0576", ".0028")),
    (_setting("28.3B", 6144, 48, 32, 96, 10419, 10207, 7715, 408), (".2646", ".1421", ".0038")),
    (_setting("28.3B", 6144, 48, 32, 128, 10408, 10204, 7703, 408), (".2168", ".1106", ".0029")),
    (_setting("28.3B", 6144, 48, 32, 256, 10402, 10248, 7698, 460), (".1352", ".0594", ".0018")),
)
"""Settings with the published bubbles by span: 1F1B, ZB-1p, ZB-2p."""

MAKESPAN_ROWS: tuple[tuple[Setting, tuple[str, ...]], ...] = (
    (SPAN_ROWS[0][0], (".2431", ".1396", ".1684", ".1585", ".1083", ".0722")),
    (SPAN_ROWS[2][0], (".1240", ".0588", ".0885", ".0674", ".0439", ".0302")),
    (SPAN_ROWS[3][0], (".2347", ".1336", ".1377", ".1323", ".1003", ".0606")),
    (SPAN_ROWS[6][0], (".2552", ".1468", ".1506", ".1397", ".1065", ".0714")),
    (SPAN_ROWS[9][0], (".2646", ".1528", ".1554", ".1421", ".1098", ".0763")),
    (
        _setting("6.2B", 4096, 32, 16, 48, 14407, 14380, 9676, 1610),
        (".2935", ".1738", ".2052", ".1719", ".1151", ".1103"),
    ),
    (_setting("equal", 0, 0, 8, 24, 1000, 1000, 1000, 0), (".2258", ".1273", ".0886", ".0886", ".0886", ".0464")),
)
"""Settings with the bubbles by makespan of `METHOD_COLUMNS`."""

METHOD_COLUMNS: tuple[tuple[str, str, int | None], ...] = (
    ("1F1B", "1F1B", None), ("interleaved", "interleaved 1F1B", None), ("ZB-H1", "ZB-H1", 1),
    ("ZB-1p", "ZB automatic", 1), ("ZB-2p", "ZB automatic", 2), ("ZB-V", "ZB-V", 1),
)  # fmt: skip
"""As the paper calls it, our method, and the limit of its memory."""


def make_problem(setting: Setting, *, limit: int | None = None, objective: Objective = "makespan") -> Problem:
    """A setting as a problem: two layers per stage, links that take exactly T_comm, memory for stashes only.

    `limit` is in units of a stage's stash per device in the pipeline, as in ZB-1p and ZB-2p; None: no limit.
    """
    names = [f"half-stage-{number}" for number in range(2 * setting.num_devices)]
    layers = tuple(_make_layer(setting, name) for name in names)
    edges = tuple(Edge(producer=a, consumer=b, bytes=setting.transfer_us) for a, b in pairwise(names))
    profile = ModelProfile(name=setting.model, layers=layers, edges=edges)
    memory = 2**50 if limit is None else limit * setting.num_devices * setting.stash_bytes
    return Problem(
        profile=profile,
        cluster=_make_cluster(setting.num_devices, memory_bytes=memory),
        num_microbatches=setting.num_microbatches,
        options=Options(receive_buffers=0, objective=objective),
    )


def _make_layer(setting: Setting, name: str) -> Layer:
    cost = LayerCost(
        device_type="A100",
        forward_ns=500 * setting.forward_us,
        input_grad_ns=500 * setting.input_grad_us,
        weight_grad_ns=500 * setting.weight_grad_us,
    )
    return Layer(
        name=name,
        costs=(cost,),
        parameter_bytes=1,
        stash_bytes=setting.stash_bytes // 2,
        weight_stash_bytes=setting.weight_stash_bytes // 2,
    )


def _make_cluster(num_devices: int, *, memory_bytes: int) -> Cluster:
    """A ring of devices whose links take one microsecond per byte."""
    names = [f"gpu{number}" for number in range(num_devices)]
    ring = pairwise([*names, names[0]]) if num_devices > 2 else pairwise(names)
    return Cluster(
        name=f"{num_devices} devices",
        devices=tuple(Device(name=name, type="A100", memory_bytes=memory_bytes) for name in names),
        links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**6) for a, b in ring),
    )


def play(problem: Problem, method: str) -> Timeline:
    """The timeline of a baseline with one equal stage (or two equal halves) per device."""
    costs = CostModel(problem)
    return simulate(problem, make_method_plan(costs, METHOD_OF[method], cut=EVEN), costs=costs)


def span_bubble(setting: Setting, timeline: Timeline) -> float:
    """1 - m (T_F + T_B + T_W) / span."""
    work_us = setting.num_microbatches * (setting.forward_us + setting.input_grad_us + setting.weight_grad_us)
    return 1 - 1000 * work_us / timeline.span_ns


def span_line(setting: Setting, published: tuple[str, ...]) -> str:
    """A row of the first table."""
    games = (METHOD_COLUMNS[number] for number in (0, 3, 4))
    timelines = (play(make_problem(setting, limit=limit, objective="span"), method) for _, method, limit in games)
    return _line(setting, published, ours=tuple(span_bubble(setting, timeline) for timeline in timelines))


def makespan_line(setting: Setting, published: tuple[str, ...]) -> str:
    """A row of the second table."""
    ours = tuple(play(make_problem(setting, limit=limit), method).bubble for _, method, limit in METHOD_COLUMNS)
    return _line(setting, published, ours=ours)


def _line(setting: Setting, published: tuple[str, ...], *, ours: tuple[float, ...]) -> str:
    cells = [f"{ours_:.4f}"[1:] + f" ({theirs})" for ours_, theirs in zip(ours, published, strict=True)]
    times = f"{setting.forward_us}/{setting.input_grad_us}/{setting.weight_grad_us}/{setting.transfer_us}"
    return line((setting.model, f"{setting.num_devices}, {setting.num_microbatches}", times, *cells))


def render_tables() -> Iterator[str]:
    """Both tables as Markdown, line by line: our bubble, in brackets the published one."""
    head = ("model", "p, m", "T_F/T_B/T_W/T_comm us")
    yield "## By span"
    yield ""
    yield line((*head, "1F1B", "ZB-1p", "ZB-2p"))
    yield line(["---"] * 6)
    yield from (span_line(setting, published) for setting, published in SPAN_ROWS)
    yield ""
    yield "## By makespan"
    yield ""
    yield line((*head, *(name for name, _, _ in METHOD_COLUMNS)))
    yield line(["---"] * 9)
    yield from (makespan_line(setting, published) for setting, published in MAKESPAN_ROWS)


if __name__ == "__main__":
    print("\n".join(render_tables()))
