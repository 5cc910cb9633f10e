"""One rank of DeepSpeed's own PipelineModule, cut by an exported module: writes its stage, bounds and parts, and what
DeepSpeed makes of that module's `ZERO_OPTIMIZATION` and of another's."""

import importlib.util
import json
import os
import sys
from typing import Any

import deepspeed  # type: ignore[import-not-found]
import torch
from deepspeed.pipe import LayerSpec  # type: ignore[import-not-found]
from deepspeed.runtime.zero.config import get_zero_config  # type: ignore[import-not-found]
from torch import distributed, nn


def load(path: str) -> Any:
    specification = importlib.util.spec_from_file_location("planned", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


planned, other = load(sys.argv[1]), load(sys.argv[3])

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # it compiles for minutes
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
module = planned.PlannedPipelineModule(
    layers=[LayerSpec(nn.Linear, 4, 4) for _ in range(planned.PARTS[-1])],
    num_stages=len(planned.PARTS) - 1,
    loss_fn=nn.functional.mse_loss,
    activation_checkpoint_interval=planned.ACTIVATION_CHECKPOINT_INTERVAL,
)
assert sum(1 for _ in module.parameters()) == 2 * (module._local_stop - module._local_start)
assert torch.is_grad_enabled()
found = {"stage": module.stage_id, "bounds": [module._local_start, module._local_stop], "parts": module.parts}
configs = [get_zero_config({"zero_optimization": each.ZERO_OPTIMIZATION}) for each in (planned, other)]
found["zero"] = [int(config.stage) for config in configs]
with open(f"{sys.argv[2]}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump(found, file)
distributed.barrier()
distributed.destroy_process_group()
