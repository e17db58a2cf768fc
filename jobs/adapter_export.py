"""A committed adapter as a folder that PEFT loads, or merged into a model that transformers loads."""

import asyncio
import hashlib
import json
import shutil
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ..schemas.contract import Digest, Document
from ..schemas.job_spec import JobSpec
from ..schemas.names import JobKey
from ..storage.object_store import ObjectStore
from .committed_version import CommittedVersion
from .errors import ExportRefused
from .model_card import model_card, public

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PROVENANCE = "marlaas.json"
_CARD = "README.md"


class ExportedAdapter(Document):
    """`marlaas.json` in an exported folder: where the adapter comes from.

    Attributes:
        base: sha256 over the base model's configuration, tokenizer and weights.
        merged: whether the folder holds the whole model, with the adapter merged in.
    """

    job: JobKey
    version: int
    manifest: Digest
    adapter: Digest
    spec_digest: Digest
    model: str
    base: Digest
    merged: bool = False


Merge = Callable[[Path, Path], Awaitable[None]]
"""Given an adapter's file and an empty folder, writes the merged model there."""


async def export_adapter(store: ObjectStore, version: CommittedVersion, out: Path) -> ExportedAdapter:
    """Writes `adapter_model.safetensors`, `adapter_config.json`, `marlaas.json` and `README.md` to `out`.

    The folder appears whole or not at all. A folder that holds just this export already is left as
    it is. A killed process may leave a folder `.<name>.<random>` beside it.

    Raises:
        ExportRefused: when `out` is a file, or a folder with other content.
        MissingBlob, CorruptBlob: when the store no longer has the adapter as it was.
    """
    exported = _exported(version, merged=False)
    folder = _Folder(
        out,
        {
            _CONFIG: json.dumps(_peft_config(version.job.spec), indent=2) + "\n",
            _PROVENANCE: exported.model_dump_json(indent=2) + "\n",
            _CARD: model_card(version, merged=False),
        },
        version.revision.adapter.digest,
    )
    if await asyncio.to_thread(folder.is_complete):
        return exported
    try:
        async with folder.filled() as scratch:
            bucket = version.manifest.key.bucket
            await store.download_blob(bucket, version.revision.adapter, scratch / _WEIGHTS)
    except ExportRefused:
        if not await asyncio.to_thread(folder.is_complete):  # else another export of the same was faster
            raise
    return exported


async def export_merged(
    store: ObjectStore, version: CommittedVersion, out: Path, merge: Merge
) -> ExportedAdapter:
    """Writes the base model with a version's adapter merged in, `marlaas.json` and `README.md` to `out`.

    The folder appears whole or not at all; see `export_adapter`.

    Raises:
        ExportRefused: when `out` is a file, or a folder with anything in it.
        MissingBlob, CorruptBlob: when the store no longer has the adapter as it was.
    """
    exported = _exported(version, merged=True)
    documents = {
        _PROVENANCE: exported.model_dump_json(indent=2) + "\n",
        _CARD: model_card(version, merged=True),
    }
    async with _Folder(out, documents, None).filled() as scratch:
        adapter = scratch / ".adapter"
        await store.download_blob(version.manifest.key.bucket, version.revision.adapter, adapter)
        await merge(adapter, scratch)
        adapter.unlink()
    return exported


def _exported(version: CommittedVersion, *, merged: bool) -> ExportedAdapter:
    manifest = version.manifest
    return ExportedAdapter(
        job=manifest.key,
        version=manifest.version,
        manifest=version.revision.manifest,
        adapter=manifest.adapter.digest,
        spec_digest=manifest.spec_digest,
        model=public(version.job.spec.model),
        base=manifest.fingerprint.base,
        merged=merged,
    )


@dataclass(frozen=True)
class _Folder:
    """Where an export goes.

    Attributes:
        documents: the text of each file but the weights.
        weights: digest of an adapter; None for a merged model, which nobody has the digest of.
    """

    out: Path
    documents: Mapping[str, str]
    weights: Digest | None

    @asynccontextmanager
    async def filled(self) -> AsyncGenerator[Path]:
        """A new folder beside it, to be filled, which then takes its place."""
        scratch = await asyncio.to_thread(self.begin)
        try:
            yield scratch
            await asyncio.to_thread(self.finish, scratch)
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def is_complete(self) -> bool:
        """Whether it holds exactly the files of this export. What the card says may have changed since."""
        if (
            self.weights is None
            or not self.out.is_dir()
            or {path.name for path in self.out.iterdir()} != {_WEIGHTS, *self.documents}
        ):
            return False
        if any((self.out / name).read_text() != self.documents[name] for name in (_CONFIG, _PROVENANCE)):
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
        "base_model_name_or_path": public(spec.model),
        "r": spec.lora.rank,
        "lora_alpha": spec.lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(spec.lora.targets),
        "bias": "none",
        "inference_mode": True,
    }
