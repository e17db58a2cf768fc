"""The README.md of an exported folder: what it is, where it comes from, how to load it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from .committed_version import CommittedVersion

_PATH = re.compile(r"[/~.]\S*/\S*$")
_ADDRESS = re.compile(r"\w[\w+.-]*://\S+$")
_LOAD_ADAPTER = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained({base})
model = PeftModel.from_pretrained(base, "this/folder")
```"""
_LOAD_MERGED = """```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("this/folder")
```"""


def model_card(version: CommittedVersion, *, merged: bool) -> str:
    """Markdown with Hugging Face's front matter.

    Says nothing of the worker that computed the version but its kind: of paths only the last part is
    shown, of addresses only the host.
    """
    spec, manifest = version.job.spec, version.manifest
    base = public(spec.model)
    about = {"base_model": base, "library_name": "transformers" if merged else "peft"}
    front = [f"{name}: {json.dumps(value)}" for name, value in about.items()]
    kind = "A full model: the base model with the adapter merged in, float32" if merged else "A LoRA adapter"
    lineage = {
        "job": str(spec.key),
        "version": f"{manifest.version} of {spec.steps} steps",
        "base model": f"{base}, sha256 {manifest.fingerprint.base}",
        "spec": f"sha256 {manifest.spec_digest}",
        "manifest": f"sha256 {version.revision.manifest}",
        "parent": f"sha256 {manifest.parent}" if manifest.parent else "none",
        "adapter": f"sha256 {manifest.adapter.digest}",
        "batch": f"sha256 {manifest.batch.digest}" if manifest.batch else "none",
        "dataset": f"sha256 {version.job.dataset.blob.digest}" if version.job.dataset else "not recorded",
        "computed with": f"torch {manifest.fingerprint.torch}, transformers "
        f"{manifest.fingerprint.transformers}, {manifest.fingerprint.device}, {manifest.fingerprint.dtype}",
    }
    return "\n".join(
        [
            *("---", *front, "tags: [lora, reinforcement-learning, marlaas]", "---", ""),
            *(f"# {spec.key}, version {manifest.version}", ""),
            *(f"{kind}, trained by reinforcement learning with MARLaaS.", ""),
            *(
                "## Loading it",
                "",
                (_LOAD_MERGED if merged else _LOAD_ADAPTER).format(base=json.dumps(base)),
                "",
            ),
            *("## Where it comes from", "", "| | |", "|---|---|"),
            *(f"| {name} | {value} |" for name, value in lineage.items()),
            *("", "## Held-out evaluation", "", *_evaluations(version), ""),
            *(
                "## Settings",
                "",
                "```json",
                json.dumps(_public_values(_settings(version)), indent=2),
                "```",
                "",
            ),
        ]
    )


def public(text: str) -> str:
    """A text without what only the worker's machine or its owner should know.

    Of a path the last part, of an address the scheme and the host.
    """
    if _ADDRESS.match(text):
        parts = urlsplit(text)
        return f"{parts.scheme}://{parts.hostname or ''}"
    return text.rstrip("/").rpartition("/")[2] if _PATH.match(text) else text


def _settings(version: CommittedVersion) -> dict[str, Any]:
    spec = version.job.spec.model_dump(
        mode="json", exclude={"tenant", "job", "durability", "trackers", "format"}
    )
    changed = [setting.model_dump(mode="json") for setting in version.manifest.settings]
    return {**spec, **({"set_while_running": changed} if changed else {})}


def _public_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _public_values(one) for name, one in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list):
        return [_public_values(one) for one in cast(list[Any], value)]
    return public(value) if isinstance(value, str) else value


def _evaluations(version: CommittedVersion) -> Iterator[str]:
    if not version.evaluations:
        yield "None of this version."
        return
    yield "| Version | Prompts | avg@k | k | Greedy | Mean reward |"
    yield "|---|---|---|---|---|---|"
    for one in version.evaluations:
        reward = "–" if one.reward_mean is None else f"{one.reward_mean:.3f}"
        yield (
            f"| {one.version} | {one.prompts} | {one.accuracy:.3f} | {one.samples} "
            f"| {one.greedy_accuracy:.3f} | {reward} |"
        )
