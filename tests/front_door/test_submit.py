"""Submitting: what is refused before anything is created, and what is said when a name is taken."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from marlaas.client import Client
from marlaas.jobs.errors import InvalidJobName, JobExists, JobNotFound
from marlaas.schemas.job_spec import InvalidJobSpec, parse_job_spec
from marlaas.schemas.manifest import JobDocument
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import GatedActivities, workers

Spec = Callable[..., dict[str, Any]]


async def nothing_exists(client: Client, name: str) -> bool:
    try:
        await client.job(name).progress()
    except JobNotFound:
        return await client.revisions.job(client.job(name).key) is None
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
    async with workers(client.temporal, GatedActivities()):
        await client.job(f"{tenant}/sums").result()
    with pytest.raises(JobExists, match="exists: completed"):
        await client.submit(spec(steps=7))


async def test_a_name_stays_taken_when_temporal_has_forgotten_the_job(client: Client, spec: Spec) -> None:
    earlier = parse_job_spec(spec())
    await client.revisions.claim(
        JobDocument(spec=earlier, spec_digest=earlier.digest, first_run_id="of long ago")
    )
    with pytest.raises(
        JobExists, match="forgotten by Temporal, no version committed yet, with the same spec"
    ):
        await client.submit(spec())
    with pytest.raises(JobExists, match="with another spec"):
        await client.submit(spec(steps=9))
    with pytest.raises(JobNotFound):
        await client.job(earlier.key).progress()


@pytest.mark.parametrize("name", ["acme", "acme/Sums", "/sums", "acme/sums/step/00000001", "acme/ sums", ""])
async def test_a_wrong_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidJobName, match="write tenant/job"):
        client.job(name)


async def test_the_sdk_takes_a_file_and_gives_a_typed_result(
    marlaas: CommandLine, client: Client, spec: Spec
) -> None:
    path = marlaas.folder / "job.json"
    path.write_text(json.dumps(spec()))
    async with workers(client.temporal, GatedActivities()):
        result = await (await client.submit(path)).result()
    assert (result.outcome, result.revision.version) == ("completed", 3)
