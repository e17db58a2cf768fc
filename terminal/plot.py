"""Rewards by step, drawn with characters."""

from collections.abc import Sequence

import plotille  # pyright: ignore[reportMissingTypeStubs]

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None]) -> str:
    """One character for each value, from the lowest to the highest; a space where there is none."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if value is None else _BLOCKS[round((value - low) * scale)] for value in values)


def reward_plot(rewards: dict[int, float], width: int = 60, height: int = 10) -> str:
    """Mean reward by step, as lines of text.

    Args:
        rewards: at least one, by step.
    """
    figure = plotille.Figure()
    figure.width, figure.height, figure.with_colors = width, height, False
    figure.set_x_limits(min(rewards), max(max(rewards), min(rewards) + 1))
    low, high = min(0.0, *rewards.values()), max(1.0, *rewards.values())
    figure.set_y_limits(low, high)
    figure.x_label, figure.y_label = "step", "mean reward"
    decimals = 0 if max(rewards) - min(rewards) >= 6 else 1
    figure.x_ticks_fkt = lambda value, _: f"{value:.{decimals}f}"
    figure.y_ticks_fkt = lambda value, _: f"{value:.2f}"
    figure.plot(list(rewards), list(rewards.values()))
    return figure.show()
