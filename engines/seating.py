"""Which slot each sequence of a batch takes."""

from collections.abc import Hashable, Sequence


def arrange(seated: Sequence[Hashable | None], arriving: Sequence[Hashable]) -> list[int]:
    """Packs sequences into the first slots so that equal keys are neighbours, moving few of them.

    Args:
        seated: the key of the sequence in every slot; None where it has left.
        arriving: keys of the sequences that have no slot yet.

    Returns:
        For every new slot, who takes it: the old slot, or `len(seated)` + the index of the arrival.
    """
    members: dict[Hashable, list[int]] = {}
    for who, key in enumerate([*seated, *arriving]):
        if key is not None:
            members.setdefault(key, []).append(who)
    order: list[int] = []
    for group in members.values():
        slots = range(len(order), len(order) + len(group))
        staying = {who for who in group if who in slots}
        movers = iter([who for who in group if who not in staying])
        order += [slot if slot in staying else next(movers) for slot in slots]
    return order
