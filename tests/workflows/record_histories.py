"""Records the histories that `test_replay.py` replays.

    python tests/workflows/record_histories.py NAME

Run it when a workflow changes on purpose, with a new NAME: the histories of before stay, since jobs that
began with the old code must go on with the new.
"""

import asyncio
import sys
from pathlib import Path

from marlaas.tests.noop_activities import NoopActivities, job, noop_workers, start
from marlaas.tests.workflows.conftest import temporal_server

FOLDER = Path(__file__).resolve().parents[1] / "data" / "histories"


async def main(name: str) -> None:
    folder = FOLDER / name
    folder.mkdir(parents=True)
    async with temporal_server() as client, noop_workers(client, NoopActivities()):
        for staleness in (0, 2):
            spec = job(f"k{staleness}", max_staleness=staleness, evaluation={"prompts": 2, "every": 3})
            handle = await start(client, spec, f"acme/k{staleness}")
            await handle.signal("pause")
            await handle.signal("resume")
            await handle.result()
            async for execution in client.list_workflows(f"WorkflowId STARTS_WITH 'acme/k{staleness}'"):
                history = await client.get_workflow_handle(execution.id).fetch_history()
                (folder / f"{execution.id.replace('/', '_')}.json").write_text(history.to_json())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
