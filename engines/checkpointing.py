"""Activation checkpointing: a layer keeps its input, and computes the rest again in the backward pass."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from functools import partial

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from .base_model import UnusableModel


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Makes the model's transformer blocks keep their inputs only (Chen et al., arXiv 1604.06174).

    That of transformers works in train mode alone, which would turn on dropout.

    Raises:
        UnusableModel: when the model has no blocks that transformers would checkpoint.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UnusableModel(
            f"optimizer.gradient_checkpointing: {type(model).__name__} has no layers for it; leave it off"
        )
    for layer in layers:  # without random numbers there is no state of theirs to keep
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
