"""Slots are shared out by the time that tenants used, on a clock of the test's."""

import asyncio
from dataclasses import dataclass, field

import pytest
from marlaas.workers.fair_slots import FairSlots


@dataclass
class Bench:
    """Slots, the clock that they see, and who holds one, in the order in which they were given."""

    slots: FairSlots
    now: float = 0.0
    holding: list[str] = field(default_factory=list[str])
    ends: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])

    async def ask(self, *names: str) -> None:
        """Each asks for a slot; the letters of a name are its tenant."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
            await turn()

    async def end(self, name: str, *, after: float) -> None:
        """Gives a slot back so many seconds later."""
        self.now += after
        self.ends[name].set()
        await turn()

    async def _hold(self, name: str) -> None:
        async with self.slots.take(name.rstrip("0123456789")):
            self.holding.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.holding.remove(name)


async def turn() -> None:
    """Lets every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def bench(monkeypatch: pytest.MonkeyPatch, count: int) -> Bench:
    made = Bench(FairSlots(count))
    monkeypatch.setattr("marlaas.workers.fair_slots.monotonic", lambda: made.now)
    return made


async def test_who_used_less_time_goes_first_however_many_turns_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = bench(monkeypatch, 1)
    await one.ask("slow1", "slow2", "slow3", *(f"quick{n}" for n in range(5)))
    await one.end("slow1", after=60)
    for number in range(5):
        assert one.holding == [f"quick{number}"]
        await one.end(f"quick{number}", after=1)
    assert one.holding == ["slow2"]
    await one.ask("quick9")
    await one.end("slow2", after=60)
    assert one.holding == ["quick9"]


async def test_time_in_slots_that_are_still_held_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench(monkeypatch, 3)
    await one.ask("slow1", "quick1")
    await one.end("quick1", after=5)
    await one.ask("slow2", "quick2", "slow3", "quick3")
    assert one.holding == ["slow1", "slow2", "quick2"]
    await one.end("slow2", after=1)
    assert one.holding == ["slow1", "quick2", "quick3"]


async def test_one_slot_is_kept_from_any_single_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench(monkeypatch, 3)
    await one.ask("a1", "a2", "a3", "b1", "b2")
    assert one.holding == ["a1", "a2", "b1"]
    await one.end("b1", after=1)
    assert one.holding == ["a1", "a2", "b2"]
    await one.end("b2", after=1)
    assert one.holding == ["a1", "a2"]
    await one.end("a1", after=1)
    assert one.holding == ["a2", "a3"]


async def test_idle_time_earns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both start level when one comes back, although it was away for 100 s that the other used."""
    one = bench(monkeypatch, 1)
    await one.ask("away1", "busy1", "busy2")
    await one.end("away1", after=1)
    one.now += 100
    await one.ask("away2", "away3")
    await one.end("busy1", after=2)
    assert one.holding == ["away2"]
    await one.end("away2", after=3)
    assert one.holding == ["busy2"]


async def test_a_newcomer_to_empty_slots_is_level_with_who_used_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = bench(monkeypatch, 1)
    await one.ask("old1")
    await one.end("old1", after=1000)
    await one.ask("new1", "new2", "old2")
    await one.end("new1", after=1)
    assert one.holding == ["old2"]


async def test_a_pause_sheds_no_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench(monkeypatch, 1)
    await one.ask("slow1", "quick1", "quick2", "quick3")
    await one.end("slow1", after=60)
    await one.ask("slow2")
    for number in (1, 2, 3):
        assert one.holding == [f"quick{number}"]
        await one.end(f"quick{number}", after=1)
    assert one.holding == ["slow2"]


async def test_cancelled_takers_lose_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits, one that holds, and one that is given its slot in the moment of its cancellation."""
    one = bench(monkeypatch, 1)
    await one.ask("a1", "b1", "c1", "d1")
    one.tasks["a1"].cancel()  # and gives its slot back while b1 still seems to wait
    one.tasks["b1"].cancel()
    await asyncio.sleep(0)  # c1 has been given the slot, and does not know yet
    one.tasks["c1"].cancel()
    await turn()
    ended = await asyncio.gather(*(one.tasks[name] for name in ("a1", "b1", "c1")), return_exceptions=True)
    assert [type(outcome) for outcome in ended] == [asyncio.CancelledError] * 3
    assert one.holding == ["d1"]
    await one.end("d1", after=1)
    await one.ask("a2")
    assert one.holding == ["a2"]
