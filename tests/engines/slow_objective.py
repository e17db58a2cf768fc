"""The objectives as the papers write them: one sequence and one token after the other, nothing shared."""

import math

import numpy as np
import torch
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec


def slow_objective(
    spec: JobSpec,
    batch: Batch,
    new: list[torch.Tensor],
    base: list[torch.Tensor],
    before: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """The loss of one update on a whole batch.

    Args:
        new: of each sequence, the log-probabilities of all its tokens but the first, under the policy.
        base: likewise under the reference.
        before: likewise under the policy that the step begins with; None when that is the policy itself.
    """
    objective = spec.objective
    members = range(len(batch.valid))
    own = [
        [
            t
            for t in range(1, int(batch.offsets[i + 1] - batch.offsets[i]))
            if batch.mask[batch.offsets[i] + t]
        ]
        for i in members
    ]
    now = [[new[i][t - 1] for t in own[i]] for i in members]
    start = [[(before or new)[i][t - 1].item() for t in own[i]] for i in members]
    reference = [[base[i][t - 1].item() for t in own[i]] for i in members]
    sampler = [[float(batch.logprobs[batch.offsets[i] + t]) for t in own[i]] for i in members]
    advantages = _advantages(spec, batch, start, reference)

    usable = [i for i in members if batch.valid[i] and not (objective.mask_truncated and batch.truncated[i])]
    factor = {i: _factors(spec, start[i], sampler[i]) for i in usable}
    kept = {i: [j for j in range(len(own[i])) if factor[i][j] != 0] for i in usable}
    kept = {i: tokens for i, tokens in kept.items() if tokens}
    everything = sum(len(tokens) for tokens in kept.values())
    total = torch.zeros((), dtype=torch.float64)
    for i, tokens in kept.items():
        old = sampler[i] if objective.old == "sampler" else start[i]
        logs = [now[i][j] - old[j] for j in range(len(own[i]))]
        whole = torch.stack(logs).sum()
        for j in tokens:
            ratio = {"token": logs[j], "sequence": whole / len(logs), "product": whole}[objective.ratio].exp()
            loss = factor[i][j] * _token_loss(spec, ratio, now[i][j], advantages[i][j])
            if objective.kl is not None and objective.kl.place == "loss":
                loss = loss + objective.kl.coefficient * _kl(spec, now[i][j], reference[i][j])
            total = (
                total
                + loss
                / {
                    "sequence-mean": len(tokens) * len(kept),
                    "token-mean": everything,
                    "constant": len(kept) * spec.sampling.max_tokens,
                    "sum": 1,
                }[objective.aggregation]
            )
    return total


def _token_loss(spec: JobSpec, ratio: torch.Tensor, logprob: torch.Tensor, advantage: float) -> torch.Tensor:
    objective = spec.objective
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    if objective.clip == "none":
        return -ratio * advantage
    if objective.clip == "cispo":
        return -min(max(ratio.item(), low), high) * advantage * logprob
    gain = torch.min(ratio * advantage, ratio.clamp(low, high) * advantage)
    if objective.dual_clip is not None and advantage < 0:
        gain = torch.max(gain, torch.tensor(objective.dual_clip * advantage, dtype=gain.dtype))
    return -gain


def _kl(spec: JobSpec, logprob: torch.Tensor, reference: float) -> torch.Tensor:
    assert spec.objective.kl is not None
    log_ratio = reference - logprob  # of the reference to the policy
    return {
        "k1": -log_ratio,
        "k2": 0.5 * log_ratio**2,
        "k3": torch.exp(log_ratio) - log_ratio - 1,
    }[spec.objective.kl.estimator]


def _factors(spec: JobSpec, start: list[float], sampler: list[float]) -> list[float]:
    correction = spec.objective.correction
    if correction is None:
        return [1.0] * len(start)
    ratios = [math.exp(a - b) for a, b in zip(start, sampler, strict=True)]
    if correction.kind.startswith("sequence"):
        ratios = [math.prod(ratios)] * len(start)
    if correction.kind.endswith("truncate"):
        return [min(ratio, correction.high) for ratio in ratios]
    return [ratio if correction.low <= ratio <= correction.high else 0.0 for ratio in ratios]


def _advantages(
    spec: JobSpec, batch: Batch, start: list[list[float]], reference: list[list[float]]
) -> list[list[float]]:
    objective, name = spec.objective, spec.objective.advantage
    members = range(len(batch.valid))
    penalties = [[0.0] * len(values) for values in start]
    if objective.kl is not None and objective.kl.place == "reward":
        penalties = [
            [
                objective.kl.coefficient * _kl(spec, torch.tensor(a, dtype=torch.float64), b).item()
                for a, b in zip(start[i], reference[i], strict=True)
            ]
            for i in members
        ]
    rewards = [float(batch.rewards[i]) - _overlong(spec, len(start[i])) for i in members]
    valid = [i for i in members if batch.valid[i]]
    if name == "batch-normalised":
        raw = [[rewards[i] - sum(penalties[i][j:]) for j in range(len(start[i]))] for i in members]
        return _whitened(raw, valid)
    totals = [rewards[i] - sum(penalties[i]) for i in members]
    found = [0.0] * len(totals)
    for i in valid:
        peers = [totals[k] for k in valid if batch.group[k] == batch.group[i]]
        mean = sum(peers) / len(peers)
        if name == "raw":
            found[i] = totals[i]
        elif len(peers) > 1 and max(peers) - min(peers) > 1e-9:
            deviation = (sum((value - mean) ** 2 for value in peers) / (len(peers) - 1)) ** 0.5
            others = (sum(peers) - totals[i]) / (len(peers) - 1)
            found[i] = {
                "group-normalised": (totals[i] - mean) / (deviation + 1e-6),
                "leave-one-out": totals[i] - others,
            }.get(name, totals[i] - mean)
    spread = [[found[i]] * len(start[i]) for i in members]
    return _whitened(spread, valid) if name == "group-batch-normalised" else spread


def _whitened(values: list[list[float]], valid: list[int]) -> list[list[float]]:
    every = [value for i in valid for value in values[i]]
    mean, deviation = float(np.mean(every)), math.sqrt(float(np.var(every, ddof=1)) + 1e-8)
    return [
        [(value - mean) / deviation if i in valid else 0.0 for value in row] for i, row in enumerate(values)
    ]


def _overlong(spec: JobSpec, length: int) -> float:
    """DAPO, equation 13, with its punishment of -1 scaled."""
    overlong = spec.objective.overlong
    if overlong is None:
        return 0.0
    begin = spec.sampling.max_tokens - overlong.buffer_tokens
    if length <= begin:
        return 0.0
    return overlong.penalty * min(1.0, (length - begin) / overlong.buffer_tokens)
