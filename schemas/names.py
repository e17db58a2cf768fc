"""Every name that two parts of the system must agree on: workflow ids, groups, subjects, object keys."""

from typing import Annotated

from pydantic import Field

from .contract import Contract, Digest, Label, TenantLabel

TASK_QUEUE = "marlaas"
"""Workflow tasks: what `temporal workflow start --task-queue` is given."""
CPU_QUEUE = "marlaas-cpu"
"""Selection, snapshots and the bookkeeping of a job."""
REWARD_QUEUE = "marlaas-reward"
"""Rewards. Apart from the bookkeeping, so that a reward that hangs holds up no tenant's snapshot."""
SAMPLE_QUEUE = "marlaas-sample"
"""Rollouts. Apart from the train queue, so that training never queues behind rollouts."""
TRAIN_QUEUE = "marlaas-train"


class JobKey(Contract):
    """Names one job; both parts are DNS labels."""

    tenant: TenantLabel
    job: Label

    @staticmethod
    def parse(name: str) -> "JobKey":
        """The key in a name of the form `tenant/job`.

        Raises:
            pydantic.ValidationError: when it has another form.
        """
        tenant, _, job = name.partition("/")
        return JobKey(tenant=tenant, job=job)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.job}"

    @property
    def workflow_id(self) -> str:
        """Id of the TrainJob workflow."""
        return f"{self.tenant}/{self.job}"

    def step_id(self, step: int) -> str:
        """Id of the TrainStep workflow of a step."""
        return f"{self}/step/{step:08d}"

    def evaluation_id(self, version: int) -> str:
        """Id of the Evaluate workflow of a policy version."""
        return f"{self}/evaluation/{version:08d}"

    @property
    def bucket(self) -> str:
        """One bucket per tenant. The prefix keeps short tenant names valid as bucket names."""
        return f"marlaas-{self.tenant}"

    @property
    def _place(self) -> str:
        """The job, as its stream's name and subjects have it."""
        return self.job

    def in_epoch(self, epoch: int) -> "JobKey":
        """The same job, with the stream of an epoch."""
        return EpochKey(tenant=self.tenant, job=self.job, epoch=epoch) if epoch else self

    @property
    def stream(self) -> str:
        """Name of the job's JetStream stream. '_' is in no DNS label, so no two jobs share a name."""
        return f"marlaas_{self.tenant}_{self._place}"

    @property
    def subjects(self) -> str:
        """Filter that matches every subject of the job."""
        return f"marlaas.{self.tenant}.{self._place}.>"

    def trajectory_subject(self, group: str, sample: int) -> str:
        return f"marlaas.{self.tenant}.{self._place}.trajectory.{group}.{sample}"

    def trajectory_filter(self, group: str) -> str:
        """Matches the trajectories of every sample of a group."""
        return f"marlaas.{self.tenant}.{self._place}.trajectory.{group}.*"

    def scored_subject(self, group: str, round: int) -> str:
        """Where a group's scores of a round of scoring stand; the first round is 0."""
        later = f".{round}" if round else ""
        return f"marlaas.{self.tenant}.{self._place}.scored.{group}{later}"

    @property
    def job_document(self) -> str:
        """Object key of job.json, which claimed the names of jobs that began before version 0 did."""
        return f"jobs/{self.job}/job.json"

    def manifest_key(self, version: int) -> str:
        return f"jobs/{self.job}/manifests/{version:08d}.json"

    def evaluation_key(self, version: int) -> str:
        return f"jobs/{self.job}/evaluations/{version:08d}.json"

    def epoch_key(self, epoch: int) -> str:
        return f"jobs/{self.job}/epochs/{epoch:08d}.json"

    def metrics_key(self, first: int) -> str:
        """Of the rows of metrics from version `first` on, up to where the next object begins."""
        return f"jobs/{self.job}/metrics/{first:08d}.jsonl"


class EpochKey(JobKey):
    """A job that was resumed after its end: each epoch has a stream of its own.

    So an attempt of an earlier epoch finds no stream, and can neither publish nor read.
    """

    epoch: Annotated[int, Field(ge=1)]

    @property
    def _place(self) -> str:
        return f"{self.job}_{self.epoch}"


COMMITTED_MEMO = "committed"
"""Memo of a TrainJob that ended without a result: its newest committed version."""


def blob_key(digest: Digest) -> str:
    """Object key of a content-addressed blob."""
    return f"blobs/{digest[:2]}/{digest}"


def training_group(step: int, index: int) -> str:
    """Id of the group at `index` in the set dispatched for `step`."""
    return f"train-{step:08d}-{index:05d}"


def evaluation_group(version: int, index: int, *, greedy: bool) -> str:
    """Id of the group of held-out prompt `index` sampled from policy `version`."""
    return f"{'greedy' if greedy else 'sampled'}-{version:08d}-{index:05d}"
