"""Bounds how many run at once, and shares that out among tenants by the time that each has used."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic


@dataclass(eq=False)
class _Account:
    """A tenant's seconds in slots that it gave back, when it took those that it holds, and who waits."""

    used: float = 0.0
    held: list[float] = field(default_factory=list[float])
    waiting: deque[asyncio.Future[float]] = field(default_factory=deque[asyncio.Future[float]])

    @property
    def active(self) -> bool:
        return bool(self.held or self.waiting)

    def seconds(self, now: float) -> float:
        """Used until now, in all slots together."""
        return self.used + sum(now - began for began in self.held)


class FairSlots:
    """Slots that go to the waiting tenant that has used the least time, in its order of asking.

    So a tenant that holds its slots for long, or has a long queue, waits behind one that needs little.
    Time in which a tenant asks for nothing earns it nothing: it starts again no lower than the least of
    those that were active. Of two slots or more, one is kept from any single tenant.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._most = max(1, count - 1)
        self._accounts: dict[str, _Account] = {}
        self._least = 0.0

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncGenerator[None]:
        """Holds one slot; waits for it in the tenant's queue."""
        self._advance(monotonic())
        account = self._accounts.setdefault(tenant, _Account())
        if not account.active:
            account.used = max(account.used, self._least)
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        account.waiting.append(turn)
        self._give(monotonic())
        try:
            await turn
            yield
        finally:
            self._leave(account, turn)

    def _leave(self, account: _Account, turn: asyncio.Future[float]) -> None:
        now = monotonic()
        self._advance(now)
        if not turn.cancelled():  # held, if only since the moment of a cancellation
            account.held.remove(turn.result())
            account.used += now - turn.result()
            self._free += 1
        elif turn in account.waiting:
            account.waiting.remove(turn)
        self._give(now)
        self._accounts = {
            name: one for name, one in self._accounts.items() if one.active or one.used > self._least
        }

    def _advance(self, now: float) -> None:
        """Raises the level at which tenants start to the least that an active one has used."""
        active = [one.seconds(now) for one in self._accounts.values() if one.active]
        self._least = max(self._least, min(active, default=self._least))

    def _give(self, now: float) -> None:
        """Gives free slots to those who may have one."""
        while self._free:
            ready = [one for one in self._accounts.values() if one.waiting and len(one.held) < self._most]
            if not ready:
                return
            account = min(ready, key=lambda one: one.seconds(now))
            turn = account.waiting.popleft()
            if not turn.done():  # else it is cancelled, and about to leave
                account.held.append(now)
                turn.set_result(now)
                self._free -= 1
