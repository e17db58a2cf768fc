"""Sampler and trainer on a GPU: against the CPU, against themselves, and how fast.

    python bench/gpu.py [--device cpu --groups 2 --samples 4 --tokens 16]

Uses a random model that it makes itself, so it needs nothing but the repository. Checks that losses and
gradients agree with the CPU's, that sampler and trainer give the same bytes twice, and prints tokens a
second. Ends with one RESULT line; exits with 1 when a check fails. Without a GPU it says so, and checks
nothing; `--device cpu` with small sizes tries the script itself.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from marlaas.engines.base_model import BaseModel, load
from marlaas.engines.sampler import FinishedSample, GroupRequest, Sampler
from marlaas.engines.trainer import ADAPTER_FILE, OPTIMIZER_FILE, Trainer
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.schemas.seeds import sample_seed
from marlaas.tests.tiny_model import write_tiny_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = 64
TOLERANCE = 2e-3


def write_model(folder: Path) -> Path:
    """A random Llama of SmolLM2-135M's shape, with the tiny model's tokenizer files."""
    write_tiny_model(folder)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def job(model: Path, groups: int, samples: int, tokens: int) -> JobSpec:
    return parse_job_spec(
        {
            "tenant": "bench",
            "job": "gpu",
            "model": str(model),
            "steps": 1,
            "environment": {"kind": "jsonl", "path": "none", "reward": "none:none"},
            "sampling": {
                "groups_per_step": groups,
                "samples_per_group": samples,
                "max_prompt_tokens": PROMPT,
                "max_tokens": tokens,
                "slots": 256,
            },
            "optimizer": {"micro_batch_tokens": 16384},
        }
    )


def prompts_of(groups: int) -> npt.NDArray[np.int64]:
    """Random token ids, [groups, PROMPT]."""
    return np.random.default_rng(0).integers(3, 49152, (groups, PROMPT))


def sample(base: BaseModel, spec: JobSpec, adapter: Path) -> tuple[list[FinishedSample], float]:
    """Every sample in order, and the tokens a second."""
    sampler = Sampler(base, slots=spec.sampling.slots, context=spec.sampling.context)
    weights = sampler.load_adapter("a" * 64, adapter, spec.lora)
    wanted = spec.sampling
    for number, prompt in enumerate(prompts_of(wanted.groups_per_step)):
        seeds = [sample_seed(0, str(number), index) for index in range(wanted.samples_per_group)]
        sampler.add(GroupRequest(str(number), prompt.tolist(), seeds, 1.0, wanted.max_tokens, weights))
    begun, done = time.perf_counter(), list[FinishedSample]()
    while not sampler.idle:
        done += sampler.step()
    seconds = time.perf_counter() - begun
    done.sort(key=lambda one: (int(one.request), one.sample))
    return done, sum(len(one.token_ids) for one in done) / seconds


def batch_of(samples: list[FinishedSample]) -> Batch:
    """The samples with random rewards."""
    prompts = prompts_of(1 + max(int(one.request) for one in samples))
    lengths = [PROMPT + len(one.token_ids) for one in samples]
    count = len(samples)
    return Batch(
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        token_ids=np.concatenate([[*prompts[int(one.request)], *one.token_ids] for one in samples]).astype(
            np.int32
        ),
        mask=np.concatenate([[0] * PROMPT + [1] * len(one.token_ids) for one in samples]).astype(np.uint8),
        logprobs=np.concatenate([[0.0] * PROMPT + one.logprobs for one in samples]).astype(np.float32),
        rewards=np.random.default_rng(1).random(count),
        valid=np.ones(count, np.uint8),
        truncated=np.zeros(count, np.uint8),
        group=np.array([int(one.request) for one in samples], np.int32),
        version=np.zeros(count, np.int32),
        stream_sequence=np.arange(1, count + 1, dtype=np.int64),
    )


def first(batch: Batch, count: int) -> Batch:
    """The first sequences: what a CPU can train in reasonable time."""
    end = int(batch.offsets[count])
    tokens = {name: getattr(batch, name)[:end] for name in ("token_ids", "mask", "logprobs")}
    rows = ("rewards", "valid", "truncated", "group", "version", "stream_sequence")
    return Batch(
        offsets=batch.offsets[: count + 1], **tokens, **{name: getattr(batch, name)[:count] for name in rows}
    )


def train(base: BaseModel, spec: JobSpec, batch: Batch, parent: Path, out: Path) -> tuple[float, Path, float]:
    """The loss, the folder that was written, and the trained tokens a second."""
    out.mkdir()
    metrics = Trainer(base).train(spec, batch, 0, parent / ADAPTER_FILE, parent / OPTIMIZER_FILE, out)
    return metrics.loss, out, len(batch.token_ids) / metrics.train_seconds


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / ADAPTER_FILE).read_bytes()).hexdigest()


def first_moments(folder: Path) -> torch.Tensor:
    """The clipped gradient of a first step, up to a factor: Adam's first moments in one vector."""
    state = load_file(folder / OPTIMIZER_FILE)
    return torch.cat(
        [state[name].flatten().double() for name in sorted(state) if name.startswith("exp_avg.")]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    for name, size in (("groups", 16), ("samples", 16), ("tokens", 256)):
        parser.add_argument(f"--{name}", type=int, default=size)
    arguments = parser.parse_args()
    device: str = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        print("RESULT gpu=none checked=nothing")  # noqa: T201
        return 0
    torch.use_deterministic_algorithms(True, warn_only=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = write_model(folder / "model")
        spec = job(model, arguments.groups, arguments.samples, arguments.tokens)
        gpu = load(model, device=device)
        (folder / "0").mkdir()
        Trainer(gpu).initialise(spec.lora, 0, folder / "0")
        samples, sampled = sample(load(model, device=device), spec, folder / "0" / ADAPTER_FILE)
        again, _ = sample(load(model, device=device), spec, folder / "0" / ADAPTER_FILE)
        batch = batch_of(samples)
        _, one, _ = train(load(model, device=device), spec, batch, folder / "0", folder / "1")
        _, two, trained = train(load(model, device=device), spec, batch, folder / "0", folder / "2")
        part = first(batch, arguments.samples)
        on_gpu, gpu_out, _ = train(load(model, device=device), spec, part, folder / "0", folder / "3")
        on_cpu, cpu_out, _ = train(load(model), spec, part, folder / "0", folder / "4")
        expected, found = first_moments(cpu_out), first_moments(gpu_out)
        gradient = float((expected - found).abs().max() / expected.abs().max())
        checks = {
            "sampler_repeats": samples == again,
            "trainer_repeats": digest(one) == digest(two),
            "loss_agrees": abs(on_gpu - on_cpu) < TOLERANCE,
            "gradient_agrees": gradient < TOLERANCE,
        }
    name = torch.cuda.get_device_name().replace(" ", "_") if device == "cuda" else "none"
    figures = f"sampled_tokens_s={sampled:.0f} trained_tokens_s={trained:.0f} gradient_gap={gradient:.1e}"
    verdicts = " ".join(f"{check}={passed}" for check, passed in checks.items())
    print(f"RESULT gpu={name} {verdicts} {figures}")  # noqa: T201
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
