"""What a model and a job's prompts must fit, before anything is sampled."""

from pathlib import Path

import pytest
from marlaas.engines import base_model
from marlaas.engines.base_model import UnusableModel
from marlaas.engines.chat import prompt_ids
from marlaas.engines.resident_models import UnusableDataset, check_context, check_prompts
from marlaas.schemas.dataset import Dataset, Message, Row
from marlaas.schemas.job_spec import SamplingSpec
from marlaas.tests.tiny_model import write_tiny_model


def sampling(prompt: int, completion: int) -> SamplingSpec:
    return SamplingSpec(
        groups_per_step=1, samples_per_group=2, max_prompt_tokens=prompt, max_tokens=completion
    )


def test_sequences_longer_than_the_model_takes_are_refused(tmp_path: Path) -> None:
    """CASES 86: not only the prompt has to fit."""
    write_tiny_model(tmp_path)
    base = base_model.load(tmp_path)
    check_context(base, sampling(500, 12))
    with pytest.raises(UnusableModel, match=r"max_tokens 13 make 513 tokens; the model takes at most 512"):
        check_context(base, sampling(500, 13))


def test_prompts_longer_than_the_limit_are_told_by_row(tmp_path: Path) -> None:
    """CASES 86: nothing is cut, and the job does not start."""
    write_tiny_model(tmp_path)
    base = base_model.load(tmp_path)

    def row(length: int, source: str, environment: str = "") -> Row:
        message = Message(role="user", content="x" * length)
        return Row(source=source, messages=(message,), fields={}, environment=environment)

    frame = len(prompt_ids(base.tokenizer, row(1, "").messages)) - 1
    fits, long = row(40, "line 1"), row(41, "line 2")
    check_prompts(base, Dataset(train=(fits,), held_out=()), frame + 40)
    with pytest.raises(
        UnusableDataset, match=f"1 prompts do not fit .* {frame + 40} .*: line 2: {frame + 41}"
    ):
        check_prompts(base, Dataset(train=(fits, long), held_out=()), frame + 40)
    many = Dataset(train=(long,) * 4, held_out=(fits, *[row(99, "line 3", "sums")] * 3))
    with pytest.raises(
        UnusableDataset, match=f"^7 prompts .*; sums: line 3: {frame + 99} tokens and 2 more$"
    ):
        check_prompts(base, many, frame + 40)


@pytest.mark.parametrize("keep", [0, 4, 100, 2000])
def test_a_cut_weights_file_is_no_model(tmp_path: Path, keep: int) -> None:
    write_tiny_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(UnusableModel, match=f"model folder {tmp_path}: "):
        base_model.load(tmp_path)
