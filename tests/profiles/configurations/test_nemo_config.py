"""NeMo's names in Megatron's: tests of profiles/configurations/nemo_config.py."""

import pytest

from profiles.configurations.nemo_config import in_megatrons_names, is_nemo


def document(**model: object) -> dict[str, object]:
    """A document of two nodes."""
    return {"trainer": {"devices": 8, "num_nodes": 2, "precision": "bf16-mixed"}, "model": model}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (document(), True),
        ({"trainer": {"num_nodes": 1}, "model": {}}, False),
        ({"model": {}}, False),
        ({"trainer": {"devices": 1}, "model": 7}, False),
    ],
)
def test_nemos_documents_have_two_sections(tree: dict[str, object], expected: bool):
    """Tests that trainer and model must be there, and the trainer count devices."""
    assert is_nemo(tree) is expected


def test_names_are_megatrons():
    """Tests that settings are renamed, other sections left out, and switches read from texts."""
    said = in_megatrons_names(
        document(
            activation="fast-swiglu",
            activations_checkpoint_granularity="selective",
            num_layers=4,
            num_query_groups=2,
            optim={"name": "distributed_fused_adam"},
            tokenizer={"library": "any"},
            mcore_gpt=True,
        )
    )
    assert (said["nproc_per_node"], said["nnodes"], said["num_layers"]) == (8, 2, 4)
    assert (said["recompute_granularity"], said["swiglu"], said["bf16"], said["fp16"]) == (
        "selective",
        True,
        True,
        False,
    )
    assert said["use_distributed_optimizer"]
    assert said["group_query_attention"]
    assert not {"optim", "tokenizer", "mcore_gpt", "activation"} & said.keys()


@pytest.mark.parametrize(
    "more", [{"encoder": {"num_layers": 2}}, {"vision": {}}, {"bert_binary_head": False}, {"use_avg_pool": False}]
)
def test_models_that_are_more_than_a_decoder(more: dict[str, object]):
    """Tests that encoders, pictures and heads of rewards are refused by the section or switch that says so."""
    with pytest.raises(ValueError, match=f"model.{next(iter(more))}: an? .* is not read; give a decoder's file"):
        in_megatrons_names(document(num_layers=2, **more))


def test_degrees_in_sections_that_nemo_does_not_have():
    """Tests that a document of NeMo's form with degrees elsewhere is refused, which were left out in silence."""
    strategy = {"distributed_strategy": {"tensor_model_parallel_size": 8, "zero1": True}}
    with pytest.raises(ValueError, match=r"distributed_strategy\.tensor_model_parallel_size: NeMo has it in model"):
        in_megatrons_names(document(num_layers=2) | strategy)
