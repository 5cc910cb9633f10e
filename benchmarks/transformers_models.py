"""GPT-2, Llama, BERT, T5, ViT and ResNet-18 as transformers makes them: what the fidelity table trains. Qwen3,
Whisper and ConvNeXt: what nothing was tuned on.

Widths, heads and ratios are those of the small published ones or a half to a third of them; depth, vocabulary and
length are cut so that an action takes milliseconds on one core. `benchmarks.transformers_models:gpt2` names one.
"""

from functools import partial
from typing import Any

import torch
import transformers
from torch.nn.functional import cross_entropy

from planner.execute.training import Training

NUM_MICROBATCHES, SAMPLES = 8, 4
"""Per iteration, and samples of a microbatch."""

VOCABULARY, LENGTH, CLASSES, PIXELS = 4096, 32, 100, 64
"""Words, tokens of a sample, classes and pixels along a side of a picture."""

MELS = 80
"""Bands of a spectrum."""

adamw = partial(torch.optim.AdamW, lr=1e-4)


def trained(model: torch.nn.Module, **how: Any) -> Training:
    """A model with its batches and loss, and AdamW."""
    return Training.from_module(model, optimizer=adamw, **how)


def text(step: int, *, shift: int = 1) -> Any:
    """Random words, and those that follow them; with `shift` 0 the words themselves."""
    noise = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (SAMPLES * NUM_MICROBATCHES, LENGTH + shift), generator=noise)
    return {"input_ids": tokens[:, :LENGTH].contiguous()}, tokens[:, shift:].contiguous()


def pairs(step: int) -> Any:
    """Source and shifted target, and the target."""
    source, target = text(step)
    return {**source, "decoder_input_ids": source["input_ids"].roll(1, 1)}, target


def pictures(step: int) -> Any:
    """Random pictures and classes."""
    noise = torch.Generator().manual_seed(step)
    count = SAMPLES * NUM_MICROBATCHES
    pixels = torch.randn(count, 3, PIXELS, PIXELS, generator=noise)
    return {"pixel_values": pixels}, torch.randint(CLASSES, (count,), generator=noise)


def sounds(step: int) -> Any:
    """Random spectra and shifted words, and the words."""
    source, target = text(step)
    noise = torch.Generator().manual_seed(step)
    spectra = torch.randn(SAMPLES * NUM_MICROBATCHES, MELS, 2 * LENGTH, generator=noise)
    return {"input_features": spectra, "decoder_input_ids": source["input_ids"]}, target


def word_loss(output: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy, the mean over all words."""
    return cross_entropy(output.logits.flatten(0, 1), tokens.flatten())


def class_loss(output: Any, classes: torch.Tensor) -> torch.Tensor:
    """Cross entropy, the mean over all pictures."""
    return cross_entropy(output.logits, classes)


def gpt2() -> Training:
    """GPT-2 small at a third of its width, half of its depth."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=256, n_head=4, n_layer=6, use_cache=False,
        bos_token_id=None, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False,
    )  # fmt: skip
    return trained(transformers.GPT2LMHeadModel(config), batch=text, loss=word_loss)


def llama() -> Training:
    """Llama with grouped queries, six layers of width 256."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=6, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    return trained(transformers.LlamaForCausalLM(config), batch=text, loss=word_loss)


def bert() -> Training:
    """BERT that names words in place."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_attention_heads=4, num_hidden_layers=6,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        tie_word_embeddings=False,
    )  # fmt: skip
    batch = partial(text, shift=0)
    return trained(transformers.BertForMaskedLM(config), batch=batch, loss=word_loss)


def t5() -> Training:
    """T5 with three encoder and three decoder blocks; every decoder block takes what the encoder gives."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_decoder_layers=3, num_heads=4,
        dropout_rate=0.0, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return trained(model, batch=pairs, loss=word_loss)


def vit() -> Training:
    """ViT-Tiny's width and heads, eight layers, 64 patches."""
    config = transformers.ViTConfig(
        hidden_size=192, intermediate_size=768, num_attention_heads=3, num_hidden_layers=8, image_size=PIXELS,
        patch_size=8, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return trained(model, batch=pictures, loss=class_loss)


def resnet18() -> Training:
    """ResNet-18 at its own widths, on pictures of 64 x 64."""
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=CLASSES
    )
    model = transformers.ResNetForImageClassification(config)
    return trained(
        model,
        batch=pictures,
        loss=class_loss,
        sync_batch_norm=False,  # as DDP and FSDP2 do
    )


def qwen3() -> Training:
    """Qwen3 with grouped queries and norms of queries and keys, six layers of width 256."""
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, num_hidden_layers=6, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    return trained(transformers.Qwen3ForCausalLM(config), batch=text, loss=word_loss)


def whisper() -> Training:
    """Whisper with three encoder and three decoder layers of width 256, two convolutions in front."""
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in WHISPER_SIDE.items()}
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=256, num_mel_bins=MELS, max_source_positions=LENGTH, max_target_positions=LENGTH,
        dropout=0.0, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **sides,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    return trained(model, batch=sounds, loss=word_loss)


WHISPER_SIDE = {"layers": 3, "attention_heads": 4, "ffn_dim": 1024}


def convnext() -> Training:
    """ConvNeXt at half of the tiny one's widths, two blocks per stage, patches of 4."""
    config = transformers.ConvNextConfig(
        hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 2, 2], image_size=PIXELS, num_labels=CLASSES
    )
    model = transformers.ConvNextForImageClassification(config)
    return trained(model, batch=pictures, loss=class_loss)
