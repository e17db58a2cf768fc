"""Parts of a reward that a server answers: one of the user's, or a language model as a judge."""

import json
import os
import re
import reprlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError, MaxRetryError

from ..schemas.dataset import Row
from ..schemas.rewards import PLACEHOLDER, HttpPart, JudgePart
from .answers import extract_answer
from .invalid import InvalidEnvironment
from .reward import InvalidReward

_WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)
_DENOMINATOR = re.compile(r"/\s*[0-9]+(\.[0-9]+)?")


class RemoteFailure(Exception):
    """A server gave no answer that can be used. The sample has failed, and its reward is not 0."""


class HttpReward:
    """Asks a server of the user's; see `HttpPart`."""

    def __init__(self, part: HttpPart, path: str) -> None:
        """Raises InvalidEnvironment when the token cannot be had; `path` is the part's."""
        self._server = _Server(part, part.url, path)

    def __call__(self, row: Row, completion: str) -> object:
        """What the server answered: a number, None, or a dictionary of such.

        Raises:
            RemoteFailure: when it did not.
        """
        messages = [message.model_dump() for message in row.messages]
        body = {"prompt": messages, "completion": completion, "fields": row.fields}
        answer = self._server.post(body)
        match answer:
            case {"reward": reward, **rest} if "parts" not in rest and not isinstance(reward, dict):
                return reward
            case {"parts": dict(), **rest} if "reward" not in rest:
                return answer["parts"]
            case _:
                raise self._server.failure(
                    f"answered {reprlib.repr(answer)}; an object with either reward or parts is needed"
                )


class Judge:
    """Asks a language model for a grade; see `JudgePart`."""

    def __init__(self, part: JudgePart, path: str) -> None:
        """Raises InvalidEnvironment when the token cannot be had; `path` is the part's."""
        self._part = part
        self._server = _Server(part, f"{part.url.rstrip('/')}/chat/completions", path)

    def __call__(self, row: Row, completion: str) -> float:
        """The grade, from 0.0 to 1.0.

        Raises:
            InvalidReward: when the row lacks a field that the prompt names.
            RemoteFailure: when there is no reply, or no grade in it.
        """
        part = self._part
        question = _filled(part.prompt, row, completion)
        messages = [{"role": "user", "content": question}]
        answer = self._server.post({**part.options, "model": part.model, "messages": messages})
        match answer:
            case {"choices": [{"message": {"content": str() as reply}}, *_]}:
                grade = extract_answer(_DENOMINATOR.sub("", reply), "last-number")
            case _:
                raise self._server.failure(f"answered {reprlib.repr(answer)}, which is no chat completion")
        if grade is None or not part.low <= float(grade) <= part.high:
            raise self._server.failure(
                f"replied {reprlib.repr(reply)}; a grade from {part.low:g} to {part.high:g} is needed"
            )
        return (float(grade) - part.low) / (part.high - part.low)


class _Server:
    """An address that takes JSON and answers with JSON."""

    def __init__(self, part: HttpPart | JudgePart, url: str, path: str) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json"} | _authorization(part.token_variable, path)
        self._timeout = Timeout(total=part.timeout_seconds)
        self._retries = Retry(
            part.retries,
            status_forcelist=_WORTH_ANOTHER_TRY,
            allowed_methods=None,
            backoff_factor=0.5,
            backoff_max=10,
            retry_after_max=60,
            raise_on_status=False,
        )
        self._pool = PoolManager()

    def post(self, body: Mapping[str, Any]) -> Any:
        """What the address answers, tried again as the part says.

        Raises:
            RemoteFailure: when there is no answer, or it is no JSON with status 200.
        """
        try:
            response = self._pool.request(
                "POST",
                self._url,
                body=json.dumps(body).encode(),  # ASCII, since half a surrogate pair is no UTF-8
                headers=self._headers,
                timeout=self._timeout,
                retries=self._retries,
                redirect=False,
            )
        except HTTPError as fault:
            cause = fault.reason if isinstance(fault, MaxRetryError) and fault.reason else fault
            raise self.failure(f"gave no answer, with {self._retries.total} retries: {cause}") from None
        if response.status != 200:
            text = response.data[:200].decode(errors="replace")
            raise self.failure(f"answered with status {response.status}: {text}")
        try:
            return json.loads(response.data)
        except (ValueError, RecursionError):
            raise self.failure(f"answered {reprlib.repr(response.data)}, which is no JSON") from None

    def failure(self, what: str) -> RemoteFailure:
        """A failure of this server; the query of its address may be a secret and is left out."""
        return RemoteFailure(f"{urlsplit(self._url)._replace(query='', fragment='').geturl()} {what}")


def _authorization(variable: str | None, path: str) -> dict[str, str]:
    if variable is None:
        return {}
    token = os.environ.get(variable, "").strip()
    if not token or not (token.isascii() and token.isprintable()):
        found = "no printable ASCII text" if token else "not set"
        raise InvalidEnvironment(
            f"{path}.token_variable", f"is {variable!r}, which is {found} in this worker's environment"
        )
    return {"Authorization": f"Bearer {token}"}


def _filled(template: str, row: Row, completion: str) -> str:
    """The prompt of a judge. What is filled in is not looked at for names again."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "completion":
            return completion
        if name == "prompt":
            return _conversation(row)
        if name not in row.fields:
            raise InvalidReward(
                f"{row.source} has no field {name!r}, which the judge's prompt names; its fields are "
                f"{', '.join(row.fields) or 'none'}"
            )
        found = row.fields[name]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    return PLACEHOLDER.sub(value, template)


def _conversation(row: Row) -> str:
    if len(row.messages) == 1:
        return row.messages[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in row.messages)
