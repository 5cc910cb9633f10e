"""GPT-2, Llama, BERT, T5, ViT and ResNet-18 out of transformers' own modules: what the fidelity table trains.

Widths, heads and ratios are those of the small published ones or a half to a third of them; depth, vocabulary and
length are cut so that an action takes milliseconds on one core. `benchmarks.transformers_models:gpt2` names one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, GPT2Config, LlamaConfig, ResNetConfig, T5Config, ViTConfig
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer, BertOnlyMLMHead
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.resnet.modeling_resnet import ResNetEmbeddings, ResNetStage
from transformers.models.t5.modeling_t5 import T5Block, T5LayerNorm
from transformers.models.vit.modeling_vit import ViTEmbeddings, ViTLayer

from planner.execute.training import Training

NUM_MICROBATCHES, SAMPLES = 8, 4
"""Per iteration, and samples of a microbatch."""

VOCABULARY, LENGTH, CLASSES, PIXELS = 4096, 32, 100, 64
"""Words, tokens of a sample, classes and pixels along a side of a picture."""

Batch = Callable[[int], Any]
Layers = dict[str, Callable[[], nn.Module]]

GPT2 = GPT2Config(
    vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=256, n_head=4, n_layer=6,
    bos_token_id=None, eos_token_id=None,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",
)  # fmt: skip
LLAMA = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704, num_attention_heads=4, num_key_value_heads=2,
    num_hidden_layers=6, max_position_embeddings=LENGTH, attn_implementation="sdpa",
)  # fmt: skip
BERT = BertConfig(
    vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_attention_heads=4, num_hidden_layers=6,
    max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    attn_implementation="sdpa",
)  # fmt: skip
T5 = T5Config(
    vocab_size=VOCABULARY, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_decoder_layers=3, num_heads=4,
    dropout_rate=0.0, attn_implementation="sdpa",
)  # fmt: skip
T5_DECODER = T5Config(**{**T5.to_dict(), "is_decoder": True}, attn_implementation="sdpa")
VIT = ViTConfig(
    hidden_size=192, intermediate_size=768, num_attention_heads=3, num_hidden_layers=8, image_size=PIXELS, patch_size=8,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
)  # fmt: skip
RESNET = ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")


class Words(nn.Module):
    """Tokens, and their places where `length` is given, to vectors: GPT-2's and Llama's first layer."""

    def __init__(self, width: int, *, length: int = 0) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(length, width) if length else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.wte(tokens)
        return found if self.wpe is None else found + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))


class Scores(nn.Module):
    """The last norm and the scores of all words."""

    def __init__(self, norm: nn.Module, *, width: int) -> None:
        super().__init__()
        self.norm, self.lm_head = norm, nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(x))


class LlamaLayer(nn.Module):
    """A decoder layer with the rotation of its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rotary = LlamaDecoderLayer(LLAMA, layer_idx=0), LlamaRotaryEmbedding(LLAMA)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        return self.layer(x, position_ids=places, position_embeddings=self.rotary(x, position_ids=places))


class T5Words(nn.Module):
    """The source (0) or the shifted target (1) of the batch to vectors."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.which, self.shared = which, nn.Embedding(VOCABULARY, T5.d_model)

    def forward(self, *tokens: torch.Tensor) -> torch.Tensor:
        return self.shared(tokens[self.which])


class T5Layer(nn.Module):
    """A block; the position bias that the first one of a stack makes goes along with the hidden states to the last."""

    def __init__(self, number: int, *, count: int, is_decoder: bool) -> None:
        super().__init__()
        self.is_first, self.is_last, self.is_decoder = number == 0, number == count - 1, is_decoder
        self.block = T5Block(T5_DECODER if is_decoder else T5, has_relative_attention_bias=self.is_first, layer_idx=0)

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        bias = None if self.is_first else rest[0][:1]
        length = x.shape[1]
        hidden = torch.full((length, length), torch.finfo(x.dtype).min, device=x.device).triu(1)[None, None]
        found, bias, _ = self.block(
            x,
            attention_mask=hidden if self.is_decoder else None,
            position_bias=bias,
            encoder_hidden_states=rest[-1] if self.is_decoder else None,
        )
        return found if self.is_last else (found, bias.expand(x.shape[0], -1, -1, -1).contiguous())


class ViTHead(nn.Module):
    """The classes of the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.classifier = nn.LayerNorm(VIT.hidden_size), nn.Linear(VIT.hidden_size, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(x)[:, 0])


def text(step: int, *, shift: int = 1) -> Any:
    """Random words, and those that follow them; with `shift` 0 the words themselves."""
    noise = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (SAMPLES * NUM_MICROBATCHES, LENGTH + shift), generator=noise)
    return tokens[:, :LENGTH].contiguous(), tokens[:, shift:].contiguous()


def pairs(step: int) -> Any:
    """Source and shifted target, and the target."""
    source, target = text(step)
    return (source, source.roll(1, 1)), target


def pictures(step: int) -> Any:
    """Random pictures and classes."""
    noise = torch.Generator().manual_seed(step)
    count = SAMPLES * NUM_MICROBATCHES
    pixels = torch.randn(count, 3, PIXELS, PIXELS, generator=noise)
    return pixels, torch.randint(CLASSES, (count,), generator=noise)


def word_loss(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy, the mean over all words."""
    return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def _training(layers: Layers, batch: Batch, *, loss: Any = word_loss, **more: Any) -> Training:
    optimizer = partial(torch.optim.AdamW, lr=1e-4)
    return Training(layers=layers, loss=loss, batch=batch, optimizer=optimizer, **more)


def _numbered(name: str, make: Callable[[], nn.Module], *, count: int) -> Layers:
    return {f"{name}{number}": make for number in range(count)}


def gpt2() -> Training:
    """GPT-2 small at a third of its width, half of its depth."""
    blocks = _numbered("block", partial(GPT2Block, GPT2, layer_idx=0), count=GPT2.n_layer)
    words = partial(Words, GPT2.n_embd, length=LENGTH)
    return _training({"words": words, **blocks, "head": _gpt2_head}, text)


def _gpt2_head() -> nn.Module:
    return Scores(nn.LayerNorm(GPT2.n_embd), width=GPT2.n_embd)


def llama() -> Training:
    """Llama with grouped queries, six layers of width 256."""
    layers = _numbered("layer", LlamaLayer, count=LLAMA.num_hidden_layers)
    return _training({"words": partial(Words, LLAMA.hidden_size), **layers, "head": _llama_head}, text)


def _llama_head() -> nn.Module:
    return Scores(LlamaRMSNorm(LLAMA.hidden_size), width=LLAMA.hidden_size)


def bert() -> Training:
    """BERT that names words in place."""
    layers = _numbered("layer", partial(BertLayer, BERT), count=BERT.num_hidden_layers)
    ends: Layers = {"words": partial(BertEmbeddings, BERT), "head": partial(BertOnlyMLMHead, BERT)}
    return _training({"words": ends["words"], **layers, "head": ends["head"]}, partial(text, shift=0))


def t5() -> Training:
    """T5 with three encoder and three decoder blocks; every decoder block takes what the encoder gives."""
    num_encoders, count = T5.num_layers, T5.num_decoder_layers
    encoder = {f"encoder{n}": partial(T5Layer, n, count=num_encoders, is_decoder=False) for n in range(num_encoders)}
    decoder = {f"decoder{n}": partial(T5Layer, n, count=count, is_decoder=True) for n in range(count)}
    layers: Layers = {"source": partial(T5Words, 0), **encoder, "encoded": partial(T5LayerNorm, T5.d_model)}
    layers |= {"target": partial(T5Words, 1), **decoder, "head": _t5_head}
    inputs = {"source": ("",), "target": ("",)}
    inputs |= {f"decoder{n}": (f"decoder{n - 1}" if n else "target", "encoded") for n in range(count)}
    return _training(layers, pairs, inputs=inputs)


def _t5_head() -> nn.Module:
    return Scores(T5LayerNorm(T5.d_model), width=T5.d_model)


def vit() -> Training:
    """ViT-Tiny's width and heads, eight layers, 64 patches."""
    layers = _numbered("layer", partial(ViTLayer, VIT), count=VIT.num_hidden_layers)
    ends: Layers = {"patches": partial(ViTEmbeddings, VIT), "head": ViTHead}
    return _training(
        {"patches": ends["patches"], **layers, "head": ends["head"]}, pictures, loss=functional.cross_entropy
    )


def resnet18() -> Training:
    """ResNet-18 at its own widths, on pictures of 64 x 64; each of its eight residual layers is one."""
    layers: Layers = {"stem": partial(ResNetEmbeddings, RESNET)}
    channels = RESNET.embedding_size
    for number, width in enumerate(RESNET.hidden_sizes):
        for place in range(RESNET.depths[number]):
            stride = 2 if number and not place else 1
            layers[f"layer{number}.{place}"] = partial(_resnet_layer, channels, width, stride=stride)
            channels = width
    return _training({**layers, "head": _resnet_head}, pictures, loss=functional.cross_entropy)


def _resnet_layer(before: int, after: int, *, stride: int) -> nn.Module:
    return ResNetStage(RESNET, before, after, stride=stride, depth=1)


def _resnet_head() -> nn.Module:
    flat: Sequence[nn.Module] = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(RESNET.hidden_sizes[-1], CLASSES))
    return nn.Sequential(*flat)
