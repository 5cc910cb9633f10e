"""The samples of a batch on their way to the device, a microbatch at a time, while the host continues."""

import torch


def ready_to_copy(tensor: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    """Where the device can fetch it by itself: what lies in ordinary memory of the host keeps the host waiting."""
    if device.type != "cuda" or tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.contiguous().pin_memory()


def to_device(tensor: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    """There; on an accelerator the copy is only queued."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)
