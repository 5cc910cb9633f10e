"""The corpus: well-known models as transformers, torchvision, timm and torchtitan make them, small, random weights.

Each function is what a user writes: `benchmarks.corpus_models:llama` is profiled, planned and trained as it stands.
Dropout is off, so that training under a plan can be compared with training in one process.
"""

import importlib
from functools import partial
from typing import Any

import torch
import transformers
from torch.nn.functional import cross_entropy

from planner.execute.training import Training
from tests.integration.lacking_triton import stand_in

_DECLARED: list[Any] = []


def declare_missing_operators() -> None:
    """torchvision's wheel is built for CUDA: beside a torch without it its operators do not load, and its import fails
    unless two of them are declared. The models use none of them.
    """
    if _DECLARED or torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(library)


declare_missing_operators()  # before transformers imports torchvision, which it does if it is there

SAMPLES, LENGTH, VOCABULARY, CLASSES = 8, 16, 128, 10
"""Of an iteration; tokens of a sample; words; kinds of picture."""

adamw = partial(torch.optim.AdamW, lr=1e-3)


def trained(model: torch.nn.Module, **how: Any) -> Training:
    """A model as a user gives it, with AdamW; `how`: its batches, and the loss if it has none of its own."""
    return Training.from_module(model, optimizer=adamw, **how)


DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
"""Sizes that Llama, Mistral, Qwen and Mixtral call alike."""


def words(step: int) -> Any:
    """Names to tensors, as a data collator of transformers gives them: the model computes its own loss."""
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(step))
    return {"input_ids": tokens, "labels": tokens}


def padded(step: int) -> Any:
    """Likewise, with a mask: the first samples are shorter."""
    tokens = words(step)["input_ids"]
    mask = (torch.arange(LENGTH) < torch.arange(LENGTH - 3, LENGTH - 3 + SAMPLES)[:, None]).long()
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def sounds(step: int) -> Any:
    """Spectra, and the words in them."""
    noise = torch.Generator().manual_seed(step)
    return {"input_features": torch.randn(SAMPLES, 16, 32, generator=noise), "labels": words(step)["labels"]}


def pictures(step: int, *, pixels: int = 32) -> Any:
    """Inputs and target."""
    noise = torch.Generator().manual_seed(step)
    return torch.randn(SAMPLES, 3, pixels, pixels, generator=noise), torch.randint(CLASSES, (SAMPLES,), generator=noise)


def large_pictures(step: int) -> Any:
    """For those that halve their sides five times."""
    return pictures(step, pixels=64)


def gpt2() -> Training:
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_head=4, n_layer=4, **no_dropout
    )
    return trained(transformers.GPT2LMHeadModel(config), batch=padded)


def llama() -> Training:
    return trained(transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)), batch=words)


def mistral() -> Training:
    return trained(transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER)), batch=padded)


def qwen() -> Training:
    return trained(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER)), batch=words)


def mixtral() -> Training:
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**DECODER, num_local_experts=4))
    return trained(model, batch=words)


def bert() -> Training:
    sizes = {name: value for name, value in DECODER.items() if name != "num_key_value_heads"}
    config = transformers.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return trained(transformers.BertForMaskedLM(config), batch=padded)


def t5() -> Training:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_heads": 4, "dropout_rate": 0.0}
    config = transformers.T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)
    return trained(transformers.T5ForConditionalGeneration(config), batch=padded)


def whisper() -> Training:
    sizes = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in WHISPER_SIDES.items()}
    config = transformers.WhisperConfig(vocab_size=VOCABULARY, d_model=64, num_mel_bins=16, **sizes, **WHISPER_REST)
    return trained(transformers.WhisperForConditionalGeneration(config), batch=sounds)


WHISPER_SIDES = {"layers": 3, "attention_heads": 4, "ffn_dim": 128}

WHISPER_REST = {
    "max_source_positions": 16,
    "max_target_positions": 32,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def vit() -> Training:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 4}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=CLASSES)
    model = transformers.ViTForImageClassification(config)
    return trained(model, batch=pictures, loss=logits_loss)


def logits_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Of what models of transformers give."""
    return cross_entropy(output.logits, target)


def resnet18() -> Training:
    return trained(torchvision_model("resnet18"), batch=large_pictures, loss=cross_entropy)


def resnet50() -> Training:
    return trained(torchvision_model("resnet50"), batch=large_pictures, loss=cross_entropy)


def torchvision_vit() -> Training:
    sizes = {"patch_size": 8, "num_layers": 4, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
    model = torchvision_model("VisionTransformer", image_size=32, **sizes)
    return trained(model, batch=pictures, loss=cross_entropy)


def convnext() -> Training:
    model = torchvision_model("convnext_tiny", stochastic_depth_prob=0.0)
    return trained(model, batch=large_pictures, loss=cross_entropy)


def mobilenetv3() -> Training:
    return trained(torchvision_model("mobilenet_v3_small", dropout=0.0), batch=large_pictures, loss=cross_entropy)


def timm_vit() -> Training:
    model = timm_model("vit_tiny_patch16_224", img_size=32, depth=4, patch_size=8)
    return trained(model, batch=pictures, loss=cross_entropy)


def efficientnet() -> Training:
    model = timm_model("efficientnet_b0")
    return trained(model, batch=large_pictures, loss=cross_entropy)


def albert() -> Training:
    config = transformers.AlbertConfig(vocab_size=VOCABULARY, embedding_size=32, hidden_size=64, **ALBERT_REST)
    return trained(transformers.AlbertForMaskedLM(config), batch=padded)


ALBERT_REST = {"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}


def densenet() -> Training:
    return trained(torchvision_model("densenet121"), batch=large_pictures, loss=cross_entropy)


def titan_llama() -> Training:
    return trained(titan_model("llama3"), batch=following_words, loss=words_loss)


def titan_qwen() -> Training:
    return trained(titan_model("qwen3"), batch=following_words, loss=words_loss)


def titan_deepseek() -> Training:
    return trained(titan_model("deepseek_v3"), batch=following_words, loss=words_loss)


def following_words(step: int) -> Any:
    """Inputs and target."""
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def words_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of what torchtitan's models give."""
    return cross_entropy(output.flatten(0, 1), target.flatten())


def titan_model(family: str) -> torch.nn.Module:
    """The small model of `torchtitan.models.FAMILY`, imported when it is asked for.

    Attention is torchtitan's module around torch's own function: flex attention, its default, has no backward pass on
    processors.
    """
    stand_in()
    attention = importlib.import_module("torchtitan.models.common.attention").ScaledDotProductAttention
    config = importlib.import_module(f"torchtitan.models.{family}").model_registry("debugmodel").model
    for layer in config.layers:
        layer.attention.inner_attention = attention.Config()
    model: torch.nn.Module = config.build()
    with torch.no_grad():
        model.init_states()
    return model


def torchvision_model(name: str, **sizes: Any) -> torch.nn.Module:
    """`torchvision.models.resnet18(num_classes=10)`, imported when it is asked for."""
    import torchvision

    return getattr(torchvision.models, name)(num_classes=CLASSES, **sizes)


def timm_model(name: str, **sizes: Any) -> torch.nn.Module:
    """`timm.create_model("efficientnet_b0", num_classes=10)`, imported when it is asked for."""
    import timm

    return timm.create_model(name, num_classes=CLASSES, **sizes)
