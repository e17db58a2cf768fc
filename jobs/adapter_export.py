"""A committed adapter as a folder that PEFT loads."""

import asyncio
import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..schemas.contract import Digest, Document
from ..schemas.job_spec import JobSpec
from ..schemas.manifest import AdapterRevision, Manifest
from ..schemas.names import JobKey
from ..storage.object_store import ObjectStore
from .errors import ExportRefused

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PROVENANCE = "marlaas.json"


class ExportedAdapter(Document):
    """`marlaas.json` in an exported folder: where the adapter comes from.

    Attributes:
        base: sha256 over the base model's configuration, tokenizer and weights.
    """

    job: JobKey
    version: int
    manifest: Digest
    adapter: Digest
    spec_digest: Digest
    model: str
    base: Digest


async def export_adapter(
    store: ObjectStore, spec: JobSpec, revision: AdapterRevision, manifest: Manifest, out: Path
) -> ExportedAdapter:
    """Writes `adapter_model.safetensors`, `adapter_config.json` and `marlaas.json` to `out`.

    The folder appears whole or not at all. A folder that holds just this export already is left as
    it is. A killed process may leave a folder `.<name>.<random>` beside it.

    Raises:
        ExportRefused: when `out` is a file, or a folder with other content.
        MissingBlob, CorruptBlob: when the store no longer has the adapter as it was.
    """
    exported = ExportedAdapter(
        job=manifest.key,
        version=revision.version,
        manifest=revision.manifest,
        adapter=revision.adapter.digest,
        spec_digest=manifest.spec_digest,
        model=spec.model,
        base=manifest.fingerprint.base,
    )
    documents = {
        _CONFIG: json.dumps(_peft_config(spec), indent=2) + "\n",
        _PROVENANCE: exported.model_dump_json(indent=2) + "\n",
    }
    folder = _Folder(out, documents, revision.adapter.digest)
    if await asyncio.to_thread(folder.is_complete):
        return exported
    scratch = await asyncio.to_thread(folder.begin)
    try:
        await store.download_blob(manifest.key.bucket, revision.adapter, scratch / _WEIGHTS)
        await asyncio.to_thread(folder.finish, scratch)
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
    return exported


@dataclass(frozen=True)
class _Folder:
    """Where an export goes.

    Attributes:
        documents: the text of each file but the weights.
        weights: digest of the weights.
    """

    out: Path
    documents: Mapping[str, str]
    weights: Digest

    def is_complete(self) -> bool:
        """Whether it holds exactly the files of this export."""
        if not self.out.is_dir() or {path.name for path in self.out.iterdir()} != {_WEIGHTS, *self.documents}:
            return False
        if any((self.out / name).read_text() != text for name, text in self.documents.items()):
            return False
        with (self.out / _WEIGHTS).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.weights

    def begin(self) -> Path:
        """A new folder beside it, with everything but the weights."""
        self._require_free()
        out = self.out.absolute()
        scratch = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
        scratch.mkdir(parents=True)
        for name, text in self.documents.items():
            (scratch / name).write_text(text)
        return scratch

    def finish(self, scratch: Path) -> None:
        """Moves the new folder to its place, unless another export of the same was faster."""
        try:
            # Replaces an empty folder, and no other.
            scratch.rename(self.out)
        except OSError:
            if not self.is_complete():
                self._require_free()
                raise

    def _require_free(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise ExportRefused(f"{self.out} is a file; name a folder")
        if self.out.exists() and any(self.out.iterdir()):
            raise ExportRefused(f"{self.out} is not empty and does not hold this export; name another folder")


def _peft_config(spec: JobSpec) -> dict[str, object]:
    """What `peft.LoraConfig` reads; all else has PEFT's defaults."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.model,
        "r": spec.lora.rank,
        "lora_alpha": spec.lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(spec.lora.targets),
        "bias": "none",
        "inference_mode": True,
    }
