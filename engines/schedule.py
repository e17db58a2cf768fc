"""The learning rate of each update."""

import math

from ..schemas.job_spec import OptimizerSpec


def learning_rate(spec: OptimizerSpec, updates: int, steps: int) -> float:
    """The rate of the update that follows `updates` others.

    It grows linearly over the first `warmup_steps` steps, to its peak at the last of their updates. Then it
    stays (`constant`), or falls from the peak to `final_share` of it at the end of the job's last step,
    linearly or along half a period of a cosine. Skipped updates move nothing.

    Args:
        updates: that the optimizer has made.
        steps: of the whole job.
    """
    warmup = spec.warmup_steps * spec.updates
    if updates < warmup:
        return spec.learning_rate * (updates + 1) / warmup
    done = min(1.0, (updates - warmup) / max(1, steps * spec.updates - warmup))
    match spec.schedule:
        case "constant":
            left = 1.0
        case "linear":
            left = 1 - done
        case "cosine":
            left = (1 + math.cos(math.pi * done)) / 2
    return spec.learning_rate * (spec.final_share + (1 - spec.final_share) * left)
