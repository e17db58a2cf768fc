"""Policies under plain PEFT, as an independent way to compute what training computes."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any, cast

import numpy as np
import torch
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.tests.engines.slow_objective import slow_objective
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import PreTrainedModel


def with_adapter(model: PreTrainedModel, spec: JobSpec, tensors: dict[str, torch.Tensor]) -> Any:
    """The model under plain PEFT, with an adapter file's tensors; every one of them must find its place."""
    config = LoraConfig(
        r=spec.lora.rank, lora_alpha=cast(int, spec.lora.alpha), target_modules=list(spec.lora.targets)
    )
    peft = get_peft_model(cast(Any, model), config).eval()
    result = set_peft_model_state_dict(peft, tensors)
    assert not result.unexpected_keys
    assert not [key for key in result.missing_keys if "lora" in key]
    return peft


def slow_loss(peft: Any, spec: JobSpec, batch: Batch) -> torch.Tensor:
    """The loss of a whole batch by plain forward passes."""
    new = plain_logprobs(peft, batch)
    return slow_objective(spec, batch, new, new)


def plain_logprobs(peft: Any, batch: Batch) -> list[torch.Tensor]:
    """Of all tokens but each sequence's first."""
    found: list[torch.Tensor] = []
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.token_ids[start:stop].astype(np.int64))[None]
        logprobs = torch.log_softmax(peft(input_ids=ids).logits[0, :-1], -1)
        found.append(logprobs.gather(1, ids[0, 1:, None])[:, 0])
    return found
