"""Decisions with a folder or a file of their own: it is the feature."""

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from planner import decisions
from planner.decisions import choices
from planner.decisions.decision import Decision, Excluded, Switch
from planner.evidence import certificate
from planner.export.targets import TARGETS, restrict
from planner.problem import Options
from profiles.cluster import Cluster, Device

REST = ("api", "profiles", "solver_models")
OPTIONS = {each.name for each in fields(Options)}
KINDS = {*certificate._KINDS, *certificate._LISTED}


@pytest.fixture
def without(tmp_path: Path, repository_root: Path) -> Path:
    """The program without any of the folders and files."""
    for name in REST:
        (tmp_path / name).symlink_to(repository_root / name)
    left_out = shutil.ignore_patterns("__pycache__", *decisions.KNOWN, *(f"{name}.py" for name in decisions.KNOWN))
    shutil.copytree(repository_root / "planner/decisions", tmp_path / "planner/decisions", ignore=left_out)
    rest = shutil.ignore_patterns("__pycache__", "decisions")
    shutil.copytree(repository_root / "planner", tmp_path / "planner", ignore=rest, dirs_exist_ok=True)
    return tmp_path


def test_every_decision_says_what_it_is():
    """Tests that the folders are those of the options that ask for them, each with what the search needs."""
    assert decisions.found() == tuple(decisions.KNOWN)
    assert list(decisions.asked(Options())) == []
    assert all(hasattr(module, "make_improver") for module in decisions.modules("move"))
    asked = Options(objective="cost")
    assert [hasattr(module, "make_driver") for module in decisions.modules("driver", asked)] == [True]


@pytest.mark.parametrize(("option", "decision"), decisions.installed().items())
def test_what_a_decision_names_exists(option: str, decision: Decision):
    """Tests that a decision excludes values of options that there are, and names bounds that there are."""
    assert {option, *(each.option for each in decision.excludes)} <= OPTIONS
    assert all(getattr(Options(), each.option) in (each.value, each.instead) for each in decision.excludes)
    assert decision.bounds is None or decision.bounds <= KINDS


def test_programs_name_decisions_that_exist():
    """Tests that what programs know of are options of decisions, and that none is limited and closed at once."""
    for target in TARGETS.values():
        assert target.decisions <= {option for option, _ in decisions.KNOWN.values()}
        assert not choices.closed_but(target.decisions).keys() & target.limits.keys() - {"max_replicas"}


@pytest.mark.parametrize("target", ["torch", "torchtitan"])
def test_choices_of_recomputation_are_closed_together(target: str):
    """Tests that a program that recomputes nothing gets a question without any choice of what recomputes."""
    freedoms = {"recompute_layers": True, "recompute_microbatches": True, "recompute_in_turn": True}
    assert restrict(Options(recompute=True, **freedoms), TARGETS[target]) == restrict(Options(), TARGETS[target])


def test_a_new_decision_is_known_to_nobody(monkeypatch: pytest.MonkeyPatch):
    """Tests that what a decision does not say of itself is refused: by programs, exact searches, and most bounds."""
    new = Decision(bounds=frozenset({"work"}), switch=Switch(help="h", says="s"))
    for module in (decisions, choices):
        monkeypatch.setattr(module, "installed", lambda: {"skip_edges": new})
        monkeypatch.setattr(module, "KNOWN", {"skipping": ("skip_edges", (False,))})
    options = Options()
    assert not options.is_enumerated
    assert decisions.holding_bounds(options) == {"work"}
    assert [each.stated for each in decisions.asked(options) if not each.decision.in_complete_model] == [
        "skip_edges = true"
    ]
    assert not restrict(options, TARGETS["executor"]).skip_edges


def test_what_is_asked_for_implies_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    """Tests that the command line sets what a decision needs unless it is stated, and no more."""
    needs = Excluded("recompute", False, True, "", is_implied=True)
    other = Excluded("order", "looped", "any", "")
    monkeypatch.setattr(choices, "installed", lambda: {"new": Decision(bounds=None, excludes=(needs, other))})
    assert choices.implied({"new": True}) == {"recompute": True}
    assert choices.implied({"new": True, "recompute": False}) == {}
    assert choices.implied({"order": "looped"}) == {}


@pytest.mark.slow
def test_a_folder_deleted_is_a_feature_deleted(without: Path):
    """Tests that the program plans without the folders, has no switch for them, and refuses the option by the name."""
    code = (
        "import sys\nfrom api.cli import main\nfrom planner.planning.planning_params import PARTS\n"
        "from planner.problem import Options\n"
        "assert not {'unequal shares', 'split placement', 'layer recomputation'} & {*PARTS}\n"
        "plan = ['plan', 'demo:alexnet-two-gpus', '--max-rounds', '0', '-q', '-o', 'plan.json']\n"
        "assert main([*plan, '--decide-all']) == 0\n"
        "asked = {'max_width': 2, 'shard_optimizer': 'allow', 'order': 'looped', 'max_active_stages': 1}\n"
        "asked |= dict.fromkeys(('recompute', 'recompute_layers', 'recompute_in_turn', 'split_placement'), True)\n"
        "asked |= dict.fromkeys(('unequal_shares', 'recompute_microbatches', 'fully_shard', 'offload'), True)\n"
        "for name, value in asked.items():\n"
        "    try:\n        Options(**{name: value})\n        sys.exit(name)\n"
        "    except ValueError as error:\n        print(error, file=sys.stderr)\n"
        "    if name != 'order':\n"
        "        assert main([*plan, '--' + name.replace('_', '-'), *([] if value is True else [str(value)])]) == 2\n"
        "sys.exit([main([*plan, *each.split()]) for each in ('--pareto', '--objective cost')] != [2, 2])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=without,
        env=os.environ | {"PYTHONPATH": str(without)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"planner/decisions/{name} is not installed" in done.stderr for name in decisions.KNOWN)
    assert (without / "plan.json").exists()


def test_gathering_needs_devices_that_compute_while_they_send():
    """Tests that gathered stages are refused on a cluster whose transfers hold their devices."""
    device = Device(name="a", type="t", memory_bytes=1)
    options = Options(max_active_stages=1, shard_optimizer="allow")
    decisions.require(options, Cluster(name="c", devices=(device,), links=()))
    with pytest.raises(ValueError, match="overlap = false with max_active_stages"):
        decisions.require(options, Cluster(name="c", devices=(device,), links=(), overlap=False))
