"""Tests of the answer to an audit that a service asks for."""

from typing import Any

import pytest

from api.auditing.audit_answer import answer_audit
from api.auditing.audit_request import read_audit_request
from api.service.http.problem_json import complaints_of

SCRIPT = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --bf16"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"file": "a.sh", "text": "echo"}, "/text"),
        ({"file": "a.b.yaml", "text": "num_layers: 3\nx: {num_layers: 4}"}, "/text"),
        ({"file": "a.sh", "text": SCRIPT.replace("4", "x")}, "/text"),
        ({"file": "a.sh", "text": SCRIPT, "gpu": "k80"}, "/gpu"),
        ({"model": "llama3-8b", "gpu": ""}, "/gpu"),
        ({"file": "a.sh", "text": SCRIPT, "partition_method": "uniform"}, "/partition_method"),
        ({"file": "a.sh", "text": SCRIPT, "variables": ["1x"]}, "/variables"),
        ({"file": "a.sh", "text": SCRIPT, "config": {"model_type": "bert"}}, "/config"),
        ({"model": "llama3-8b", "devices": 2, "network_gb_per_s": 12.5}, "/network_gb_per_s"),
        ({"file": "a.sh", "text": SCRIPT, "tp": 3}, "/tp"),
        ({"program": "deepspeed", "model": "llama3-8b", "file": "model.json", "text": "{"}, "/text"),
        ({"program": "deepspeed", "model": "llama3-8b"}, ""),
        ({"program": "deepspeed", "model": "llama3-8b", "file": "a", "text": '{"pipeline": {"stages": "x"}}'}, "/text"),
    ],
)
def test_refusals_point_into_the_body(body: dict[str, Any], pointer: str) -> None:
    """Tests that a refusal points to the option, model or text that it is of, whatever name it begins with."""
    with pytest.raises(ValueError, match=r"\w") as refused:
        answer_audit(read_audit_request({"program": "megatron", **body}, source="body"))
    assert complaints_of(refused.value)[0].pointer == pointer
