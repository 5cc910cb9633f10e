"""One rank of DeepSpeed's own PipelineModule, cut by an exported module: prints its stage, bounds and parts."""

import importlib.util
import json
import os
import sys

import deepspeed  # type: ignore[import-not-found]
import torch
from deepspeed.pipe import LayerSpec  # type: ignore[import-not-found]
from torch import distributed, nn

specification = importlib.util.spec_from_file_location("planned", sys.argv[1])
assert specification is not None
assert specification.loader is not None
planned = importlib.util.module_from_spec(specification)
specification.loader.exec_module(planned)

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
with open(f"{sys.argv[2]}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump(found, file)
distributed.barrier()
distributed.destroy_process_group()
