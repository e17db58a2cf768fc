"""Sampling groups from a pinned revision onto the job's stream."""

import asyncio
import time
from collections.abc import Sequence

from temporalio import activity

from ..schemas.dataset import Dataset
from ..schemas.engine_calls import Completion, PromptGroup, SampleCall, SampledGroup, SampleSeed
from ..schemas.events import GroupAssignment, RolloutInput, RolloutResult, Span
from ..schemas.seeds import sample_seed
from ..schemas.trajectory import Trajectory
from ..storage.blob_cache import BlobCache
from ..storage.trajectory_log import TrajectoryLog
from .datasets import Datasets
from .engines import Sampler


class RolloutActivities:
    """Runs on GPU workers, on the sample queue."""

    def __init__(self, cache: BlobCache, datasets: Datasets, log: TrajectoryLog, sampler: Sampler) -> None:
        self._cache = cache
        self._datasets = datasets
        self._log = log
        self._sampler = sampler

    @activity.defn
    async def rollout(self, data: RolloutInput) -> RolloutResult:
        """Puts every sample of every group on the stream, each group as soon as it is done.

        Killed anywhere: what is on the stream stays, and the retry samples only what is missing, to
        the same bytes. Run twice at once: both sample, and the stream keeps the first message of a
        subject. Late, after the step was committed and its groups purged: the strays lie below every
        window that selection reads.

        Raises:
            EngineFailure: from the sampler.
        """
        spec, revision = data.spec, data.revision
        dataset = await self._datasets.get(spec.key.bucket, data.started.dataset)
        wanted = await asyncio.gather(*(self._missing(data, dataset, one) for one in data.groups))
        groups = tuple(group for group in wanted if group.samples)
        prompts = {assignment.group: assignment.prompt_index for assignment in data.groups}
        done, tokens, begun = len(wanted) - len(groups), 0, time.time()
        activity.heartbeat(done, tokens)
        if groups:
            async with self._cache.pinned(spec.key.bucket, revision.adapter) as path:
                call = SampleCall(
                    spec=spec,
                    adapter=revision.adapter.digest,
                    adapter_path=str(path),
                    temperature=data.temperature,
                    groups=groups,
                    fingerprint=data.started.fingerprint
                    if spec.durability.fingerprint == "require"
                    else None,
                )
                async for sampled in self._sampler.sample(call):
                    await self._publish(data, prompts[sampled.group], sampled)
                    done += 1
                    tokens += sum(len(completion.token_ids) for completion in sampled.completions)
                    activity.heartbeat(done, tokens)
        return RolloutResult(
            groups=done, completion_tokens=tokens, sampling=Span(began=begun, ended=time.time())
        )

    async def _missing(
        self, data: RolloutInput, dataset: Dataset, assignment: GroupAssignment
    ) -> PromptGroup:
        """The samples of a group that no attempt has published yet."""
        present = await self._log.present_samples(data.key, assignment.group)
        return PromptGroup(
            group=assignment.group,
            messages=dataset.row(assignment.prompt_index).messages,
            samples=tuple(
                SampleSeed(sample=sample, seed=sample_seed(data.spec.seed, assignment.group, sample))
                for sample in range(data.samples)
                if sample not in present
            ),
        )

    async def _publish(self, data: RolloutInput, prompt_index: int, sampled: SampledGroup) -> None:
        trajectories = [
            _trajectory(data, sampled.group, prompt_index, sampled.prompt_ids, completion)
            for completion in sampled.completions
        ]
        await asyncio.gather(*(self._log.publish(data.key, one) for one in trajectories))


def _trajectory(
    data: RolloutInput, group: str, prompt_index: int, prompt: Sequence[int], completion: Completion
) -> Trajectory:
    failed = completion.failure is not None
    produced: Sequence[int] = () if failed else completion.token_ids
    logprobs: Sequence[float] = () if failed else completion.logprobs
    return Trajectory(
        group=group,
        sample=completion.sample,
        prompt_index=prompt_index,
        version=data.revision.version,
        adapter=data.revision.adapter.digest,
        token_ids=[*prompt, *produced],
        mask=[*(0 for _ in prompt), *(1 for _ in produced)],
        logprobs=[0.0] * len(prompt) + list(logprobs),
        finish_reason=completion.finish_reason,
        text=completion.text,
        failure=completion.failure,
    )
