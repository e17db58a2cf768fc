"""The process that holds the trainer: one request after the other."""

import os
from pathlib import Path
from typing import Any

from ..engines.base_model import BaseModel
from ..engines.resident_models import ResidentModel, check_context, check_prompts
from ..engines.starting_adapter import starting_adapter
from ..engines.trainer import Trainer
from ..schemas.batch import Batch
from ..schemas.dataset import Dataset
from ..schemas.engine_calls import InitialiseCall, Initialised, TrainCall, Trained
from .child_runtime import Channel, serve


class TrainerChild:
    """Answers `initialise` and `train`; their payloads are the contracts of the same names."""

    def __init__(self, model: ResidentModel) -> None:
        self._model = model
        self._base: BaseModel | None = None
        self._trainer: Trainer | None = None

    def initialise(self, payload: Any) -> Any:
        """Writes version 0 of a job whose prompts all fit."""
        call = InitialiseCall.model_validate(payload, strict=False)
        spec = call.spec
        base = self._model.get(spec.model, spec.precision, None)
        check_context(base, spec.sampling)
        dataset = Dataset.model_validate_json(Path(call.dataset_path).read_bytes())
        check_prompts(base, dataset, spec.sampling.max_prompt_tokens)
        start = starting_adapter(call, base)
        self._trainer_on(base).initialise(spec.lora, spec.seed, Path(call.out), start)
        return Initialised(fingerprint=base.fingerprint).model_dump(mode="json")

    def train(self, payload: Any) -> Any:
        """Writes the next version."""
        call = TrainCall.model_validate(payload, strict=False)
        base = self._model.get(call.spec.model, call.spec.precision, call.fingerprint)
        metrics = self._trainer_on(base).train(
            call.spec,
            Batch.from_bytes(Path(call.batch_path).read_bytes()),
            call.version,
            Path(call.adapter_path),
            Path(call.optimizer_path),
            Path(call.out),
            Path(call.start_adapter_path) if call.start_adapter_path is not None else None,
        )
        return Trained(fingerprint=base.fingerprint, metrics=metrics).model_dump(mode="json")

    def _trainer_on(self, base: BaseModel) -> Trainer:
        if self._trainer is None or self._base is not base:
            self._base, self._trainer = base, Trainer(base)
        return self._trainer


def main(channel: Channel) -> None:
    """Serves until the parent closes the channel."""
    child = TrainerChild(ResidentModel.from_environment(os.environ))
    serve(channel, {"initialise": child.initialise, "train": child.train})
