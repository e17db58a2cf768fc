"""A job of several environments through the real stack, and again after its workers were killed."""

# pyarrow is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .cluster import Cluster, Workers, finished
from .conftest import Jobs


def mixture(folder: Path) -> dict[str, Any]:
    table: Any = pa.table({"prompt": [f"Write {n}." for n in range(9)], "id": list(range(9))})
    pq.write_table(table, folder / "rows.parquet")
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"Say {n}."}) for n in range(12)))

    def rows(kind: str, reward: str) -> dict[str, str]:
        return {"kind": kind, "path": str(folder / f"rows.{kind}"), "reward": f"rewards:{reward}"}

    say = {"name": "say", "weight": 3, "environment": rows("jsonl", "lower_case")}
    return {
        "kind": "mixture",
        "of": [say, {"name": "write", "environment": rows("parquet", "upper_case")}],
    }


async def test_a_killed_mixture_has_the_bytes_of_a_calm_one(
    cluster: Cluster, workers: Workers, model: Path, rows: Path, tmp_path: Path
) -> None:
    content = {"environment": mixture(tmp_path), "steps": 4, "evaluation": {"prompts": 4, "samples": 2}}
    spec = Jobs(cluster, model, rows).spec
    calm = await cluster.client.submit({**spec(0), **content})
    await finished(calm)
    killed = await cluster.client.submit({**spec(0), **content})
    while not (await killed.progress()).version:
        await asyncio.sleep(0.05)
    for role in ("cpu", "gpu"):
        workers.ensure(role).kill()
        workers.ensure(role)
    await finished(killed)
    digests = await cluster.digests(calm.key)
    assert digests == await cluster.digests(killed.key)
    assert len(set(digests)) == 5
    for job in (calm, killed):
        for version in (0, 4):
            document = await job.evaluation(version)
            assert document is not None
            assert document.failed_samples == 0
            found = document.by_environment
            assert {name: one.prompts for name, one in found.items()} == {"say": 3, "write": 1}
