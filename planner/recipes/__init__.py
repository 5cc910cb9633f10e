"""Layouts for other programs' recipes: a function of a model's configuration, without a GPU."""

from planner.recipes.cost_basis import CostBasis
from planner.recipes.pipeline_layout import PipelineLayout, layout, layout_builder

__all__ = ["CostBasis", "PipelineLayout", "layout", "layout_builder"]
