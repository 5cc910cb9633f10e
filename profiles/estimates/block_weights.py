"""How many weights one device holds of a block, by the products that need them."""

from dataclasses import replace

from profiles.estimates.block_operations import SCAN, Run, block_steps
from profiles.estimates.model_shapes import ModelShape
from profiles.estimates.operations import Product


def weight_products(shape: ModelShape, run: Run, *, block: int) -> list[Product]:
    """Of a block, whose weights they are, without the experts'."""
    steps = block_steps(shape, replace(run, fused_attention=True), block=block).forward
    return [step.operation for step in steps if isinstance(step.operation, Product) and step.what != SCAN]


def block_weights(shape: ModelShape, run: Run, *, block: int) -> int:
    """That one device holds of a block; norms aside."""
    held = sum(product.columns * product.inner for product in weight_products(shape, run, block=block))
    if shape.mixture is not None and shape.is_mixture(block):
        own = shape.mixture.experts // run.expert_devices
        held += own * (2 + shape.is_gated) * shape.hidden * shape.mixture.inner
    return held
