"""Recipes that are functions of Python: what is read of them, and what is named as not read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.auditing.configuration_files import read_configuration
from profiles.configurations.argument_forms import Value, read_arguments
from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.python_recipe import CLASS, read_recipe
from profiles.configurations.run_configuration import RunConfiguration
from profiles.configurations.torchtitan_run import read_titan_document, read_torchtitan

BRIDGE = """
WIDE = 2 * 8

def _shared(cfg, width=1):
    cfg.model.tensor_model_parallel_size = width

def planned():
    cfg = family_defaults()
    cfg.mixed_precision = precision_of("fp8_cs")
    _shared(cfg, width=4)
    cfg.model.pipeline_model_parallel_size = 2
    cfg.train.global_batch_size = 4 * WIDE
    cfg.model.cuda_graph_impl = "none"
    if cfg.model.pipeline_model_parallel_size == 2:
        cfg.model.seq_length = 2048
    else:
        cfg.model.seq_length = 1
    set_family_pipeline_model_parallel_layout(cfg.model, "Et*15|t*17L")
    tune(cfg)
    cfg.optimizer.lr = schedule(3)
    return cfg

def larger():
    cfg = rescale(planned(), 256)
    cfg.train.global_batch_size = 256
    return cfg

def adapted():
    cfg = planned()
    cfg.peft = adapters("lora")
    return cfg

def unknown_layout():
    cfg = planned()
    set_family_pipeline_model_parallel_layout(cfg.model)
    return cfg

def unstated():
    return family_defaults()

def half_stated():
    cfg = family_defaults()
    cfg.model.tensor_model_parallel_size = 1
    return cfg

def uneven():
    cfg = planned()
    cfg.model.pipeline_model_parallel_layout = None
    cfg.model.pipeline_model_parallel_size = 3
    return cfg
"""

TITAN = """
def large():
    spec = model_registry("70B")
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
    )

def piped():
    config = large()
    config.parallelism.pipeline_parallel_degree = 4
    config.parallelism.num_pp_microbatches = 16
    return config
"""


OTHER_MODELS = """
def taught():
    return Trainer.Config(teacher=model_registry("70B"), model_spec=model_registry(flavor="8B"))

def borrowed():
    return Trainer.Config(model_spec=qwen3.model_registry("8B"))

def repeated():
    config = taught()
    for flavor in ("8B", "70B"):
        config.model_spec = model_registry("70B")
    return config
"""


@pytest.mark.parametrize(
    ("function", "model"), [("taught", {"name": "llama3", "flavor": "8B"}), ("borrowed", None), ("repeated", None)]
)
def test_only_the_own_registry_names_the_model(function: str, model: dict[str, str] | None) -> None:
    """Tests that neither a teacher's model, nor another family's, nor one that a loop sets is taken for the run's."""
    found = read_titan_document(OTHER_MODELS, source="llama3/config_registry.py", function=function)
    assert found.get("model") == model


def bridge(function: str, **options: Value) -> RunConfiguration:
    read = read_arguments(BRIDGE, source="recipes.py", function=function)
    return read_megatron(read, options=options, model="llama3-8b")


def test_a_recipe_is_followed() -> None:
    """Tests that constants, sums, conditions, other functions of the file and layouts handed over are read."""
    run = bridge("planned")
    assert (run.tensor, run.pipeline, run.global_batch, run.sequence) == (4, 2, 64, 2048)
    assert (run.dtype, run.stages) == ("fp8", ("E" + "t" * 15, "t" * 17 + "L"))
    assert run.notes.unknown == ["what family_defaults() sets", "what tune() sets"]
    assert "--cuda-graph-impl none" in run.notes.not_counted
    larger = bridge("larger")
    assert (larger.tensor, larger.global_batch) == (4, 256)
    assert "what rescale() sets" in larger.notes.unknown


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("adapted", "adapters beside frozen weights are not read"),
        ("unknown_layout", "pipeline_model_parallel_layout = .*: is not read; give --layout"),
        ("unstated", "returns no configuration"),
        ("half_stated", r"pipeline_model_parallel_size: what family_defaults\(\) sets, which .*; give --pp"),
        ("uneven", "32 blocks do not divide by 3 stages.*in another file, says otherwise"),
        ("absent", "write recipes.py:FUNCTION; there are planned, larger"),
    ],
)
def test_recipes_that_are_not_told_whole(function: str, told: str) -> None:
    """Tests that nothing is guessed where another file says degrees, stages or that weights are frozen."""
    with pytest.raises(ValueError, match=told):
        bridge(function)


def test_options_say_what_another_file_does() -> None:
    """Tests that typed options stand for what a recipe leaves to another file."""
    run = bridge("half_stated", pipeline_model_parallel_size="2", global_batch_size="8")
    assert (run.tensor, run.pipeline) == (1, 2)
    layout = "Et*16|t*16L"
    assert bridge("unknown_layout", pipeline_model_parallel_layout=layout).stages[0] == "E" + "t" * 16


def test_a_registry_of_torchtitan() -> None:
    """Tests that torchtitan's functions give model, sections and recomputation."""
    document = read_titan_document(TITAN, source="models/llama3/config_registry.py", function="piped")
    run = read_torchtitan(document, model=None, devices=None)
    assert (run.shape.name, run.tensor, run.pipeline, run.num_microbatches) == ("llama3-70b", 8, 4, 16)
    assert (run.micro_batch, run.sequence) == (2, 8192)
    assert run.recompute is not None
    assert not run.notes.unknown
    elsewhere = read_titan_document(TITAN, source="mine.py", function="large")
    with pytest.raises(ValueError, match="give --model"):
        read_torchtitan(elsewhere, model=None, devices=None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:", "is not a Python file"),
        ("x = 1", "there are no functions"),
        ("def f():\n    return f()", "more than 20 functions"),
        ("def f():\n" + "    x = 1\n" * 10_001, "more than 10,000 statements"),
        ("def f():\n    return 3", "returns no configuration"),
        ("(" * 3000, "is not a Python file"),
    ],
)
def test_files_that_are_no_recipes(text: str, told: str) -> None:
    """Tests that other files are refused by their names, and nothing runs without end."""
    with pytest.raises(ValueError, match=told):
        read_recipe(text, function=None, source="a.py")


def test_statements_that_are_not_followed() -> None:
    """Tests that loops, keywords out of dictionaries and values of other modules are named."""
    text = "def f(n=3):\n    cfg = C(a=n, **more)\n    for x in y: cfg.a = x\n    cfg.b = torch.half\n    return cfg"
    found = read_recipe(text, function=None, source="a.py")
    assert found.sections == {CLASS: "C"}
    loop = "for x in y: cfg.a = x"
    assert list(found.unread) == ["C(**more)", loop, f"a = {loop}", "b = torch.half"]


@pytest.mark.parametrize(
    ("before", "change", "kept"),
    [
        ("", "n = 1\n    n *= 2\n    cfg.a = n", None),
        ("", "n = 1\n    if asked(): n = 2\n    cfg.a = n", None),
        ("", "cfg.a = 1\n    if asked(): cfg.a = 2", None),
        ("", "cfg.a = 1\n    if 2 == 1: cfg.a = 2", 1),
        ("", "cfg.a = 1\n    with it() as cfg.b: cfg.a = 2", None),
        ("", "cfg.a = [1]\n    cfg.a.append(2)", None),
        ("", "n = [1]\n    n.extend([2])\n    cfg.a = n", None),
        ("N = 1\nN += 1\n", "cfg.a = N", None),
        ("N = 1\nif asked():\n    N = 2\n", "cfg.a = N", None),
        ("def helped(cfg):\n    if asked(): return\n    cfg.a = 2\n", "cfg.a = 1\n    helped(cfg)", None),
        ("def made():\n    if asked(): return 2\n    return 1\n", "cfg.a = made()", None),
        ("", "try: cfg.a = 1\n    except E as e: raise F from e", 1),
        ("def made():\n    try: return 1\n    except E: raise\n", "cfg.a = made()", 1),
        ("", "cfg.a = 1\n    try: cfg.a = 2\n    except E: pass", None),
        ("", "cfg.a = 1\n    try: cfg.b = 2\n    finally: cfg.a = 3", None),
    ],
)
def test_what_may_change_is_not_known(before: str, change: str, kept: int | None) -> None:
    """Tests that a value is gone once a statement that is not followed assigns it, or may have been passed over."""
    found = read_recipe(f"{before}def f():\n    cfg = C()\n    {change}\n    return cfg", function="f", source="a.py")
    assert found.sections.get("a") == kept
    assert any(each.startswith("a = ") for each in found.unread) == (kept is None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("for each in given: setattr(cfg, each, 1)", "what setattr() sets"),
        ("cfg.__dict__.update(given)", "what cfg.__dict__.update() sets"),
        ("given = dict(b=3)\n    cfg = D(**given)", "D(**dict(b=3))"),
        ("if asked(): helped(cfg)", "what helped() sets"),
    ],
)
def test_who_may_have_set_what_is_named(change: str, told: str) -> None:
    """Tests that calls under statements that are not followed, and what dictionaries hold, are named."""
    text = f"def helped(cfg): cfg.a = 2\n\ndef f():\n    cfg = C()\n    {change}\n    return cfg"
    assert told in read_recipe(text, function="f", source="a.py").unread


@pytest.mark.parametrize("field", ["tensor_parallel_degree=ask()", "num_pp_microbatches=ask()", "**given"])
def test_degrees_of_torchtitan_that_are_not_read_are_refused(field: str) -> None:
    """Tests that a degree is not taken for 1 where the recipe calls for it; an option says it."""
    text = f"def f():\n    return C(parallelism=ParallelismConfig(pipeline_parallel_degree=2, {field}))"
    document = read_titan_document(text, source="config_registry.py")
    with pytest.raises(ValueError, match="is not read, and may say degrees; give its file"):
        read_torchtitan(document, model="llama3-8b", devices=2)
    if field.startswith("tensor"):
        document["parallelism"]["tensor_parallel_degree"] = 2
        assert read_torchtitan(document, model="llama3-8b", devices=4).tensor == 2


def test_sections_by_two_stars() -> None:
    """Tests that a section has the entries of another that it is made of, but its own class, and what is said beside
    them."""
    text = "def f():\n    base = D(a=1, b=2)\n    return C(**as_dict(base), b=3)"
    found = read_recipe(text, function="f", source="a.py")
    assert found.sections == {CLASS: "C", "a": 1, "b": 3}
    assert list(found.unread) == ["what as_dict() sets"]


def test_a_recipe_names_its_model() -> None:
    """Tests that the published name in a recipe is the model, and what such recipes begin with shards the optimizer."""
    text = BRIDGE.replace("family_defaults()", "defaults_of(Bridge.from_hf_pretrained('Qwen/Qwen3-8B'))")
    run = read_megatron(
        read_arguments(text.replace('"Et*15|t*17L"', '"Et*15|t*21L"'), source="recipe.py", function="planned"),
        options={},
        model=None,
    )
    assert (run.shape.name, run.shards) == ("qwen3-8b", "optimizer")


@pytest.mark.parametrize(
    "made", ["B.from_hf_pretrained(NAME)", "B.from_hf_pretrained(NAME, trust=True).to_provider(load=False)"]
)
def test_a_constant_names_the_model(made: str) -> None:
    """Tests that a name is read out of a constant, before other calls and beside keywords."""
    model = f"    cfg.model = {made}\n    _shared(cfg, w"
    text = f"NAME = 'Qwen/Qwen3-8B'\n{BRIDGE}".replace("    _shared(cfg, w", model)
    read = read_arguments(text.replace("|t*17L", "|t*21L"), source="recipe.py", function="planned")
    assert read_megatron(read, options={}, model=None).shape.name == "qwen3-8b"


NEMO_2 = """
def trainer(tensor_parallelism: int = 4, num_nodes: int = 4, num_gpus_per_node: int = 8):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tensor_parallelism,
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=5,
        context_parallel_size=2,
    )
    return run.Config(nl.Trainer, devices=num_gpus_per_node, num_nodes=num_nodes, strategy=strategy)

def pretrain_recipe(num_nodes: int = 8, num_gpus_per_node: int = 8, fn=pretrain):
    return run.Partial(
        fn,
        model=model(),
        trainer=trainer(num_nodes=num_nodes, num_gpus_per_node=num_gpus_per_node),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1),
    )
"""


def test_nemos_devices_are_of_a_node() -> None:
    """Tests that NeMo's trainer says the devices of each of its nodes, and functions hand degrees through."""
    read = read_arguments(NEMO_2, source="llama3_70b.py", function="pretrain_recipe")
    run = read_megatron(read, options={}, model="llama3-70b")
    assert (run.tensor, run.context, run.pipeline, run.chunks, run.data) == (4, 2, 4, 5, 2)
    assert (run.sequence, run.global_batch) == (8192, 512)
    two = "python pretrain_gpt.py trainer.devices=8 trainer.num_nodes=4 ++cluster.devices=64 model.num_layers=2"
    with pytest.raises(ValueError, match=r"trainer\.devices = 8, cluster\.devices = 64: differ"):
        read_arguments(two, source="run.sh")


def test_nemos_parts_by_their_names() -> None:
    """Tests that a trainer of another file hides its degrees, and that precision and optimizer go by their names."""
    whole = "data=C(D, global_batch_size=8, micro_batch_size=1), optim=distributed_fused_adam(max_lr=1)"
    hidden = f"def r():\n    return P(trainer=qwen_trainer(tensor_parallelism=8), {whole})"
    with pytest.raises(ValueError, match=r"tensor_model_parallel_size: trainer = qwen_trainer\(.*give --tp"):
        read_megatron(read_arguments(hidden, source="a.py"), options={}, model="llama3-8b")
    parts = "strategy=S(tensor_model_parallel_size=2, pipeline_model_parallel_size=1), plugins=bf16_with_fp8_mixed()"
    stated = f"def r():\n    return P(trainer=C(T, {parts}), {whole})"
    run = read_megatron(read_arguments(stated, source="a.py"), options={}, model="llama3-8b")
    assert (run.tensor, run.dtype, run.shards) == (2, "fp8", "optimizer")


def test_torchtitans_configuration_of_another_file() -> None:
    """Tests that a function that changes another file's configuration is refused, and a class of any name is read."""
    text = "def a():\n    return changed(other())\n\ndef b():\n    return _Own(training=TrainingConfig(seq_len=9))\n"
    changed = read_titan_document("def a():\n    c = Config()\n    return changed(c)\n", source="t.py", function="a")
    with pytest.raises(ValueError, match=r"what changed\(\) sets: is not read, and may say degrees"):
        read_torchtitan(changed, model="llama3-8b", devices=None)
    assert read_titan_document(text, source="t.py", function="b")["training"]["seq_len"] == 9


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        ("cfg = _with_global_batch_size(cfg, 512)", 512),
        ("others._with_global_batch_size(cfg, size=512)", 512),
        ("_with_global_batch_size(cfg.train, 512)", 512),
        ("_with_global_batch_size(cfg, ask())", None),
        ("cfg = scale_global_batch_size(cfg, 2)", None),
        ("set_eval_global_batch_size(cfg, 8)", None),
        ("with_tp8_global_batch_size(cfg, 512)", None),
        ("print_global_batch_size(cfg)", 64),
        ("set_batch_size(cfg, 2)", 64),
    ],
)
def test_a_function_named_after_a_field_sets_it(call: str, batch: int | None) -> None:
    """Tests that no value stays that a function of another file sets by its name, and that a plain one is read."""
    text = BRIDGE.replace("    tune(cfg)", f"    {call}")
    read = read_arguments(text, source="recipes.py", function="planned")
    if batch is None:
        with pytest.raises(ValueError, match=r"global_batch_size: what family_defaults.*; give --global-batch-size"):
            read_megatron(read, options={}, model="llama3-8b")
    else:
        assert read_megatron(read, options={}, model="llama3-8b").global_batch == batch


def test_two_lengths_of_sequences_differ() -> None:
    """Tests that a recipe whose model and data differ in their lengths, which does not start, is refused by both."""
    text = BRIDGE.replace("    tune(cfg)", "    cfg.dataset.seq_length = 4096")
    with pytest.raises(ValueError, match="seq_length is 2048 in one section and 4096 in another; make them equal"):
        read_arguments(text, source="recipes.py", function="planned")


def test_parts_of_experts_in_another_file() -> None:
    """Tests that experts are not taken for cut by the tensor degree where another file may say that they are whole."""
    text = BRIDGE.replace("    tune(cfg)", "    cfg.model.expert_model_parallel_size = 8")
    with pytest.raises(ValueError, match=r"expert_tensor_parallel_size: what family_defaults\(\) sets.* set it in"):
        read_megatron(read_arguments(text, source="r.py", function="planned"), options={}, model="mixtral-8x7b")
    text = text.replace("size = 8", "size = 8\n    cfg.model.expert_tensor_parallel_size = 1")
    run = read_megatron(read_arguments(text, source="r.py", function="planned"), options={}, model="mixtral-8x7b")
    assert (run.experts, run.expert_tensor) == (8, 1)


PACKAGE = {
    "bases/__init__.py": "from .plain import base as renamed_base\n",
    "bases/plain.py": """
from torch import nowhere
from bases.sizes import BATCH
def base(batch=BATCH):
    cfg = Container(model=None, train=Training(global_batch_size=batch, micro_batch_size=1))
    cfg.model = Bridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").provider()
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 1
    cfg.optimizer, cfg.scheduler = made()
    return cfg
def made():
    return Optimizer(use_distributed_optimizer=True), nowhere()
""",
    "bases/sizes.py": "BATCH = 96\n",
    "family/common.py": """
import bases.plain as plain
from ..bases import renamed_base
from .circle import helper
def enable(cfg):
    if cfg.model.tensor_model_parallel_size == 4:
        cfg.train.micro_batch_size = 2
def small():
    return plain.base(batch=16)
""",
    "family/circle.py": "from .common import helper\n",
    "family/h100/recipes.py": """
from family.common import enable, helper, renamed_base, small as little
from family.common import little_layout
from bases import renamed_base as again
def large():
    cfg = renamed_base()
    cfg.model.tensor_model_parallel_size = 4
    enable(cfg)
    return cfg
def helped():
    cfg = again(64)
    helper(cfg)
    return cfg
""",
    "family/aliases.py": "from family.h100.recipes import large as big\nfrom family.common import small\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose recipes import one another's functions."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("recipe", "stated"),
    [
        ("family/h100/recipes.py:large", (4, 96, 2)),
        ("family/h100/recipes.py:little", (1, 16, 1)),
        ("family/h100/recipes.py:helped", (1, 64, 1)),
        ("family/aliases.py:big", (4, 96, 2)),
        ("family/aliases.py:small", (1, 16, 1)),
    ],
)
def test_imports_on_the_disk_are_followed(package: Path, recipe: str, stated: tuple[int, int, int]) -> None:
    """Tests that functions and constants of other files count, by absolute, relative and renamed imports."""
    name, _, function = recipe.partition(":")
    place = package / name
    read = read_arguments(place.read_text(), source=name, function=function, place=place)
    run = read_megatron(read, options={}, model=None)
    assert (run.tensor, run.global_batch, run.micro_batch) == stated
    assert (run.shape.name, run.shards) == ("llama3-8b", "optimizer")
    assert ("what helper() sets" in read.unread) == (function == "helped")
    assert any("bases/plain.py" in text and "as they lie on the disk" in text for text in run.notes.assumed)


def test_a_text_from_elsewhere_follows_no_imports(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that nothing of this machine is read for a recipe that does not lie on it, whatever it is called."""
    monkeypatch.chdir(package)
    text = PACKAGE["family/h100/recipes.py"]
    read = read_arguments(text, source=str(package / "family/h100/recipes.py"), function="large")
    assert "what renamed_base() sets" in read.unread
    assert "global_batch_size" not in read.values
    asked = AuditQuestion(program="megatron", file=str(package / "family/h100/recipes.py:large"), model="llama3-8b")
    assert read_configuration(asked).global_batch == 96
    with pytest.raises(ValueError, match=r"what renamed_base.*in another file"):
        read_configuration(replace(asked, text=text))
    with pytest.raises(ValueError, match="there are no functions"):
        read_arguments(PACKAGE["family/aliases.py"], source="family/aliases.py", function="big")


def test_a_file_that_is_no_python_is_not_followed(package: Path) -> None:
    """Tests that what an import would set is said to be unknown where its file cannot be read."""
    (package / "bases/plain.py").write_text("def base(:\n")
    place = package / "family/h100/recipes.py"
    read = read_arguments(place.read_text(), source="recipes.py", function="large", place=place)
    assert "what renamed_base() sets" in read.unread


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        ('MixedPrecisionConfig(bf16=True, fp8="hybrid", fp8_recipe="tensorwise")', "fp8"),
        ("MixedPrecisionConfig(bf16=True)", "bf16"),
        ('precision_of("fp8_cs")', "fp8"),
    ],
)
def test_a_precision_by_its_class(made: str, dtype: str) -> None:
    """Tests that the fields of a precision's class count, and the name of a function that makes one."""
    text = BRIDGE.replace('precision_of("fp8_cs")', made)
    run = read_megatron(read_arguments(text, source="r.py", function="planned"), options={}, model="llama3-8b")
    assert run.dtype == dtype


def test_another_vocabulary_than_the_models() -> None:
    """Tests that it is said where a size of the vocabulary is stated that a named model does not have."""
    text = BRIDGE.replace("    tune(cfg)", "    cfg.tokenizer.vocab_size = 32000")
    run = read_megatron(read_arguments(text, source="r.py", function="planned"), options={}, model="llama3-8b")
    assert "vocab_size = 128256 (of llama3-8b; 32000 is stated)" in run.notes.assumed


@pytest.mark.parametrize(
    ("stated", "held"),
    [
        ("cfg.ddp.grad_reduce_in_fp32 = False", 4),
        ("cfg.mixed_precision.grad_reduce_in_fp32 = False", 2),
        ("cfg.mixed_precision = Precision(bf16=True, grad_reduce_in_fp32=False)", 2),
        ("cfg.mixed_precision = Precision(bf16=True)\n    cfg.ddp.grad_reduce_in_fp32 = False", 4),
        ('cfg.mixed_precision = "bf16_mixed"\n    cfg.ddp.grad_reduce_in_fp32 = False', 4),
        ("cfg.mixed_precision = fp16_mixed()", 2),
        ("cfg.mixed_precision = Precision(fp16=True)", 4),
        ('cfg.mixed_precision = "fp16_mixed"', 2),
        ("cfg.mixed_precision = fp16_mixed()\n    cfg.mixed_precision.grad_reduce_in_fp32 = True", 4),
        ("cfg.trainer.plugins = [Callback(), Precision(bf16=True, grad_reduce_in_fp32=False)]", 2),
    ],
)
def test_gradients_add_up_as_the_precision_says(stated: str, held: int) -> None:
    """Tests that a recipe's precision says in how many bytes gradients add up and travel, whatever its buffers say."""
    text = BRIDGE.replace("    tune(cfg)", f"    {stated}")
    run = read_megatron(read_arguments(text, source="r.py", function="planned"), options={}, model="llama3-8b")
    assert (run.sum_bytes, run.gradient_bytes) == (held, held)


@pytest.mark.parametrize(
    ("ddp", "optimizer", "shards"),
    [(False, True, "optimizer"), (True, False, "optimizer"), (False, False, "nothing")],
)
def test_an_optimizer_is_distributed_where_one_of_two_sections_says_so(ddp: bool, optimizer: bool, shards: str) -> None:
    """Tests that Megatron-Bridge's two switches are one, on as soon as either is."""
    lines = f"    cfg.optimizer.{SHARDED} = {optimizer}\n    cfg.ddp.{SHARDED} = {ddp}"
    text = BRIDGE.replace("    tune(cfg)", lines)
    run = read_megatron(read_arguments(text, source="r.py", function="planned"), options={}, model="llama3-8b")
    assert run.shards == shards


SHARDED = "use_distributed_optimizer"

HIDDEN = {
    "a parameter hides an import": (
        "from other import size\ndef g(size): return C(a=size())\ndef f(): return g(lambda: 2)",
        "a = size()",
    ),
    "a variable hides an import": (
        "from other import size\ndef f():\n  size = x()\n  return C(a=size(1))",
        "a = size(1)",
    ),
    "a function within hides it": (
        "from other import size\ndef f():\n  def size(): return 5\n  return C(a=size())",
        "a = size()",
    ),
    "two files": (
        "try:\n  from other import size\nexcept ImportError:\n  from another import size\ndef f(): return C(a=size())",
        "a = size()",
    ),
    "another name for a function": (
        "def size(): return 1\nsize = twice(size)\ndef f(): return C(a=size())",
        "a = size()",
    ),
    "a parameter that is not told": ("a = 4\ndef f(a): return C(a=a)", "a = a"),
    "a section that is not told": ("def f(cfg):\n  cfg.b = 1\n  return cfg", "what cfg sets"),
    "a list whose length is not known": ("def g(a=1): return C(a=a)\ndef f(): return g(*XS)", "a = *XS"),
    "a decorator": ("@twice\ndef size(): return 1\ndef f(): return C(b=size())", "@twice"),
    "a function that changes what is around it": (
        "def f():\n  cfg = C(a=1)\n  def g(): cfg.a = 8\n  g()\n  return cfg",
        "def g(): cfg.a = 8",
    ),
    "a method": ("def f():\n  cfg = C(b=1)\n  cfg.plan_for(8)\n  return cfg", "what cfg.plan_for() sets"),
    "a return within": (
        "def g():\n  with x():\n    return 8\n  return 3\ndef f(): return C(a=g())",
        "with x(): return 8",
    ),
    "a section taken apart": ("def f():\n  a, b = Pair(x=1)\n  return C(a=a)", "a = (a, b)"),
}


@pytest.mark.parametrize(("text", "unread"), HIDDEN.values(), ids=HIDDEN)
def test_what_only_running_it_would_tell_is_said(tmp_path: Path, text: str, unread: str) -> None:
    """Tests that no value of another thing of the same name is taken, and that it is said what was not read."""
    for name in ("other", "another"):
        (tmp_path / f"{name}.py").write_text("def size(x=1): return 7\n")
    read = read_recipe(text, function="f", source="r.py", place=tmp_path / "r.py")
    assert "a" not in read.sections
    assert unread in read.unread


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def g(a, /, b=2): return C(a=a, b=b)\ndef f(): return g(7, 3)", {"a": 7, "b": 3}),
        ("def g(a, *more): return C(a=a, b=more)\ndef f(): return g(7, 3)", {"a": 7, "b": [3]}),
        ("def g(a, **more): return C(a=a, **more)\ndef f(): return g(7, b=3)", {"a": 7, "b": 3}),
        ("b = 3\ndef g(a, **more): return C(a=a, b=b)\ndef f(): return g(7, b=5)", {"a": 7, "b": 3}),
        ("from other import X\ndef f():\n  X.a = 7\n  return X", {"a": 7, "b": 3}),
        ("def size(): return 0\nfrom other import size\ndef f(): return C(a=size(), b=3)", {"a": 7, "b": 3}),
        (
            "def g(a):\n  if a: return None\n  return 3\ndef f(): return C(a=7, b=g(0), c=g(1))",
            {"a": 7, "b": 3, "c": None},
        ),
        ("def g(a, b=3): return C(a=a, b=b)\ndef f(*more): return g(*[7], *more)", {"a": 7, "b": 3}),
        ("def f():\n  [a, b] = 7, 3\n  return C(a=a, b=b)", {"a": 7, "b": 3}),
    ],
)
def test_arguments_arrive_as_python_places_them(tmp_path: Path, text: str, told: dict[str, Any]) -> None:
    """Tests that parameters of every kind get their values, and that names mean what they mean to Python."""
    (tmp_path / "other.py").write_text("X = C(b=3)\ndef size(): return 7\n")
    read = read_recipe(text, function="f", source="r.py", place=tmp_path / "r.py")
    assert (dict(read.sections), read.unread) == ({**told, "_class": "C"}, ())


def test_a_sum_of_many_terms_is_refused() -> None:
    """Tests that an expression that is nested too deeply is refused with the file's name."""
    terms = "+".join(["1"] * 900)
    for text in (f"X = {terms}\ndef f(): return C(a=X)", f"def f(): return C(a={terms})"):
        with pytest.raises(ValueError, match=r"r\.py: an expression is nested too deeply; give a simpler recipe"):
            read_recipe(text, function="f", source="r.py")
