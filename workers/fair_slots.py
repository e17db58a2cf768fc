"""Bounds how many run at once, and lets those who wait take turns by tenant."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairSlots:
    """Slots that are given to the waiting tenants in turn, so that a long queue of one delays no other."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncGenerator[None]:
        """Holds one slot; waits for it in the tenant's queue."""
        if self._free:
            self._free -= 1
        else:
            await self._turn(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _turn(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()  # the slot was given in the moment of the cancellation
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
