"""What Temporal knows of a workflow beside its history: pending work, failing tasks, who polls."""

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError

from ..schemas.contract import Contract
from .failure_cause import root_cause
from .snapshot import PendingActivity

Answer = TypeVar("Answer", bound=Contract)

_ANSWER_TIME = timedelta(seconds=5)
_POLL_TIME = timedelta(seconds=90)
"""A worker asks again after at most 70 s, and the server remembers pollers for minutes after their death."""
_RECENT_EVENTS = 20


async def ask(handle: WorkflowHandle[Any, Any], query: str, answer: type[Answer]) -> Answer | None:
    """The answer to a query; None when the workflow gives none: it is stuck, gone, or has no worker."""
    try:
        return await handle.query(query, result_type=answer, rpc_timeout=_ANSWER_TIME)
    except (RPCError, WorkflowQueryFailedError):
        return None


async def stuck_reason(client: Client, description: WorkflowExecutionDescription) -> str | None:
    """Why the workflow's task fails again and again; None when it does not."""
    raw = description.raw_description
    attempt = raw.pending_workflow_task.attempt if raw.HasField("pending_workflow_task") else 0
    if attempt <= 1:
        return None
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=raw.workflow_execution_info.execution,
        maximum_page_size=_RECENT_EVENTS,
    )
    recent = (await client.workflow_service.get_workflow_execution_history_reverse(request)).history.events
    failures = [failure for event in recent if (failure := await _task_failure(client, event))]
    why = failures[0] if failures else "its workflow task is not done"
    return f"{why} (attempt {attempt} of the workflow task)"


async def _task_failure(client: Client, event: HistoryEvent) -> str | None:
    if event.HasField("workflow_task_failed_event_attributes"):
        failure = event.workflow_task_failed_event_attributes.failure
        return root_cause(await client.data_converter.decode_failure(failure))
    if event.HasField("workflow_task_timed_out_event_attributes"):
        return "its worker did not answer in time: it was lost, or something blocks it"
    return None


async def is_polled(client: Client, queue: str, kind: TaskQueueType.ValueType) -> bool:
    """Whether a worker asked for tasks of a queue lately."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    response = await client.workflow_service.describe_task_queue(request)
    oldest = datetime.now(UTC) - _POLL_TIME
    return any(_time(poller.last_access_time) > oldest for poller in response.pollers)


async def pending_activities(
    client: Client, description: WorkflowExecutionDescription
) -> list[PendingActivity]:
    """The activities that a workflow waits for."""
    infos = description.raw_description.pending_activities
    return [await _pending(client, description.id, info) for info in infos]


async def _pending(client: Client, workflow: str, info: PendingActivityInfo) -> PendingActivity:
    groups, tokens = await _heartbeat(client, info.heartbeat_details)
    running = info.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    elapsed = (_time(info.last_heartbeat_time) - _time(info.last_started_time)).total_seconds()
    return PendingActivity(
        workflow=workflow,
        name=info.activity_type.name,
        queue=info.activity_options.task_queue.name,
        running=running,
        attempt=info.attempt,
        failure=await _last_failure(client, info),
        groups_done=groups,
        tokens=tokens,
        tokens_per_second=tokens / elapsed if running and tokens and elapsed > 0 else None,
    )


async def _heartbeat(client: Client, details: Payloads) -> tuple[int | None, int | None]:
    """Groups and tokens, as rollouts and rewards report them."""
    values = [one for one in await client.data_converter.decode(details.payloads) if isinstance(one, int)]
    groups, tokens, *_ = *values, None, None
    return groups, tokens


async def _last_failure(client: Client, info: PendingActivityInfo) -> str | None:
    failure = info.last_failure
    handed_back = failure.application_failure_info.type == "WorkerShutdown"
    if not info.HasField("last_failure") or handed_back:
        return None
    return root_cause(await client.data_converter.decode_failure(failure))


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
