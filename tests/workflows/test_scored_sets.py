import pytest
from marlaas.schemas.events import GroupAssignment, Span
from marlaas.workflows.scored_sets import MOST_ROLLOUTS, covered, parts


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(1, 2)], 1.0),
        ([(1, 2), (5, 7)], 3.0),
        ([(5, 7), (1, 6)], 6.0),
        ([(0, 10), (2, 3), (9, 12)], 12.0),
    ],
)
def test_time_is_counted_once_where_spans_overlap(spans: list[tuple[int, int]], seconds: float) -> None:
    assert covered([Span(began=float(a), ended=float(b)) for a, b in spans]) == seconds


@pytest.mark.parametrize(("groups", "samples"), [(1, 1), (4, 8), (512, 8), (4096, 1), (7, 100)])
def test_a_set_is_cut_into_few_parts_that_hold_every_group_once(groups: int, samples: int) -> None:
    assignments = [GroupAssignment(group=f"g{n}", prompt_index=n) for n in range(groups)]
    cut = parts(assignments, samples, slots=32)
    assert [one for part in cut for one in part] == assignments
    assert len(cut) <= MOST_ROLLOUTS
    if len(cut) < MOST_ROLLOUTS:
        assert all(len(part) * samples >= 32 for part in cut[:-1])
