"""Files of transformers' models, whose names and shapes may differ from those in memory."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.document import render_plan
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.test_enter import start_ranks

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}
DEEPSEEK = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
DEEPSEEK |= {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralForCausalLM", SMALL | {"num_local_experts": 4}),
    "qwen2-moe": ("Qwen2MoeForCausalLM", SMALL | EXPERTS | {"shared_expert_intermediate_size": 8}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", SMALL | EXPERTS | {"head_dim": 8}),
    "deepseek-v3": ("DeepseekV3ForCausalLM", SMALL | EXPERTS | DEEPSEEK),
    "gpt-oss": ("GptOssForCausalLM", SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}),
    "granite-moe": ("GraniteMoeForCausalLM", SMALL | {"num_local_experts": 4}),
    "llama": ("LlamaForCausalLM", SMALL),
    "tied llama": ("LlamaForCausalLM", SMALL | {"tie_word_embeddings": True}),
    "vit": ("ViTForImageClassification", SMALL | {"image_size": 16, "patch_size": 8}),
}
NAMED_ALIKE = ("gpt-oss", "llama", "tied llama")
"""Those whose files have the names that they have in memory."""


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    """Takes seconds to import."""
    found = pytest.importorskip("transformers")
    pytest.importorskip("transformers.core_model_loading")
    found.logging.set_verbosity_error()
    return found


@pytest.fixture(scope="module")
def make(transformers: ModuleType) -> Callable[[str], Any]:
    """A model of `MODELS` with weights that are all different."""
    import torch

    def made(kind: str) -> Any:
        name, told = MODELS[kind]
        model_type: Any = getattr(transformers, name)
        torch.manual_seed(0)
        model = model_type(model_type.config_class(**told))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        return model

    return made


def read(model: Any, path: Path) -> dict[str, Any]:
    """What our reader makes of files for a model."""
    from planner.execute.model.weight_conversion import conversion_of
    from planner.execute.model.weight_files import WeightFiles

    state = model.state_dict(keep_vars=True)
    alike: dict[int, list[str]] = {}
    for name, tensor in state.items():
        alike.setdefault(id(tensor), []).append(name)
    with WeightFiles(path, conversion_of(model)) as files:
        return {
            name: files.read([name, *alike[id(tensor)]], shape=tensor.shape, layer="x")
            for name, tensor in state.items()
        }


def are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("kind", MODELS)
def test_files_are_read_and_written_as_by_transformers(make: Callable[[str], Any], kind: str, tmp_path: Path):
    """Tests that every tensor is that of from_pretrained, from several files, and goes back as save_pretrained does."""
    from safetensors.torch import load_file

    from planner.execute.model.weight_conversion import conversion_of

    model = make(kind)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    files = {name: value for file in tmp_path.glob("*.safetensors") for name, value in load_file(file).items()}
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert (files.keys() <= model.state_dict().keys()) == (kind in NAMED_ALIKE)
    assert are_equal(read(model, tmp_path), type(model).from_pretrained(tmp_path).state_dict())
    conversion = conversion_of(model)
    assert conversion is not None
    reverted = conversion.revert(model.state_dict())
    assert are_equal({name: reverted[name] for name in files}, files)
    assert not conversion.find_torn([name for name in model.state_dict() if "layers.0." in name])


def test_files_without_the_head_have_the_names_of_the_body(make: Callable[[str], Any], tmp_path: Path):
    """Tests that names without the prefix of the body, as a body alone writes them, are found for the whole model."""
    model = make("tied llama")
    model.model.save_pretrained(tmp_path)
    assert are_equal(read(model, tmp_path), model.state_dict())


def test_files_of_other_forms(make: Callable[[str], Any], tmp_path: Path):
    """Tests that a file with the names in memory is read, by torch or safetensors, and that another model's is not."""
    import torch

    model = make("mixtral")
    torch.save(model.state_dict(), tmp_path / "inner.bin")
    assert are_equal(read(model, tmp_path / "inner.bin"), model.state_dict())
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.bin")
    with pytest.raises(ValueError, match=r"model\.embed_tokens\.weight of layer 'x' is not there"):
        read(model, tmp_path / "other.bin")


def test_an_expert_that_is_missing_is_told(make: Callable[[str], Any], tmp_path: Path):
    """Tests that a file in which one of four experts is missing is refused by the tensor that it belongs to."""
    from safetensors.torch import load_file, save_file

    model = make("qwen3-moe")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if ".1.mlp.experts.3.down_proj" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts\.down_proj has shape \(3, .*model needs \(4, "):
        read(model, tmp_path)


def test_tensors_of_several_weights_have_to_be_together(make: Callable[[str], Any]):
    """Tests that one tensor of a file becomes three, and that a process with two of these cannot write it."""
    import torch
    from transformers.core_model_loading import Chunk, WeightConverter

    from planner.execute.model.weight_conversion import WeightConversion

    names = [f"self_attn.{each}_proj.weight" for each in "qkv"]
    model = make("llama")
    model._weight_conversions = [WeightConverter("self_attn.qkv.weight", names, operations=[Chunk(dim=0)])]
    conversion = WeightConversion(model.to("meta"), model._weight_conversions)
    here = [f"model.layers.1.{name}" for name in names]
    assert conversion.find_torn(here) == ""
    assert conversion.find_torn(here[:2]) == "model.layers.1.self_attn.qkv.weight"
    found = conversion.find(Path("x"), ["model.layers.1.self_attn.qkv.weight"], shape=lambda _: (48, 16))
    assert set(found) == set(here)
    whole = torch.arange(48 * 16.0).reshape(48, 16)
    made = conversion.convert(found[here[1]], lambda _: whole)
    assert made[here[1]].equal(whole[16:32])


def test_a_run_starts_from_published_weights_and_publishes_its_own(transformers: ModuleType, tmp_path: Path):
    """Tests that a step of the executor from save_pretrained's files is that of a plain loop, and that
    from_pretrained reads what it saves, names per expert included.
    """
    import torch

    from tests.integration.published_models import TOKENS, mixtral

    model = mixtral()
    model.save_pretrained(tmp_path / "published")
    layers = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm")
    plan = make_random_plan("0", cut=(len(layers),), num_microbatches=1)
    plan = replace(plan, stages=tuple(replace(stage, layers=layers) for stage in plan.stages))
    (tmp_path / "plan.json").write_text(render_plan(plan))
    options = ["--model", "published_models:train", "--weights", tmp_path / "published"]
    ((code, said),) = start_ranks([[tmp_path / "plan.json", *options, "--save-weights", tmp_path / "saved"]])
    assert code == 0, said
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    saved = type(model).from_pretrained(tmp_path / "saved")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved.state_dict()[name], value, rtol=0, atol=1e-6, msg=name)
    index = json.loads((tmp_path / "saved" / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.layers.1.block_sparse_moe.experts.3.w2.weight" in index
