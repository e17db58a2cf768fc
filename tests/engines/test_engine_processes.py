"""Sampler and trainer in their processes, as a worker calls them."""

from pathlib import Path

from marlaas.engines.base_model import BaseModel
from marlaas.schemas.dataset import Dataset, Message, Row
from marlaas.schemas.engine_calls import (
    ADAPTER_FILE,
    InitialiseCall,
    PromptGroup,
    SampleCall,
    SampledGroup,
    SampleSeed,
)
from marlaas.schemas.job_spec import JobSpec
from marlaas.tests.engines.trainer_bench import digest
from marlaas.tests.engines.training_batches import make_spec
from marlaas.workers.engine_processes import SamplerProcess, TrainerProcess, engine_environment

MESSAGES = (Message(role="user", content="Say something."),)


def spec_on(model: Path, **sampling: object) -> JobSpec:
    return make_spec(
        model=str(model),
        precision="bfloat16",
        sampling={
            "groups_per_step": 1,
            "samples_per_group": 2,
            "max_prompt_tokens": 64,
            "max_tokens": 60,
            **sampling,
        },
    )


async def test_precision_and_stop_strings_reach_the_engines(tiny: BaseModel, tmp_path: Path) -> None:
    environment = engine_environment(1, tmp_path, "cpu")
    dataset = Dataset(train=(Row(source="1", messages=MESSAGES, fields={}),), held_out=())
    (tmp_path / "dataset").write_text(dataset.model_dump_json())
    trainer, sampler = TrainerProcess(environment), SamplerProcess(environment)
    free, spec = spec_on(tiny.folder), spec_on(tiny.folder, stop=["e", "a", "\n"])
    try:
        call = InitialiseCall(spec=spec, dataset_path=str(tmp_path / "dataset"), out=str(tmp_path))
        fingerprint = (await trainer.initialise(call)).fingerprint
        assert fingerprint.dtype == "bfloat16"

        async def sampled(spec: JobSpec) -> SampledGroup:
            call = SampleCall(
                spec=spec,
                adapter=digest(tmp_path / ADAPTER_FILE),
                adapter_path=str(tmp_path / ADAPTER_FILE),
                temperature=1.0,
                groups=(PromptGroup(group="g", messages=MESSAGES, samples=SEEDS),),
                fingerprint=fingerprint,
            )
            (group,) = [group async for group in sampler.sample(call)]
            return group

        whole, cut = (await sampled(free)).completions, (await sampled(spec)).completions
    finally:
        await trainer.close()
        await sampler.close()
    for before, after in zip(whole, cut, strict=True):
        assert after.token_ids == before.token_ids[: len(after.token_ids)]
        assert after.text == before.text[: len(after.text)]
        assert not set(after.text) & set("ea\n")
    assert any(len(after.text) < len(before.text) for before, after in zip(whole, cut, strict=True))


SEEDS = tuple(SampleSeed(sample=number, seed=number) for number in range(16))
