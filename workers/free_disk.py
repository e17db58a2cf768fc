"""How much of its disk the embedded stack must find free."""

import shutil

from .settings import Settings

FREE_DISK_LIMIT = 2 * 2**30
"""Bytes that the stack itself wants free."""


def needed_disk(settings: Settings, limit: int = FREE_DISK_LIMIT) -> int:
    """Bytes that have to be free where the data folder is.

    Args:
        limit: of them, for the stack itself.
    """
    # SeaweedFS refuses writes when less than 1 % of the disk is free.
    kept = shutil.disk_usage(settings.data).total // 100 if "s3" in settings.embedded else 0
    return limit + kept
