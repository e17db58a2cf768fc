"""Which slot each sequence takes."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st
from marlaas.engines.seating import arrange

KEYS = st.sampled_from("abcd")


@given(st.lists(st.none() | KEYS, max_size=20), st.lists(KEYS, max_size=8))
def test_everyone_sits_once_packed_and_beside_their_kind(
    seated: list[str | None], arriving: list[str]
) -> None:
    everyone = [*seated, *arriving]
    order = arrange(seated, arriving)
    assert sorted(order) == [who for who, key in enumerate(everyone) if key is not None]
    keys = [everyone[who] for who in order]
    assert len(list(groupby(keys))) == len(set(keys))


@given(st.lists(KEYS, max_size=20))
def test_nobody_moves_without_need(keys: list[str]) -> None:
    seated = sorted(keys)
    assert arrange(seated, []) == list(range(len(seated)))


def test_few_move_when_one_leaves() -> None:
    seated = [*"aaaabbbbcccc"]
    order = arrange([None, *seated[1:]], [])
    assert sum(who != slot for slot, who in enumerate(order)) == 3


def test_few_move_when_one_arrives() -> None:
    seated = [*"aaaabbbbcccc"]
    order = arrange(seated, ["a"])
    moved = [(slot, who) for slot, who in enumerate(order) if who != slot]
    assert moved == [(4, 12), (8, 4), (12, 8)]
