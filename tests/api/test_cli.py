"""Every command on a small world, in this process: what it writes where, and with which exit code."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import typer

from api.cli import app
from api.inputs import UNKNOWN_SIZE
from planner.document import parse_plan, render_plan
from planner.verify import verify
from profiles.load import load_workload
from profiles.workload import Workload, dump_workload
from tests.api.worlds import WORDS, Shell, make_plan, make_problem, make_workload
from tests.planner.builders import make_layer, make_link
from tests.planner.builders import make_problem as make_small_problem

ROUND = ("--max-rounds", "1")
PLAN = ("plan", "workload.json", *ROUND)


def assert_is_plan(text: str, *, workload: str):
    """The text is a plan that the verifier passes on the workload of the file."""
    plan = parse_plan(text)
    problem = make_problem(load_workload(workload))
    assert verify(replace(problem, num_microbatches=plan.problem.num_microbatches), plan).violations == ()


def test_plan_goes_to_standard_output(shell: Shell):
    """Tests that the plan goes to standard output, and progress and the screen to standard error."""
    outcome = shell.run(*PLAN)
    assert outcome.code == 0, outcome.err
    assert_is_plan(outcome.out, workload="workload.json")
    assert "best plan" in outcome.err
    assert "this plan" in outcome.err
    assert "✓ passed" in outcome.err


def test_plan_goes_to_files(shell: Shell):
    """Tests that plan, picture and trace go to their files, which the screen names, and standard output stays empty."""
    outcome = shell.run(*PLAN, "-o", "p.json", "--html", "p.html", "--trace", "t.json")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert_is_plan((shell.folder / "p.json").read_text(), workload="workload.json")
    assert (shell.folder / "p.html").read_text().startswith("<!doctype html>")
    assert json.loads((shell.folder / "t.json").read_text())
    assert all(
        f"  {name}\n" in outcome.err.replace(" \n", "\n") or name in outcome.err for name in ("p.json", "p.html")
    )


def test_plan_as_json(shell: Shell):
    """Tests that with --json every line on standard error is an event, the last one with the summary."""
    outcome = shell.run(*PLAN, "--json", "-o", "p.json")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    events = [json.loads(line) for line in outcome.err.splitlines()]
    assert {event["event"] for event in events[:-1]} == {"progress"}
    assert events[-1]["event"] == "done"
    assert events[-1]["verdict_passed"] is True
    assert events[-1]["lower_bound_ns"] <= events[-1]["makespan_ns"]
    assert events[-1]["files"] == {"plan": "p.json"}


def test_quiet(shell: Shell):
    """Tests that --quiet leaves nothing but the plan."""
    outcome = shell.run(*PLAN, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert_is_plan(outcome.out, workload="workload.json")


def test_pipes(shell: Shell):
    """Tests that a workload is read from standard input, and so is a plan."""
    made = shell.run("plan", "-", *ROUND, "-q", stdin=(shell.folder / "workload.json").read_text())
    assert made.code == 0, made.err
    checked = shell.run("verify", "-", "workload.json", stdin=made.out)
    assert (checked.code, checked.err) == (0, "")
    assert "✓ passed" in checked.out


def test_profile_and_cluster_apart(shell: Shell):
    """Tests that profile, cluster and microbatches may come from three places."""
    workload = make_workload(num_microbatches=None)
    shell.write("profile.json", dump_workload(replace(workload, cluster=None)))
    outcome = shell.run("plan", "profile.json", "--cluster", "workload.json", "-m", "2", *ROUND, "-q")
    assert outcome.code == 0, outcome.err
    assert parse_plan(outcome.out).problem.num_microbatches == 2


def test_switches_become_options(shell: Shell):
    """Tests that switches and pins stand in the plan's question, and that the plan is verified as its answer."""
    switches = ("--no-replication", "--no-split-backward", "--max-stages-per-device", "1", "--pin", "embed=gpu1")
    made = shell.run(*PLAN, *switches, "-o", "p.json")
    assert made.code == 0, made.err
    options = parse_plan((shell.folder / "p.json").read_text()).problem.options
    assert options == {
        "split_backward": False,
        "max_stages_per_device": 1,
        "max_replicas": 1,
        "pinned": [{"layer": "embed", "device": "gpu1"}],
    }
    assert shell.run("verify", "p.json", "workload.json").code == 0


def sized_workload() -> Workload:
    """The small world measured at two and at eight samples, of which eight cost less than four times two."""
    workload = make_workload(num_microbatches=None)
    layers = tuple(
        replace(layer, costs=(*layer.costs, replace(cost, microbatch_size=2, forward_ns=cost.forward_ns // 3)))
        for layer in workload.profile.layers
        for cost in layer.costs
    )
    return replace(workload, profile=replace(workload.profile, layers=layers))


@pytest.mark.slow
def test_a_global_batch(shell: Shell):
    """Tests that sizes stand side by side, that all commands take the plan, alone and with its workload, and JSON."""
    shell.write("sized.json", dump_workload(sized_workload()))
    made = shell.run("plan", "sized.json", "--global-batch", "24", "--max-rounds", "1", "-o", "p.json")
    assert made.code == 0, made.err
    assert "3 microbatches of 8 samples (global batch of 24)" in made.err
    (row,) = (line.split() for line in made.err.splitlines() if line.startswith("✓        8"))
    assert row[:3] == ["✓", "8", "3"]
    assert "chosen" in row
    assert "(at any size)" in made.err
    plan = parse_plan((shell.folder / "p.json").read_text())
    assert (plan.problem.microbatch_size, plan.problem.num_microbatches, plan.problem.global_batch_size) == (8, 3, 24)
    assert plan.evidence is not None
    assert [row.microbatch_size for row in plan.evidence.sizes] == [2, 8]
    for command in (("verify",), ("verify", "--certificate"), ("explain",), ("view", "--text"), ("export", "torch")):
        for workload in ((), ("sized.json",)):
            done = shell.run(*command, "p.json", *workload)
            assert done.code == 0, (command, done.err)
    told = shell.run("plan", "sized.json", "-g", "24", "--max-rounds", "0", "--json", "-o", "q.json")
    (*_, last) = (json.loads(line) for line in told.err.splitlines())
    assert [(row["microbatch_size"], row["num_microbatches"]) for row in last["sizes"]] == [(2, 12), (8, 3)]
    asked = shell.run("what-if", "p.json", "--change", "num_microbatches=2", "-t", "1")
    assert asked.code == 0, asked.err


@pytest.mark.slow
def test_a_global_batch_with_kinds_and_money(shell: Shell):
    """Tests that --top and --pareto answer a global batch, each plan with its size on the screen and in the figures."""
    workload = sized_workload()
    devices = tuple(replace(device, price_per_hour=2.0) for device in workload.cluster.devices)
    priced = replace(workload, cluster=replace(workload.cluster, devices=devices))
    shell.write("sized.json", dump_workload(priced))
    ask = ("plan", "sized.json", "--global-batch", "24", "--max-rounds", "0")
    kinds = shell.run(*ask, "--top", "2", "-o", "kinds.json")
    assert "microbatches of 8, " in " ".join(kinds.err.partition("Other kinds of plan")[2].split()), kinds.err
    front = shell.run(*ask, "--pareto", "-o", "front.json")
    assert "bounds hold for every size" in " ".join(front.err.split()), front.err
    assert " per hour  size  devices" in front.err
    for name in ("kinds.2.json", "front.json"):
        assert shell.run("verify", "--certificate", name).code == 0


def test_a_workload_with_a_global_batch(shell: Shell):
    """Tests that a workload may ask for it, that the command line has the last word, and others want a number."""
    shell.write("batch.json", dump_workload(sized_workload().with_batch(16, (2,))))
    plain = shell.run("plan", "batch.json", "--max-rounds", "0", "-q")
    assert (plain.code, parse_plan(plain.out).problem.microbatch_sizes) == (0, (2,)), plain.err
    sizes = shell.run("plan", "batch.json", "--microbatch-sizes", "4,8", "--max-rounds", "0", "-q")
    assert (sizes.code, parse_plan(sizes.out).problem.microbatch_sizes) == (0, (4, 8)), sizes.err
    count = shell.run("plan", "batch.json", "-m", "4", "--max-rounds", "0", "-q")
    cut = parse_plan(count.out).problem
    assert (cut.num_microbatches, cut.microbatch_size, cut.global_batch_size) == (4, 4, 16), count.err
    shell.write("batch.json", dump_workload(sized_workload().with_batch(16, (2, 8))))
    asked = shell.run("what-if", "batch.json", "--change", "devices=1")
    assert asked.code == 2
    assert "states global_batch_size = 16 and no microbatches" in asked.err


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (("-m", "3", "--global-batch", "24"), "give one of them"),
        (("--global-batch", "7"), "global_batch_size = 7 is not a multiple of any measured microbatch size"),
        (("--global-batch", "24", "--microbatch-sizes", "3,x"), "--microbatch-sizes 3,x: write numbers of samples"),
        (("--global-batch", "24", "--microbatch-sizes", "5"), "names 5, which does not divide global_batch_size = 24"),
        (("--global-batch", "32", "--microbatch-sizes", "16"), "was measured on 'toy' at 2, 8 only"),
        (("--microbatch-sizes", "2"), "needs a global batch; add --global-batch SAMPLES"),
        ((), "add -m N, or --global-batch SAMPLES"),
    ],
)
def test_a_batch_that_cannot_be_cut(shell: Shell, switches: tuple[str, ...], message: str):
    """Tests that value and remedy are named, with exit code 2."""
    shell.write("sized.json", dump_workload(sized_workload()))
    outcome = shell.run("plan", "sized.json", *switches)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())


def test_split_placement_is_a_switch(shell: Shell):
    """Tests that W may go to another device where the switch allows it, and that the plan is verified and explained."""
    layer = make_layer("x", (10, 10, 20), stash_bytes=1, weight_stash_bytes=1)
    problem = make_small_problem([layer], [make_link("a b")])
    workload = Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=8)
    shell.write("w.json", dump_workload(workload))
    apart = shell.run("plan", "w.json", "--split-placement", "--no-replication", "--max-rounds", "2", "-o", "p.json")
    assert apart.code == 0, apart.err
    plan = parse_plan((shell.folder / "p.json").read_text())
    assert plan.problem.options == {"split_placement": True, "max_replicas": 1}
    assert plan.stages[0].weight_grad_replicas
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns < 8 * 40
    for command in ("verify", "explain"):
        assert shell.run(command, "p.json", "w.json").code == 0


def test_gap_missed(shell: Shell):
    """Tests that a plan that misses the gap asked for is written all the same, and the exit code is 4."""
    missed = shell.run("plan", "demo:gpt-1.5b-zero-bubble", "-t", "0.5", "--gap", "0.0001", "-q")
    plan = parse_plan(missed.out)
    assert plan.evidence is not None
    assert plan.evidence.gap > 0.0001
    assert missed.code == 4
    reached = shell.run("plan", "demo:gpt-1.5b-zero-bubble", "-t", "5", "--gap", "0.9", "-q")
    assert (reached.code, reached.err) == (0, "")


def test_verify_rejects(shell: Shell):
    """Tests that a broken plan gives 6, with expected and actual in the table and in JSON."""
    words = WORDS | {"gpu0": "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2"}
    shell.write("bad.json", render_plan(make_plan(make_problem(make_workload()), words=words)))
    outcome = shell.run("verify", "bad.json", "workload.json")
    assert (outcome.code, outcome.err) == (6, "")
    assert "✗ rejected" in outcome.out
    spoken = json.loads(shell.run("verify", "bad.json", "workload.json", "--json").out)
    assert spoken["passed"] is False
    assert {"rule", "subject", "expected", "actual", "message"} <= set(spoken["violations"][0])


def test_simulate_and_explain(shell: Shell):
    """Tests that the figures of both commands agree, as tables and as JSON."""
    played = json.loads(shell.run("simulate", "plan.json", "workload.json", "--json").out)
    explained = json.loads(shell.run("explain", "plan.json", "workload.json", "--json").out)
    assert played["makespan_ns"] == explained["makespan_ns"] == 31_000_000
    for row in explained["devices"]:
        assert sum(value for key, value in row.items() if key != "device") == 31_000_000
    assert "31.00" in shell.run("simulate", "plan.json", "workload.json").out
    assert "order" in shell.run("explain", "plan.json", "workload.json").out


def test_unplayable_plan(shell: Shell):
    """Tests that a plan that deadlocks is bad input for the commands that play it, in one message."""
    words = WORDS | {"gpu1": "1I0 1F0 1W0 1F1 1I1 1W1 1F2 1I2 1W2"}
    shell.write("bad.json", render_plan(make_plan(make_problem(make_workload()), words=words)))
    for command in ("simulate", "explain", "view", "compare"):
        outcome = shell.run(command, "bad.json", "workload.json")
        assert (outcome.code, outcome.out) == (2, ""), command
        assert outcome.err.startswith("error: bad.json: cannot be played on this workload: ")
        assert len(outcome.err.splitlines()) == 1


def test_compare(shell: Shell):
    """Tests that plans stand side by side, with the baselines if asked, and the workload first or last."""
    gpipe = WORDS | {"gpu0": "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2"}
    shell.write("gpipe.json", render_plan(make_plan(make_problem(make_workload()), words=gpipe)))
    outcome = shell.run("compare", "plan.json", "gpipe.json", "workload.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "gpipe.json" in outcome.out
    rows = json.loads(shell.run("compare", "plan.json", "-w", "workload.json", "--baselines", "--json").out)
    assert rows[0]["name"] == "plan.json"
    assert "1F1B (even layers)" in {row["name"] for row in rows}


def test_export_and_view(shell: Shell):
    """Tests that trace and picture go to standard output or to a file, and that two plans share a picture."""
    assert json.loads(shell.run("export", "trace", "plan.json", "workload.json").out)
    outcome = shell.run("view", "plan.json", "workload.json", "-o", "p.html", "--against", "plan.json")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert (shell.folder / "p.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("profile", "another", "plans of different models are not compared"),
        ("profile_sha256", "0" * 64, "made with other layers or times"),
        ("cluster_sha256", "0" * 64, "made for another machine"),
    ],
)
def test_plans_of_other_questions_share_no_picture(shell: Shell, field: str, value: str, cause: str):
    """Tests that a plan is not drawn by the times of another question."""
    other = json.loads((shell.folder / "plan.json").read_text())
    other["problem"][field] = value
    shell.write("other.json", json.dumps(other))
    outcome = shell.run("view", "plan.json", "workload.json", "-o", "p.html", "--against", "other.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--against other.json" in outcome.err
    assert cause in outcome.err


def foreign_form(meta: dict[str, int]) -> str:
    """Two layers in the neutral form, with these remarks."""
    layer = {"forward_ms": 1.0, "backward_ms": 2.0, "param_bytes": 8, "activation_bytes": 8}
    layers = [{"name": name, **layer} for name in "ab"]
    return json.dumps({"name": "foreign", "layers": layers, "edges": [[0, 1]], "meta": meta})


def test_view_as_text(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that --text draws the timeline no wider than the terminal, a row per device, and takes one plan only."""
    monkeypatch.setenv("COLUMNS", "70")
    outcome = shell.run("view", "plan.json", "workload.json", "--text")
    assert outcome.code == 0, outcome.err
    head, numbers, *rows = outcome.out.splitlines()
    assert head.startswith("a column is ")
    assert numbers.split()[:3] == ["|", "0", "1"]
    assert [row.split()[0] for row in rows] == ["gpu0", "gpu1"]
    assert rows[0].split()[2].startswith("F0")
    assert 50 < max(map(len, rows)) <= 70
    refused = shell.run("view", "plan.json", "workload.json", "--text", "--against", "plan.json")
    assert (refused.code, refused.out) == (2, "")
    assert "--text draws one plan on this machine" in refused.err


def test_import(shell: Shell):
    """Tests that a foreign form becomes a document in ours that means the same, on another device type if asked."""
    said = ("import", "-", "--cluster", "workload.json", "-m", "4", "--device-type", "toy")
    outcome = shell.run(*said, stdin=foreign_form({"microbatch_size": 2}))
    assert (outcome.code, outcome.err) == (0, "")
    shell.write("ours.json", outcome.out)
    assert load_workload("ours.json").cluster == make_workload().cluster
    assert load_workload("ours.json").profile.microbatch_size == 2
    assert shell.run("plan", "ours.json", *ROUND, "-q").code == 0
    assert shell.run("import", "ours.json").out == outcome.out


def test_import_says_what_the_form_leaves_out(shell: Shell):
    """Tests that a form without the number of samples becomes a document that says null, and standard error says so."""
    outcome = shell.run("import", "-", stdin=foreign_form({}))
    assert (outcome.code, outcome.err) == (0, f"-: {UNKNOWN_SIZE}\n")
    assert json.loads(outcome.out)["profile"]["microbatch_size"] is None


def test_import_of_traces(shell: Shell):
    """Tests that traces give a summary and a workload that can be planned, and broken ones one message and no file."""
    for rank in range(2):
        names = [f"PP:{rank}{kind}{m}" for m in range(2) for kind in "FB"]
        events = [{"ph": "X", "name": name, "ts": i, "dur": 1} for i, name in enumerate(names)]
        shell.write(f"{rank}.json", json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    outcome = shell.run("import", "trace", "0.json", "1.json", "-o", "traced.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "1 pipeline x 2 stages x 2 microbatches" in outcome.out
    assert shell.run("plan", "traced.json", *ROUND, "-q").code == 0
    assert json.loads(shell.run("import", "trace", "0.json", "--json").out)["durations"][0]["mean_ns"] == 1000
    shell.write("bad.json", '{"traceEvents": [')
    outcome = shell.run("import", "trace", "bad.json", "-o", "none.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert "bad.json: is cut off" in outcome.err
    assert not (shell.folder / "none.json").exists()
    assert shell.run("import", "graph.txt", "0.json").code == 2
    assert shell.run("import", "trace", "0.json", "--cluster", "workload.json").code == 2


def test_demos(shell: Shell):
    """Tests that every demo has a line."""
    outcome = shell.run("demos")
    assert (outcome.code, outcome.err) == (0, "")
    assert set(json.loads(shell.run("demos", "--json").out)) <= set(outcome.out.replace("demo:", "").split())


def test_doctor(shell: Shell):
    """Tests that the doctor finds this installation well."""
    outcome = shell.run("doctor", "--json")
    assert outcome.code == 0, outcome.out
    assert json.loads(outcome.out)["toy plan"]["is_well"] is True


def test_version_and_help(shell: Shell):
    """Tests that version and help go to standard output, and that no command shows the help."""
    assert shell.run("--version").out.startswith("pipeplan ")
    for command in ("plan", "verify", "simulate", "compare", "explain", "export", "view", "import", "demos", "doctor"):
        outcome = shell.run(command, "--help")
        assert (outcome.code, outcome.err) == (0, "")
        assert "Usage: pipeplan" in outcome.out


TWO_SCREENS = 48
"""Lines of two terminals of 24 lines each."""


def commands_of(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group that help lists, with the words that call it."""
    yield names, command
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from commands_of(each, *names, name)


@pytest.mark.parametrize("columns", ["80", "100"])
def test_every_help_fits_on_two_screens(columns: str, shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that each --help has at most 48 lines, and where it leaves options out, --help-all has them."""
    monkeypatch.setenv("COLUMNS", columns)
    for names, command in commands_of(typer.main.get_command(app)):
        usual = shell.run(*names, "--help").out
        assert len(usual.splitlines()) <= TWO_SCREENS, names
        options = {name for each in command.params for name in each.opts if name.startswith("--") and not each.hidden}
        left_out = {name for name in options if name not in usual}
        assert ("--help-all" in usual) == bool(left_out), names
        if left_out:
            every = shell.run(*names, "--help-all").out
            assert {name for name in options if name not in every} == set(), names
            assert shell.run(*names, "--help").out == usual


def test_rare_options_are_folded(shell: Shell):
    """Tests that `plan --help` leaves out what few need."""
    usual = shell.run("plan", "--help").out
    assert [name for name in ("--pin", "--search-param", "--workers") if name in usual] == []


@pytest.mark.parametrize("command", ["plan", "verify", "simulate", "explain", "compare", "view", "import"])
def test_examples_of_the_help_are_commands(shell: Shell, command: str):
    """Tests that every example in the help names options that exist."""
    text = shell.run(command, "--help").out
    options = {word for word in text.split() if word.startswith("-")}
    example = text.rpartition("Example")[2]
    assert f"pipeplan {command}" in example
    for word in example.replace("│", " ").split():
        if word.startswith("-") and word != "-":
            assert word in options


def test_torch_table(shell: Shell):
    """Tests that a plan torch can run becomes its table, and another is refused with the reason and exit code 2."""
    alone = ("--max-stages-per-device", "1", "--no-replication")
    assert shell.run("plan", "demo:gpt-1.5b-zero-bubble", *ROUND, *alone, "-o", "p.json").code == 0
    written = shell.run("export", "torch", "p.json", "demo:gpt-1.5b-zero-bubble")
    assert (written.code, written.out[:4]) == (0, "0F0,"), written.err
    assert shell.run("plan", "demo:alexnet-two-gpus", *ROUND, "-o", "p.json").code == 0
    refused = shell.run("export", "torch", "p.json", "demo:alexnet-two-gpus")
    assert (refused.code, refused.out) == (2, "")
    assert "replica" in refused.err


def test_verify_the_plan_alone(shell: Shell):
    """Tests that a plan needs no workload to be verified, played, drawn and certified, unless it brings none along."""
    assert shell.run(*PLAN, "-o", "p.json").code == 0
    for command in ("verify", "simulate", "explain", "view"):
        assert shell.run(command, "p.json", *(("-o", "p.html") if command == "view" else ())).code == 0, command
    proved = shell.run("verify", "--certificate", "p.json")
    assert (proved.code, proved.err) == (0, "")
    assert "computed again, equal" in proved.out
    assert json.loads(shell.run("verify", "p.json", "--certificate", "--no-baselines", "--json").out)["passed"] is True
    assert shell.run("verify", "--certificate", "p.json", "workload.json").code == 0
    refused = shell.run("verify", "--certificate", "plan.json")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "name the workload" in refused.err
    assert shell.run("verify", "p.json", "--cluster", "workload.json").code == 2


def test_verify_certificate_rejects(shell: Shell):
    """Tests that a wrong bound, and another workload than the plan's, give 6 with what is stated and what follows."""
    assert shell.run(*PLAN, "-o", "p.json").code == 0
    tree = json.loads((shell.folder / "p.json").read_text())
    bound = tree["evidence"]["lower_bound_ns"]
    tree["evidence"]["lower_bound_ns"] = bound - 7
    shell.write("bad.json", json.dumps(tree))
    outcome = shell.run("verify", "--certificate", "bad.json")
    assert (outcome.code, outcome.err) == (6, "")
    assert str(bound) in outcome.out
    assert str(bound - 7) in outcome.out
    said = json.loads(shell.run("verify", "--certificate", "bad.json", "--json").out)
    assert ("lower_bound_ns", bound - 7, bound) in {
        (d["field"], d["stated"], d["derived"]) for d in said["differences"]
    }
    assert shell.run("verify", "bad.json").code == 6, "the gap does not follow from the bound"
    assert shell.run("verify", "--certificate", "p.json", "demo:alexnet-two-gpus").code == 6


def test_shadow_prices(shell: Shell):
    """Tests that explain says what more is worth, as a table and as JSON, and tells what it asks meanwhile."""
    assert shell.run(*PLAN, "-o", "p.json").code == 0
    told = shell.run("explain", "p.json", "--shadow-prices", "--time-limit", "2", "--per-kind", "1")
    assert told.code == 0
    assert "planned again with: twice the link gpu0-gpu1" in told.err
    assert "What limits it" in told.out
    assert "worth at most" in told.out
    spoken = shell.run("explain", "p.json", "--shadow-prices", "-t", "2", "--per-kind", "1", "--json")
    prices = json.loads(spoken.out)["shadow_prices"]
    assert {"search", "memory", "link", "speed", "device", "microbatches"} == {price["kind"] for price in prices}
    assert all(json.loads(line)["event"] == "progress" for line in spoken.err.splitlines())
    assert "shadow_prices" not in json.loads(shell.run("explain", "p.json", "--json").out)
    assert shell.run("explain", "p.json", "--shadow-prices", "-t", "0").code == 2
