"""What a model and a job's prompts must fit, before anything is sampled."""

from pathlib import Path

import pytest
from marlaas.engines import base_model
from marlaas.engines.base_model import UnusableModel
from marlaas.engines.resident_models import check_context
from marlaas.schemas.job_spec import SamplingSpec
from marlaas.tests.tiny_model import write_tiny_model


def sampling(prompt: int, completion: int) -> SamplingSpec:
    return SamplingSpec(
        groups_per_step=1, samples_per_group=2, max_prompt_tokens=prompt, max_tokens=completion
    )


def test_sequences_longer_than_the_model_takes_are_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    base = base_model.load(tmp_path)
    check_context(base, sampling(500, 12))
    with pytest.raises(UnusableModel, match=r"max_tokens 13 make 513 tokens; the model takes at most 512"):
        check_context(base, sampling(500, 13))


@pytest.mark.parametrize("keep", [0, 4, 100, 2000])
def test_a_cut_weights_file_is_no_model(tmp_path: Path, keep: int) -> None:
    write_tiny_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(UnusableModel, match=f"model folder {tmp_path}: "):
        base_model.load(tmp_path)
