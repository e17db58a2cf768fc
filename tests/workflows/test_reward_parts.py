"""The means of a reward's parts, on their way from the batch to what is committed."""

from marlaas.schemas.manifest import StepMetrics
from marlaas.tests.noop_activities import METRICS, NoopActivities, job, noop_workers, start
from temporalio.client import Client


async def test_a_step_commits_the_means_of_its_batch_with_its_metrics(temporal: Client) -> None:
    activities = NoopActivities()
    activities.reward_parts = {"right": 0.25, "style.short": -1.0}
    async with noop_workers(temporal, activities):
        await (await start(temporal, job("parts", steps=2), "acme/parts")).result()
    committed = [one.candidate.metrics for one in activities.snapshots]
    expected = METRICS.model_copy(update={"reward_parts": activities.reward_parts})
    assert committed == [None, expected, expected]


def test_metrics_without_parts_are_written_as_before() -> None:
    text = METRICS.model_dump_json()
    assert "reward_parts" not in text
    assert StepMetrics.model_validate_json(text) == METRICS
