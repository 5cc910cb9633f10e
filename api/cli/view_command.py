"""`pipeplan view`."""

import sys
from pathlib import Path
from typing import Annotated

from api.cli.options import arguments as arg
from api.cli.options.declare import option
from api.cli.options.folded_help import Commands
from api.cli.options.option_groups import PlanSource
from api.cli.output import make_console, write_document
from api.failures import InputError

commands = Commands()


@commands.command("view", epilog="Example: pipeplan view plan.json demo:resnet50-two-hosts -o plan.html --open")
def view_command(
    *,
    source: PlanSource,
    output: arg.Output = None,
    against: Annotated[str | None, option("--against PLAN", "A second plan, drawn below on the same scale.")] = None,
    text: Annotated[
        bool, option("--text", "Draw it as text, as wide as the terminal, on standard output or to the file of -o.")
    ] = False,
    open_it: Annotated[bool, option("--open", "Show it in the browser.")] = False,
) -> None:
    """Draw a plan's timeline: one HTML file that works offline, or text."""
    from api.inputs import play, read_plan
    from api.reporting.plan_difference import why_not_on_one_scale
    from api.viewer import render_picture

    if text:
        if against is not None or open_it:
            raise InputError("--text draws one plan in the terminal; leave out --against and --open")
        _draw_text(source, output=output)
        return
    if output is None and (open_it or sys.stdout.isatty()):
        raise InputError("the picture has no file; add -o plan.html (or -o - for standard output)")
    plan, problem = source.read(to=output)
    second = None if against is None else read_plan(against)
    if second is not None and (reason := why_not_on_one_scale(plan.problem, second.problem)):
        raise InputError(f"--against {against}: {reason}; give another plan for the same question")
    other = None if second is None else (second, play(problem, second, source=str(against)))
    page = render_picture(problem, plan, timeline=play(problem, plan, source=source.plan), other=other)
    write_document(page, output)
    if open_it and output not in (None, "-"):
        import webbrowser

        webbrowser.open(Path(str(output)).resolve().as_uri())


def _draw_text(source: PlanSource, *, output: str | None) -> None:
    from planner.simulation.drawing import draw_schedule, fit_tick_ns

    timeline = source.play(to=output)[-1]
    tick_ns = fit_tick_ns(timeline, width=make_console(is_report=True).width)
    write_document(f"a column is {tick_ns / 1e6:.3g} ms\n{draw_schedule(timeline, tick_ns=tick_ns)}", output)
