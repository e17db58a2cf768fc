"""Which shapes give the same bits on this processor, found by trying.

A matrix product may run another kernel, with another order of additions, when the number of its rows
changes. A decoder that always runs its largest shape is safe from that, and slow when few sequences are
in flight. A smaller shape may stand in for it only if what it computes is the same to the bit.
"""

from collections.abc import Callable, Sequence

import torch


def ladder(step: int, top: int) -> list[int]:
    """`step` times 1, 2, 3, 4, 6, 8, 12, 16, … as far as below `top`, then `top`."""
    factors = sorted({2**power for power in range(32)} | {3 * 2**power for power in range(32)})
    return [*(step * factor for factor in factors if step * factor < top), top]


def smallest(sizes: Sequence[int], needed: int) -> int:
    """The first of ascending sizes that is large enough."""
    return next(size for size in sizes if size >= needed)


def noise(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Normal numbers, always the same, in the dtype and on the device of a tensor."""
    numbers = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0))
    return numbers.to(like.device, like.dtype)


def equal_parts(add: Callable[[torch.Tensor, int, int], None], start: torch.Tensor) -> bool:
    """Whether a sum over rows comes out the same in two parts, wherever it is cut.

    Args:
        add: adds to rows first … last - 1 of a tensor like `start`.
        start: [rows, width].
    """
    rows = len(start)
    whole = start.clone()
    add(whole, 0, rows)
    for cut in {*range(1, min(rows, 64)), *ladder(16, rows)} - {rows}:
        parts = start.clone()
        add(parts, 0, cut)
        add(parts, cut, rows)
        if not torch.equal(parts, whole):
            return False
    return True
