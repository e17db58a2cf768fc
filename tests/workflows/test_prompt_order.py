"""Which prompts a step takes: what it is told decides, and nothing that a lost process could forget."""

from marlaas.schemas.contract import BlobRef
from marlaas.schemas.dataset import DatasetPart, DatasetRef
from marlaas.schemas.events import Started, StepInput
from marlaas.schemas.job_spec import parse_job_spec
from marlaas.schemas.manifest import AdapterRevision
from marlaas.tests.noop_activities import FINGERPRINT, job
from marlaas.workflows.train_step import assignments, refills

BLOB = BlobRef(digest="0" * 64, size=1)
PARTS = (
    DatasetPart(name="sums", weight=3, first=0, count=6, held_out=0),
    DatasetPart(name="words", weight=1, first=6, count=2, held_out=0),
)


def step(number: int, parts: tuple[DatasetPart, ...] = ()) -> StepInput:
    sampling = {"groups_per_step": 2, "samples_per_group": 2, "slots": 16}
    revision = AdapterRevision(version=number, manifest="0" * 64, adapter=BLOB, optimizer=BLOB)
    return StepInput(
        spec=parse_job_spec(job("order", steps=100, seed=3, sampling=sampling)),
        started=Started(
            dataset=DatasetRef(blob=BLOB, train=8, held_out=0, parts=parts), fingerprint=FINGERPRINT
        ),
        step=number,
        lead=0,
        generating=revision,
        training=revision,
    )


def prompts(steps: range, parts: tuple[DatasetPart, ...] = ()) -> list[int]:
    return [one.prompt_index for number in steps for one in assignments(step(number, parts))]


def test_every_epoch_has_each_prompt_once_and_a_resumed_job_goes_on_in_it() -> None:
    """CASES 5 and 23: 8 rows, 2 a step; steps 2 and 3 alone are the rest of an epoch that 0 and 1 began."""
    epochs = [prompts(range(4 * epoch, 4 * epoch + 4)) for epoch in range(5)]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert prompts(range(2, 4)) == epochs[0][4:]


def test_so_it_is_in_each_environment_of_a_mixture() -> None:
    order = prompts(range(16), PARTS)
    sums, words = [one for one in order if one < 6], [one for one in order if one >= 6]
    assert all(sorted(sums[begin : begin + 6]) == list(range(6)) for begin in range(0, 24, 6))
    assert all(sorted(words[begin : begin + 2]) == [6, 7] for begin in range(0, 8, 2))
    extra = [one.prompt_index for number in range(16) for one in refills(step(number, PARTS), 2, 2)]
    assert [one < 6 for one in extra] == [one < 6 for one in order]
    assert extra != order
