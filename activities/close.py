"""The end of a job."""

from temporalio import activity

from ..schemas.events import ClosedJob, CloseInput
from ..storage.revisions import Revisions
from ..storage.trajectory_log import TrajectoryLog


class CloseActivities:
    """Runs on CPU workers."""

    def __init__(self, revisions: Revisions, log: TrajectoryLog) -> None:
        self._revisions = revisions
        self._log = log

    @activity.defn
    async def close_job(self, data: CloseInput) -> ClosedJob:
        """Deletes the stream of a job that has ended, and says how far the job came.

        What the stream held is in the batches that manifests name, or was never trained on. Killed
        anywhere or run twice: a stream that is gone is deleted. A run that does not have the job's name
        deletes nothing, since the stream is another run's. Whoever still publishes or reads is told
        `StreamMissing`; no publish makes a stream.
        """
        if await self._revisions.owner(data.key, data.epoch) != data.first_run_id:
            return ClosedJob(version=None)
        await self._log.delete_stream(data.key.in_epoch(data.epoch))
        return ClosedJob(version=await self._revisions.latest_version(data.key))
