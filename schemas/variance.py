"""When the rewards of a group teach nothing because they are equal."""

import numpy as np
import numpy.typing as npt

_FLOOR = 1e-6


def differ(values: npt.NDArray[np.float64]) -> bool:
    """Whether values differ by more than rounding: their standard deviation is above 1e-6 of the largest.

    Args:
        values: float64 [N]; the deviation has Bessel's correction, so fewer than two never differ.
    """
    return len(values) >= 2 and bool(values.std(ddof=1) > _FLOOR * np.abs(values).max())
