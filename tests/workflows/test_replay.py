"""Recorded histories replay against today's workflows: running jobs survive a deployment."""

import json
from pathlib import Path

import pytest
from marlaas.workflows.plugin import WORKFLOWS, temporal_plugin
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

HISTORIES = sorted((Path(__file__).resolve().parents[1] / "data" / "histories").rglob("*.json"))


def _load(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem.replace("_", "/"), path.read_text())


def test_every_workflow_type_has_a_recorded_history() -> None:
    types = {
        json.loads(path.read_text())["events"][0]["workflowExecutionStartedEventAttributes"]["workflowType"][
            "name"
        ]
        for path in HISTORIES
    }
    assert types == {"TrainJob", "TrainStep", "Evaluate"}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_a_recorded_history_replays(path: Path) -> None:
    """CASES 110: With fresh workers and without their caches."""
    replayer = Replayer(workflows=list(WORKFLOWS), plugins=[temporal_plugin()])
    await replayer.replay_workflow(_load(path))


async def test_a_history_that_does_not_fit_is_noticed() -> None:
    path = next(path for path in HISTORIES if "step" in path.stem)
    content = json.loads(path.read_text())
    for event in content["events"]:
        scheduled = event.get("activityTaskScheduledEventAttributes")
        if scheduled and scheduled["activityType"]["name"] == "train":
            scheduled["activityType"]["name"] = "retrain"
    replayer = Replayer(workflows=list(WORKFLOWS), plugins=[temporal_plugin()])
    with pytest.raises(Exception, match="TMPRL1100"):
        await replayer.replay_workflow(WorkflowHistory.from_json("x", json.dumps(content)))
