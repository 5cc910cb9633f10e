#!/usr/bin/env bash
# FSDP2 with bf16 computation loses gradients of later microbatches once their reduction is put off.
#
# `set_requires_gradient_sync(False)` looks like a matter of communication: reduce once per step instead of once per
# microbatch. The gradients that are handed out are float32 in both cases. But what has been reduced is added up in
# float32, and what waits for it in the dtype of the computation. With 8 bits of mantissa the 257th of equal gradients
# is rounded away, and all after it. `reduce_dtype=torch.float32`, which sounds like a matter of communication as well,
# makes what waits float32 too; its documentation says so, that of the method does not. torch's own pipelines put the
# reduction of a fully sharded stage off, so that the number of microbatches decides how much is lost.
#
# Guessed: the same gradient. Versions: torch 2.13.0 (CPU, gloo, two processes), Python 3.11. Seen after 600
# microbatches with a gradient of 1 each:
#     reduced each time: 600; reduced once: 256; reduced once, reduce_dtype float32: 600 (all of dtype float32)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cat >"$folder/sums.py" <<'PYTHON'
import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

MICROBATCHES = 600
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))


def add_up(reduce_each, reduce_dtype=None):
    """The gradient after all microbatches, each with a gradient of 1."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    layer = fully_shard(nn.Linear(4, 1, bias=False), mesh=mesh, mp_policy=policy)
    for number in range(MICROBATCHES):
        layer.set_requires_gradient_sync(reduce_each or number == MICROBATCHES - 1)
        layer(torch.ones(1, 4)).sum().backward()
    return layer.weight.grad.full_tensor()


found = {
    "reduced each time": add_up(True),
    "reduced once": add_up(False),
    "reduced once, reduce_dtype float32": add_up(False, torch.float32),
}
if distributed.get_rank() == 0:
    for name, gradient in found.items():
        print(f"{name:35} {gradient[0, 0].item():.0f} of {MICROBATCHES} ({gradient.dtype})")
distributed.barrier()
distributed.destroy_process_group()
sys.exit([gradient[0, 0].item() for gradient in found.values()] != [600, 256, 600])
PYTHON
TMPDIR="$folder" OMP_NUM_THREADS=1 "$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/sums.py"
