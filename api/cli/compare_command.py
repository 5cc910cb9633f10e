"""`pipeplan compare`: several plans, or a plan and its run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, option, written
from api.cli.options.folded_help import Commands
from api.cli.output import report, report_json, write_document
from api.failures import InputError

commands = Commands()


class _RunOptions(NamedTuple):
    """What is made of a plan and its run."""

    html: arg.Html = None
    calibrate: Annotated[
        str | None,
        written(
            "--calibrate PROFILE", "Write this profile or workload, with the figures of the run, to the file of -o."
        ),
    ] = None
    output: arg.Output = None
    warm_up: Annotated[
        int | None, option("--warm-up N", "Iterations of the run that do not count (default 1).", min=0)
    ] = None


@commands.command(
    "compare",
    epilog="Examples:\n\npipeplan compare plan.json other.json demo:resnet50-two-hosts --baselines\n\n"
    "pipeplan compare plan.json trace/ --html compare.html --calibrate profile.json -o calibrated.json",
)
def compare_command(
    *,
    files: Annotated[
        list[str],
        argument(
            "PLAN... [WORKLOAD]",
            "Plan documents, then the workload unless --workload gives it; or a plan and the folder of its run.",
        ),
    ],
    workload: arg.WorkloadOption = None,
    cluster: arg.Cluster = None,
    baselines: Annotated[bool, option("--baselines", "Also play what others would have done.")] = False,
    options: _RunOptions,
    json: arg.Json = False,
) -> None:
    """Hold plans side by side, or a plan against its run.

    A run is the folder that the executor's --trace wrote. The difference between predicted and measured iteration is
    told in parts that add up; --calibrate writes the profile with what the run took.
    """
    from api.reporting.run_comparison import split_files

    run = split_files(files)
    if run is not None:
        if baselines:
            raise InputError("--baselines compares plans; leave it out to compare a plan with its run")
        _compare_run((run[0], run[1], run[2] or workload), cluster=cluster, options=options, is_json=json)
        return
    if options != _RunOptions():
        raise InputError("--html, --calibrate, -o and --warm-up need the folder of a run: compare PLAN FOLDER")
    _compare_plans(files, workload=workload, cluster=cluster, has_baselines=baselines, is_json=json)


def _compare_plans(
    files: list[str], *, workload: str | None, cluster: str | None, has_baselines: bool, is_json: bool
) -> None:
    from api.reporting.comparison import compare

    problem, contenders = compare(files, workload=workload, cluster=cluster, has_baselines=has_baselines)
    if is_json:
        report_json([asdict(contender) for contender in contenders])
    else:
        from api.reporting.command_reports import render_comparison

        report(render_comparison(problem, contenders))


def _compare_run(run: tuple[str, str, str | None], *, cluster: str | None, options: _RunOptions, is_json: bool) -> None:
    """A plan against its run: the report, and the picture and the calibrated profile where they are asked for."""
    from api.inputs import read_plan_and_problem, read_workload, require_writable
    from api.reporting.run_comparison import calibrate, compare_run, render_run_picture, summarise_run
    from profiles.workload import dump_workload

    plan, folder, workload = run
    if (options.calibrate is None) != (options.output is None):
        raise InputError("--calibrate PROFILE and -o FILE belong together; give both")
    require_writable(options.html, options.output)
    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    made = compare_run(problem, answer, folder=Path(folder), source=plan, warm_up=options.warm_up)
    if options.html is not None:
        write_document(render_run_picture(made), options.html)
    if options.calibrate is not None:
        calibrated = calibrate(made, read_workload(options.calibrate), folder=Path(folder))
        write_document(dump_workload(calibrated), options.output)
        if options.output == "-":
            return
    if is_json:
        report_json(summarise_run(made))
    else:
        from api.reporting.run_report import render_run

        report(render_run(made))
