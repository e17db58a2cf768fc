"""What a job's exported adapter does in plain transformers and PEFT, against what the job reported.

    python bench/export.py tenant/job [--data FOLDER]

Starts the servers of a data folder (by default `.marlaas`, where `make demo` left its job), exports the
newest version, loads it with PEFT, and decodes every held-out prompt greedily with `generate`. Ends with
one RESULT line; exits with 1 unless at least 98 % of the prompts give the same tokens and at most two
prompts more or fewer are right.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from marlaas.client import connect
from marlaas.engines.base_model import resolve
from marlaas.environments.datasets import build_dataset
from marlaas.environments.scoring import load_scorer
from marlaas.schemas.dataset import Row
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.manifest import EvaluationDocument
from marlaas.workers.settings import Settings
from marlaas.workers.supervisor import Supervisor
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[1]


async def fetch(name: str, data: Path, out: Path) -> tuple[JobSpec, EvaluationDocument]:
    """Exports the newest version to `out`; returns the spec and that version's evaluation."""
    async with Supervisor(Settings(data=data)).running() as addresses, await connect(addresses) as client:
        job = client.job(name)
        exported = await job.export(out)
        document = await client.connection.revisions.job(job.key)
        evaluation = await job.evaluation(exported.version)
    if document is None or evaluation is None:
        raise SystemExit(f"job {name} has no evaluation of version {exported.version}")
    return document.spec, evaluation


def greedy(model: Any, tokenizer: Any, row: Row, most: int) -> list[int]:
    """Token ids of a prompt's greedy completion by plain `generate`, the stop token included."""
    messages = [message.model_dump() for message in row.messages]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=most, do_sample=False)
    return ids[0, prompt["input_ids"].shape[1] :].tolist()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--data", type=Path, default=ROOT / ".marlaas")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "adapter"
        spec, reported = asyncio.run(fetch(arguments.job, arguments.data.absolute(), out))
        base = resolve(spec.model, arguments.data.absolute() / "models")
        tokenizer = AutoTokenizer.from_pretrained(base)
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        model = PeftModel.from_pretrained(cast(Any, plain), str(out)).eval()
        rows = build_dataset(spec).held_out
        completions = [greedy(model, tokenizer, row, spec.sampling.max_tokens) for row in rows]
    scorers = {name: load_scorer(environment) for name, environment in spec.environments.items()}
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in completions]
    right = sum(scorers[row.environment](row, text).value >= 1 for row, text in zip(rows, texts, strict=True))
    same = sum(
        list(expected) == found
        for expected, found in zip(reported.greedy_completions, completions, strict=True)
    )
    reported_right = round(reported.greedy_accuracy * len(rows))
    figures = f"same_tokens={same} right={right} reported_right={reported_right}"
    print(f"RESULT prompts={len(rows)} {figures} bound=0.98")  # noqa: T201
    return 0 if same >= 0.98 * len(rows) and abs(right - reported_right) <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
