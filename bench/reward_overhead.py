"""What a score costs in the pool beyond the reward itself: run with `python -m bench.reward_overhead`."""

import asyncio
import time

from marlaas.environments.scoring import load_scorer
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import JsonlEnvironment
from marlaas.schemas.job_spec import RewardLimits
from marlaas.schemas.names import JobKey
from marlaas.workers.reward_pool import RewardPool

_ENVIRONMENT = JsonlEnvironment(kind="jsonl", path="unused", reward="bench.reward_overhead:exact")
_ROW = Row(
    source="line 1",
    messages=(Message(role="user", content="What is 17 + 25? Answer with the number only."),),
    fields={"answer": "42"},
)
_COMPLETION = "17 + 25 = 42, so the answer is 42."
_CALLS = 2000


def exact(completion: str, *, messages: list[dict[str, str]], answer: str) -> float:
    """A trivial reward."""
    return float(completion.rstrip(".").endswith(answer))


async def _seconds_in_pool(at_once: int) -> float:
    """Seconds per score with so many processes and calls at once."""
    job = JobKey(tenant="bench", job="overhead")
    # One more, which a tenant that is alone is denied.
    pool = RewardPool(at_once + 1, processes=at_once + 1)

    async def score(calls: int) -> None:
        for _ in range(calls):
            await pool.score(job, _ENVIRONMENT, RewardLimits(), _ROW, _COMPLETION, code=None)

    await asyncio.gather(*(score(10) for _ in range(at_once)))  # starts the processes
    began = time.perf_counter()
    await asyncio.gather(*(score(_CALLS // at_once) for _ in range(at_once)))
    elapsed = time.perf_counter() - began
    await pool.close()
    return elapsed / _CALLS


def _seconds_in_process() -> float:
    scorer = load_scorer(_ENVIRONMENT)
    began = time.perf_counter()
    for _ in range(_CALLS):
        scorer(_ROW, _COMPLETION)
    return (time.perf_counter() - began) / _CALLS


def main() -> None:
    inside = _seconds_in_process()
    alone, together = (asyncio.run(_seconds_in_pool(at_once)) for at_once in (1, 2))
    print(  # noqa: T201
        f"RESULT reward_overhead_us={(alone - inside) * 1e6:.0f} in_process_us={inside * 1e6:.1f} "
        f"two_at_once_us={together * 1e6:.0f}"
    )


if __name__ == "__main__":
    main()
