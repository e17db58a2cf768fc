"""The means of a reward's parts, and messages from before there were any."""

import pytest
from marlaas.schemas.trajectory import MOST_PARTS, ScoredGroup, ScoredSample, part_means


def group(*parts: dict[str, float | None] | None, failed: bool = False) -> ScoredGroup:
    """A group whose samples have these parts; a sample with None has no reward."""
    samples = [
        ScoredSample(sample=index, stream_sequence=1, reward=None, failure="down")
        if one is None
        else ScoredSample(sample=index, stream_sequence=1, reward=1.0, parts=one)
        for index, one in enumerate(parts)
    ]
    status = "failed" if failed else "ok"
    return ScoredGroup(group="g", prompt_index=0, status=status, samples=tuple(samples))


def test_a_mean_is_of_the_samples_that_the_part_applies_to() -> None:
    groups = [
        group({"a": 1.0, "b": None}, {"a": 0.0, "b": 4.0}, None),
        group({"a": 0.5, "c": -1.0, "d": None}, {}),
        group({"a": 100.0}, None, failed=True),
    ]
    assert part_means(groups) == {"a": 0.5, "b": 4.0, "c": -1.0}
    assert part_means([group({}, {})]) == {}


def test_very_many_names_are_cut() -> None:
    names = [f"p{number:03}" for number in range(MOST_PARTS + 1)]
    groups = [group({name: 0.0}) for name in reversed(names)]
    assert list(part_means(groups)) == names[:MOST_PARTS]


@pytest.mark.parametrize("parts", [{}, {"a": None, "b": 0.5}])
def test_samples_without_parts_are_written_as_before(parts: dict[str, float | None]) -> None:
    sample = ScoredSample(sample=0, stream_sequence=1, reward=1.0, parts=parts)
    text = sample.model_dump_json()
    assert ScoredSample.model_validate_json(text) == sample
    assert ("parts" in text) == bool(parts)
    old = '{"sample":0,"stream_sequence":1,"reward":1.0,"failure":null}'
    assert ScoredSample.model_validate_json(old) == sample.model_copy(update={"parts": {}})
