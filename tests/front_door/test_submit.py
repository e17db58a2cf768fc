"""Submitting: what is refused before anything is created, and what is said when a name is taken."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from marlaas.client import Client
from marlaas.jobs.errors import InvalidJobName, JobExists, JobFailed, JobNotFound
from marlaas.schemas.job_spec import InvalidJobSpec, parse_job_spec
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import GatedActivities, StoringActivities, manifest_of, workers
from marlaas.tests.front_door.test_watch import stored_base
from temporalio.exceptions import ApplicationError

Spec = Callable[..., dict[str, Any]]


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


async def nothing_exists(client: Client, name: str) -> bool:
    try:
        await client.job(name).progress()
    except JobNotFound:
        return await client.connection.revisions.job(client.job(name).key) is None
    return False


async def test_a_bad_file_is_refused_with_exit_code_2(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    path = marlaas.folder / "job.json"
    path.write_text(json.dumps(spec(steps=0, stepz=1)))
    ended = await marlaas("submit", "job.json")
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.splitlines() == [
        "error: job.json: the job spec is not valid:",
        "  steps is 0: should be greater than or equal to 1",
        "  stepz is not a known field; did you mean steps?",
    ]
    assert await nothing_exists(client, f"{tenant}/sums")


async def test_a_key_given_twice_is_refused_with_its_line(marlaas: CommandLine) -> None:
    (marlaas.folder / "job.yaml").write_text("tenant: acme\nsteps: 3\nsteps: 4\n")
    ended = await marlaas("submit", "job.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: job.yaml: line 3, column 1: steps is given twice\n"


async def test_a_bad_spec_is_refused_by_the_sdk(client: Client, spec: Spec, tenant: str) -> None:
    with pytest.raises(InvalidJobSpec, match=r"sampling\.slots is 8: should be a multiple of 16"):
        await client.submit(spec(sampling={"groups_per_step": 4, "samples_per_group": 4, "slots": 8}))
    assert await nothing_exists(client, f"{tenant}/sums")


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"steps": 10**5000}, "not made of plain JSON values: Exceeds the limit"),
        ({"environment": nested(5000)}, "not made of plain JSON values: maximum recursion depth"),
        ({"steps": b"3"}, "not made of plain JSON values"),
    ],
)
def test_what_no_json_can_hold_is_refused(spec: Spec, changes: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InvalidJobSpec, match=fragment):
        parse_job_spec(spec(**changes))
    with pytest.raises(InvalidJobSpec, match="a mapping of fields, not"):
        parse_job_spec(next(iter(changes.values())) if "steps" in changes else [changes["environment"]])


async def test_a_second_submit_says_what_exists(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    (marlaas.folder / "job.json").write_text(json.dumps(spec()))
    first = await marlaas("submit", "job.json")
    assert (first.code, first.err) == (0, "")
    assert f"marlaas watch {tenant}/sums" in first.out
    second = await marlaas("submit", "job.json")
    assert second.code == 1
    assert second.err.startswith(f"error: job {tenant}/sums exists: running, no version committed yet")
    async with workers(client.connection.temporal, GatedActivities()):
        await client.job(f"{tenant}/sums").result()
    with pytest.raises(JobExists, match="exists: completed"):
        await client.submit(spec(steps=7))


@pytest.fixture
async def activities(client: Client, tenant: str) -> StoringActivities:
    """Activities that commit to the object store."""
    return StoringActivities(client.connection.revisions, await stored_base(client, tenant))


async def test_a_name_stays_taken_when_temporal_has_forgotten_the_job(
    client: Client, spec: Spec, activities: StoringActivities
) -> None:
    earlier = parse_job_spec(spec())
    await client.connection.revisions.commit(manifest_of(earlier, activities.base))
    with pytest.raises(JobExists, match="forgotten by Temporal, version 0 committed, with the same spec"):
        await client.submit(spec())
    with pytest.raises(JobExists, match="with another spec"):
        await client.submit(spec(steps=9))
    with pytest.raises(JobNotFound):
        await client.job(earlier.key).progress()


async def test_a_job_that_failed_before_its_first_version_leaves_its_name(
    client: Client, spec: Spec, activities: StoringActivities
) -> None:
    activities.dataset_failures = [ApplicationError("no task", type="InvalidEnvironment", non_retryable=True)]
    async with workers(client.connection.temporal, activities):
        job = await client.submit(spec())
        with pytest.raises(JobFailed, match="InvalidEnvironment: no task"):
            await job.result()
        assert (await job.progress()).version is None
        again = await client.submit(spec(steps=2))
        assert (await again.result()).revision.version == 2
        with pytest.raises(JobExists, match="exists: completed, version 2 committed, with the same spec"):
            await client.submit(spec(steps=2))


async def test_a_job_that_failed_later_keeps_its_name_and_shows_its_version(
    marlaas: CommandLine, client: Client, spec: Spec, activities: StoringActivities
) -> None:
    activities.fails_at = 2
    async with workers(client.connection.temporal, activities):
        job = await client.submit(spec())
        with pytest.raises(JobFailed):
            await job.result()
    assert (await job.progress()).version == 2
    (row,) = [line for line in (await marlaas("list")).out.splitlines() if line.startswith(str(job.key))]
    assert row.split()[1:3] == ["failed", "2/3"]
    with pytest.raises(JobExists, match="exists: failed, version 2 committed"):
        await client.submit(spec(steps=7))


@pytest.mark.parametrize("name", ["acme", "acme/Sums", "/sums", "acme/sums/step/00000001", "acme/ sums", ""])
async def test_a_wrong_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidJobName, match="write tenant/job"):
        client.job(name)


async def test_the_sdk_takes_a_file_and_gives_a_typed_result(
    marlaas: CommandLine, client: Client, spec: Spec
) -> None:
    path = marlaas.folder / "job.json"
    path.write_text(json.dumps(spec()))
    async with workers(client.connection.temporal, GatedActivities()):
        result = await (await client.submit(path)).result()
    assert (result.outcome, result.revision.version) == ("completed", 3)
