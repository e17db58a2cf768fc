"""The newest steps' mean rewards, read from the manifests as they are committed."""

import asyncio

from ..schemas.names import JobKey
from ..storage.revisions import Revisions

_KEPT = 60


class RecentRewards:
    """Mean reward of each of the newest steps; a manifest never changes, so each is read once."""

    def __init__(self, revisions: Revisions, key: JobKey) -> None:
        self._revisions = revisions
        self._key = key
        self._known: dict[int, float | None] = {}

    async def up_to(self, version: int | None) -> tuple[float | None, ...]:
        """The rewards of the steps that led to the newest versions up to this one, oldest first.

        Raises:
            StoreUnavailable, StoreRefused, UnreadableDocument: from the store.
        """
        newest = version or 0
        wanted = range(max(1, newest - _KEPT + 1), newest + 1)
        missing = [one for one in wanted if one not in self._known]
        manifests = await asyncio.gather(*(self._revisions.manifest(self._key, one) for one in missing))
        for one, manifest in zip(missing, manifests, strict=True):
            if manifest is not None:
                self._known[one] = manifest.metrics.reward_mean if manifest.metrics else None
        self._known = {one: reward for one, reward in self._known.items() if one in wanted}
        return tuple(self._known[one] for one in sorted(self._known))
