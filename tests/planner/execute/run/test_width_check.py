"""How layers are cut for a group of devices, and what cannot be cut, before processes meet."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from planner.execute.data.data_agreement import find_drift, find_team_drift
from planner.execute.parallel.parallel_styles import FusedColwiseParallel, interleave
from planner.execute.parallel.parallel_table import parallelize_by_table
from planner.execute.run.width_check import require_widths
from planner.execute.training import Training


class LlamaAttention(nn.Module):
    """As the library's, as far as the table looks."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=heads)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))


class GPT2Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.split_size, self.num_heads = SimpleNamespace(num_attention_heads=4), 8, 4
        self.c_attn, self.c_proj = nn.Linear(8, 24), nn.Linear(8, 8)


class GPT2MLP(nn.Module):
    """Of another library: its parts have other names."""


class T5Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.n_heads, self.inner_dim = SimpleNamespace(num_heads=4), 4, 8
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))


class MixtralExperts(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(2, 2 * hidden, 8))
        self.down_proj = nn.Parameter(torch.zeros(2, 8, hidden))


class Qwen3MoeExperts(nn.ModuleList):
    """Of an older version: a module per expert."""


for kind in (LlamaAttention, GPT2Attention, GPT2MLP, T5Attention, MixtralExperts, Qwen3MoeExperts):
    kind.__module__ = "transformers.models.modeling"


class Block(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(2, hidden), nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))


def names_of(styles: dict[str, ParallelStyle]) -> dict[str, str]:
    return {path: type(style).__name__ for path, style in styles.items()}


def test_known_modules_are_cut_wherever_they_are():
    """Tests that columns come before rows, that a member counts its own heads, and that other modules are whole."""
    layer = nn.ModuleDict({"a": LlamaAttention(2), "b": GPT2Attention(), "c": GPT2MLP(), "d": nn.LayerNorm(8)})
    found = parallelize_by_table(layer, 2)
    assert names_of(found) == {
        **dict.fromkeys(("a.q_proj", "a.k_proj", "a.v_proj"), "ColwiseParallel"),
        "a.o_proj": "RowwiseParallel",
        "b.c_attn": "FusedColwiseParallel",
        "b.c_proj": "Conv1DRowwiseParallel",
    }
    assert (layer["b"].split_size, layer["b"].num_heads) == (4, 2)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert names_of(parallelize_by_table(encoder, 2)) == {"linear1": "ColwiseParallel", "linear2": "RowwiseParallel"}
    assert encoder.activation_relu_or_gelu == 0
    with pytest.raises(ValueError, match="a has num_key_value_heads = 2, which width 4 does not divide; plan with a"):
        parallelize_by_table(layer, 4)


def test_attention_with_a_bias_and_experts_are_cut_as_a_whole():
    """Tests that a module itself may have a style beside those of its parts, and that experts are known by weights."""
    layer = nn.ModuleDict({"a": T5Attention(), "b": MixtralExperts(), "c": Qwen3MoeExperts()})
    assert names_of(parallelize_by_table(layer, 2)) == {
        "a": "OwnHeadsOfBias",
        **dict.fromkeys(("a.q", "a.k", "a.v"), "ColwiseParallel"),
        "a.o": "RowwiseParallel",
        "b": "ExpertsParallel",
    }
    assert (layer["a"].n_heads, layer["a"].inner_dim) == (2, 4)


def test_every_member_gets_its_part_of_each_fused_matrix():
    """Tests that equal parts of reordered columns are the parts of queries, keys and values side by side."""
    columns = torch.arange(12)
    parts = interleave(columns, dim=0, num_fused=3, width=2).chunk(2)
    assert [part.tolist() for part in parts] == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert interleave(columns, dim=0, num_fused=1, width=2) is columns
    turned = interleave(torch.arange(12).view(2, 6), dim=1, num_fused=3, width=2)
    assert turned.tolist() == [[0, 2, 4, 1, 3, 5], [6, 8, 10, 7, 9, 11]]


class Twice(Block):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(2, 4, bias=False)
        self.again.weight = self.up.weight


def training_of(styles: Any, *, make: Any = Block, **more: Any) -> Training:
    return Training(
        layers={"a": make, "b": nn.Tanh},
        loss=nn.functional.mse_loss,
        batch=lambda _: (torch.ones(2, 2), torch.ones(2, 2)),
        optimizer=torch.optim.SGD,
        parallelize=None if styles is None else lambda name, *_: styles if name == "a" else {},
        **more,
    )


PAIR = {"up": ColwiseParallel(), "down": RowwiseParallel()}


@pytest.mark.parametrize(
    ("training", "width", "said"),
    [
        (training_of(None), 2, "stage 1 spans 2 devices, but of none of its layers ('a' ...) is known how to cut it"),
        (training_of({"middle": ColwiseParallel()}), 2, "layer 'a' cannot be cut: `parallelize` names 'middle'"),
        (training_of({"u?": "columns"}), 2, "`parallelize` gives layer 'a' 'u?': str; give paths of its parts, and"),
        (training_of(PAIR), 3, "up.weight has shape (4, 2), which cannot be cut along dimension 0 into 3 parts; give"),
        (
            training_of({"up": FusedColwiseParallel(num_fused=3)}),
            2,
            "up.weight has shape (4, 2), which cannot be cut along dimension 0 into 3 matrices of 2 parts each; give",
        ),
        (
            training_of(None, make=lambda: MixtralExperts(3)),
            2,
            "gate_up_proj has shape (2, 6, 8), which cannot be cut along dimension 1 into 2 matrices of 2 parts each",
        ),
        (training_of(PAIR, make=Twice), 2, "up.weight and again.weight are one tensor; give `parallelize` styles"),
        (training_of(PAIR, tied=(("a:up.weight", "c:up.weight"),)), 2, "and a:up.weight is tied, but would be cut; le"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_said(training: Training, width: int, said: str):
    """Tests that a group whose layers do not fit is refused with the field, its value and what to do."""
    with pytest.raises(ValueError, match=r"max_width|styles of torch") as refusal:
        require_widths(training, [(), ("a", "b")], widths=(1, width))
    assert said in str(refusal.value)


def test_what_can_be_cut_passes():
    """Tests that single devices are not looked at, that stages beside a cut one may be whole, and patterns work."""
    training = training_of({"[ud]*": SequenceParallel()})
    require_widths(training, [("a",), ("b",)], widths=())
    only = training_of(PAIR)
    require_widths(only, [("a",), ("b",)], widths=(2, 2))


def test_what_members_have_alike_is_told_from_what_replicas_have():
    """Tests that a bias on a part of the heads, and a replica that drifted, are named with their ranks."""
    sums = [{"0/l0:bias": 1}, {"0/l0:bias": 2}]
    said = find_team_drift(sums, teams=[(0, (0, 1))], devices=("d0", "d1"), number=7)
    assert said.startswith("after iteration 7 l0:bias of stage 0, which no style cuts, is not the same on the devices")
    assert "on ranks 0 (d0) and 1 (d1)" in said
    assert find_team_drift(sums, teams=[(0, (0,)), (0, (1,))], devices=("d0", "d1"), number=7) == ""
    said = find_drift(sums, alike=[(0, (0, 1))], devices=("d0", "d1"), number=7)
    assert said.startswith("after iteration 7 l0:bias of stage 0 is not the same on its replicas on ranks 0 (d0) and 1")
