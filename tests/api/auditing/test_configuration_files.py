"""What pipeplan writes for a program, audited: tests of api/auditing/configuration_files.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.auditing import audited_problem
from api.auditing.audit_flags import files_of
from api.auditing.audit_request import read_audit_request
from api.auditing.audited_problem import AuditedProblem, audited_plan, make_audited_problem
from api.auditing.configuration_files import read_configuration
from planner.export.megatron import make_megatron_job, render_megatron
from planner.plan import Plan
from planner.progress import Limits
from profiles.assumptions import Assumptions
from profiles.configurations.audit_question import AuditQuestion
from profiles.estimates.achieved_rates import known_rates
from tests.api.cli.test_audit_command import SMALL
from tests.planner.hasty import make_plan

HYBRID = """torchrun --nproc-per-node 2 pretrain_hybrid.py --bf16 --hidden-size 1024 --num-attention-heads 8
    --ffn-hidden-size 4096 --vocab-size 32000 --seq-length 2048 --pipeline-model-parallel-size 2 --global-batch-size 8
    --hybrid-layer-pattern '%s'\n""".replace("\n   ", "")
"""With its stages in the pattern."""


@pytest.fixture(autouse=True)
def fixture_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times do not depend on which tables are installed."""
    monkeypatch.setattr(audited_problem, "default_rates_of", lambda name, **_: known_rates()[name])


@pytest.fixture(name="model")
def fixture_model(tmp_path: Path) -> str:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


def audited(**asked: Any) -> AuditedProblem:
    return make_audited_problem(read_configuration(AuditQuestion(**asked)), gpu="h100")


def written(folder: Path, audited: AuditedProblem, plan: Plan) -> Path:
    """The file of the program, beside those that it names."""
    files = files_of(audited, plan)
    if audited.run.program == "megatron":
        files = {"arguments.txt": render_megatron(make_megatron_job(audited.problem, plan))}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / next(iter(files))


@pytest.mark.parametrize("program", ["megatron", "torchtitan", "deepspeed"])
def test_an_exported_plan_is_audited_as_that_plan(model: str, tmp_path: Path, program: Any) -> None:
    """Tests that the better plan of an audit, exported, is read as its own stages and orders, every word known."""
    before = audited(program=program, model=model, pp=2)
    plan = make_plan(before.problem, target=before.target, limits=Limits(max_rounds=2))
    file = written(tmp_path, before, plan)
    after = audited(program=program, model=model, file=str(file))
    back = audited_plan(after, recompute=after.recompute)
    assert (back.stages, back.schedule) == (plan.stages, plan.schedule)
    assert (after.run.num_microbatches, after.run.notes.unknown) == (before.run.num_microbatches, [])
    assert (len({each.kind for row in plan.schedule.values() for each in row}) > 2) == (program == "torchtitan")


def test_a_hybrid_plan_is_audited_as_that_plan(tmp_path: Path) -> None:
    """Tests that the pattern of an exported plan leads back to its stages."""
    script = tmp_path / "train.sh"
    script.write_text(HYBRID % "M-M*-M-M")
    before = audited(program="megatron", file=str(script))
    plan = make_plan(before.problem, target=before.target, limits=Limits(max_rounds=2))
    flags = dict(words for words in make_megatron_job(before.problem, plan).arguments if len(words) == 2)
    script.write_text(HYBRID % flags["--hybrid-layer-pattern"])
    after = audited(program="megatron", file=str(script))
    assert audited_plan(after, recompute=None).stages == plan.stages
    assert plan.stages != audited_plan(before, recompute=None).stages


def test_assumptions_are_read_back(model: str, tmp_path: Path) -> None:
    """Tests that flags which state a profile's assumptions are all known, and say the same run."""
    before = audited(program="megatron", model=model, pp=2, tp=2, devices=4)
    stated = Assumptions(
        precision="fp8", gradients="fp32", attention="flash", sequence_parallel=True, sequence_length=1024,
        hidden_exchanges=True, fused_loss=True,
    )  # fmt: skip
    problem = replace(before.problem, profile=replace(before.problem.profile, assumptions=stated))
    file = written(tmp_path, replace(before, problem=problem), audited_plan(before, recompute=None))
    run = audited(program="megatron", model=model, file=str(file)).run
    assert (run.sequence, run.dtype, run.fused_attention, run.notes.unknown) == (1024, "fp8", True, [])


def titan(folder: Path, table: str, *, schedule: str = "PipelineScheduleMulti") -> str:
    (folder / "schedule.csv").write_text(table)
    fields = {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": schedule,
              "pipeline_parallel_schedule_csv": "schedule.csv",
              "module_fqns_per_model_part": [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"],
                                             ["layers.3"], ["norm", "lm_head"]]}  # fmt: skip
    config = {"training": {"local_batch_size": 1}, "parallelism": fields}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


def test_a_table_in_a_v(model: str, tmp_path: Path) -> None:
    """Tests that stages of a table stand on the ranks of its schedule's map, and its orders on their rows."""
    file = titan(tmp_path, "0F0,3F0,3I0,3W0,0B0\n1F0,2F0,,2B0,1I0,1W0\n", schedule="ZBVZeroBubble")
    plan = audited_plan(audited(program="torchtitan", model=model, file=file), recompute=None)
    assert [stage.replicas[0][0] for stage in plan.stages] == ["rank0", "rank1", "rank1", "rank0"]
    assert " ".join(map(str, plan.schedule["rank1"])) == "1F0 2F0 2B0 1I0 1W0"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("0F0,2F0,2B0,0B0\n", "has 1 rows for 2 ranks"),
        ("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1G0\n", "'1G0' is not an action"),
        ("0F0,2F0,2B0,0B0\n1F0,3F0,3B0\n", "rank1 never runs 1I0; add the action"),
        ("0F0,2F0,2B0,0B0\n3F0,1F0,3B0,1B0\n", "wait"),
        ("1F0,2F0,2B0,1B0\n0F0,3F0,3B0,0B0\n", "rank"),
    ],
)
def test_tables_that_do_not_run(model: str, tmp_path: Path, table: str, told: str) -> None:
    """Tests that a table of other ranks, stages or orders is refused by its field, with what is wrong."""
    file = titan(tmp_path, table)
    with pytest.raises(ValueError, match=f"parallelism.pipeline_parallel_schedule_csv: .*{told}"):
        audited_plan(audited(program="torchtitan", model=model, file=file), recompute=None)


def test_tables_that_are_not_there(model: str, tmp_path: Path) -> None:
    """Tests that a table that is missing is refused, and that a service reads none of its own machine."""
    file = titan(tmp_path, "")
    text = Path(file).read_text()
    (tmp_path / "schedule.csv").unlink()
    with pytest.raises(ValueError, match=r"schedule.csv: cannot be read \(No such file or directory\); put it beside"):
        audited(program="torchtitan", model=model, file=file)
    request = read_audit_request(
        {"program": "torchtitan", "model": "llama3-8b", "file": file, "text": text}, source="request"
    )
    with pytest.raises(ValueError, match="names a file of yours; audit by the command"):
        read_configuration(request)


def test_toml_of_another_trainer(model: str, tmp_path: Path) -> None:
    """Tests that a document without torchtitan's sections is refused, not audited by assumptions."""
    file = tmp_path / "sft.toml"
    file.write_text("[data]\nseq_len = 4096\nbatch_size = 32\n[deployment]\nnum_train_gpus = 1\n")
    with pytest.raises(ValueError, match=r"sft.toml: has neither \[training\] nor \[parallelism\]; give torchtitan's"):
        audited(program="torchtitan", model=model, file=str(file), pp=2)


@pytest.mark.parametrize(
    ("program", "name", "text"),
    [
        ("torchtitan", "run.toml", "[training]\nsteps = 9\nepochs = 3\n[run]\nname = 'x'"),
        ("deepspeed", "config.json", '{"architectures": ["A"], "hidden_size": 4096, "num_hidden_layers": 32}'),
        ("deepspeed", "run.json", '{"plugin": "3d", "lr": 4, "epochs": 2, "train_batch_size": 64}'),
        ("megatron", "lm.yaml", "trainer: {mp: c=bf16, train_batch_size: 8, num_train_steps: 9, tracker: {type: x}}"),
        ("megatron", "run.sh", "torchrun --nproc_per_node 4 train.py --distplan zero --train_step 10 --batch_size 4"),
    ],
)
def test_files_of_other_programs(program: str, name: str, text: str, model: str, tmp_path: Path) -> None:
    """Tests that a file most of whose names nobody knows is refused with what is read in its place."""
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ValueError, match=r"names are not .*; give a file of Megatron-LM, torchtitan or DeepSpeed, or"):
        audited(program=program, model=model, file=str(file), pp=None if program == "megatron" else 2)


@pytest.mark.parametrize(
    ("program", "name", "text"),
    [
        ("torchtitan", "run.toml", "[training]\nlocal_batch_size = 8\nseq_len = 2048\n[own]\na = 1\nb = 2"),
        ("deepspeed", "run.json", '{"train_batch_size": 64, "pipeline": {"stages": 2}, "comment": "x", "author": "y"}'),
        ("megatron", "run.yaml", "tensor_model_parallel_size: 1\nseq_length: 2048\nproject: {author: x, tag: y}"),
        ("megatron", "run.sh", "python pretrain_gpt.py --pipeline-model-parallel-size 2 --bf16 --reg 0.1 --corpus x"),
    ],
)
def test_short_files_with_names_of_ones_own(program: str, name: str, text: str, model: str, tmp_path: Path) -> None:
    """Tests that a short file that states what only the program calls so is read, and tells the names beside."""
    file = tmp_path / name
    file.write_text(text)
    found = audited(program=program, model=model, file=str(file), pp=2 if program == "torchtitan" else None)
    assert len(found.run.notes.unknown) == 2


def test_manifests_around_a_command(tmp_path: Path) -> None:
    """Tests that a cluster's manifest is refused with the field whose command is to be given."""
    file = tmp_path / "task.yaml"
    file.write_text("num_cpus: 4\nrun: |\n  torchrun pretrain_gpt.py --num-layers 2\n")
    with pytest.raises(ValueError, match="by Megatron-LM's names; give what stands in run as a script"):
        audited(program="megatron", model=None, file=str(file))
    file.write_text("!include base.yaml\n")
    with pytest.raises(ValueError, match=r"\(line 1: not YAML .*'!include'\)\); correct it"):
        audited(program="megatron", model=None, file=str(file))


def test_tokens_that_only_running_tells(model: str, tmp_path: Path) -> None:
    """Tests that an option stands for a length that a recipe computes."""
    file = tmp_path / "run.py"
    file.write_text(
        "def run():\n    return Trainer.Config(training=Training(max_context_length=ask()),"
        " parallelism=Parallelism(pipeline_parallel_degree=2))\n"
    )
    with pytest.raises(ValueError, match=r"training.max_context_length = ask\(\): is not read"):
        audited(program="torchtitan", model=model, file=str(file))
    assert audited(program="torchtitan", model=model, file=str(file), seq_length=4096).run.sequence == 4096


@pytest.mark.parametrize("program", ["megatron", "torchtitan", "deepspeed"])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("job.yaml", "apiVersion: batch/v1\nkind: Job\nspec:\n  parallelism: 8\n  completions: 8\n"),
        ("pod.yml", "# a pod\n---\nkind: 'Pod'\napiVersion: v1\nspec: {containers: [{args: [--num-layers, '32']}]}\n"),
        ("ray.json", '{"apiVersion": "ray.io/v1", "kind": "RayJob"}'),
        ("jobs.yaml", "kind: ConfigMap\napiVersion: v1\n---\napiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\n"),
    ],
)
def test_a_manifest_is_not_read(program: Any, file: str, text: str) -> None:
    """Tests that every kind of Kubernetes' objects is refused by the same sentence, whatever the program."""
    asked = AuditQuestion(program=program, file=file, text=text, model="llama3-8b", pp=2)
    with pytest.raises(ValueError, match=f"{file}: is a Kubernetes manifest, which is not read; give its command as"):
        read_configuration(asked)


@pytest.mark.parametrize(("speed", "is_odd"), [(400_000, True), (400, False), (None, False)])
def test_a_network_that_nobody_has(speed: float | None, is_odd: bool) -> None:
    """Tests that a speed of another unit is asked about, and a likely one is not."""
    run = read_configuration(AuditQuestion(program="megatron", model="llama3-8b", devices=16, network_gb_per_s=speed))
    asked = "network_gb_per_s = 400,000, in GB/s; is the unit right?"
    assert (asked in run.notes.assumed) == is_odd
