"""Remote rewards and judges, asked over HTTP."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.remote_rewards import RemoteFailure
from marlaas.environments.reward import InvalidReward, NoReward, Reward
from marlaas.environments.scoring import Scorer, load_scorer
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import Environment
from marlaas.tests.reward_server import Answer, RewardServer, as_json, reply, reward_server
from pydantic import TypeAdapter

ROW = Row(
    source="line 1",
    messages=(Message(role="user", content="Why?"),),
    fields={"answer": "42", "list": [1, "é"], "trap": "{answer} {completion}"},
)
TALK = ROW.model_copy(update={"messages": (Message(role="system", content="Be brief."), *ROW.messages)})


def scorer(**part: Any) -> Scorer:
    content = {"kind": "jsonl", "path": "unused", "reward": (part,)}
    return load_scorer(TypeAdapter[Any](Environment).validate_python(content))


def http(server: RewardServer, **options: Any) -> Scorer:
    return scorer(kind="http", url=f"{server.url}/score?key=secret", **options)


def judge(server: RewardServer, prompt: str = "Grade {completion}", **options: Any) -> Scorer:
    return scorer(kind="judge", url=f"{server.url}/v1", model="m", prompt=prompt, **options)


@pytest.fixture
def server() -> Iterator[RewardServer]:
    with reward_server(lambda body: as_json({"reward": 0.25})) as running:
        yield running


def test_a_server_is_sent_prompt_completion_and_fields(
    server: RewardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARLAAS_REWARD_KEY", "s3cret\n")
    reward = http(server, token_variable="MARLAAS_REWARD_KEY", weight=2.0)(ROW, "so \ud83d 🙂")
    assert reward == Reward(0.5, {"http": 0.25})
    path, headers, body = server.asked[0]
    assert path == "/score?key=secret"
    assert (headers["authorization"], headers["content-type"]) == ("Bearer s3cret", "application/json")
    assert body == {
        "prompt": [{"role": "user", "content": "Why?"}],
        "completion": "so \ud83d 🙂",
        "fields": ROW.fields,
    }


def test_without_a_token_none_is_sent(server: RewardServer) -> None:
    http(server)(ROW, "")
    assert "authorization" not in server.asked[0][1]


@pytest.mark.parametrize("value", [None, "", " \n", "two\nlines", "ü"])
def test_a_token_that_cannot_be_sent_is_refused_unseen(
    value: str | None, server: RewardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MARLAAS_REWARD_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MARLAAS_REWARD_KEY", value)
    with pytest.raises(InvalidEnvironment, match="in this worker's environment") as caught:
        http(server, token_variable="MARLAAS_REWARD_KEY")
    assert caught.value.path == "environment.reward.0.token_variable"
    assert "lines" not in str(caught.value)


def test_a_server_may_name_parts(server: RewardServer) -> None:
    server.answer = lambda body: as_json({"parts": {"a": 1, "b": None, "c": 0.5}})
    assert http(server, name="remote", weights={"a": 4})(ROW, "") == Reward(
        4.5, {"remote.a": 1.0, "remote.b": None, "remote.c": 0.5}
    )


def test_a_server_may_say_that_nothing_applies(server: RewardServer) -> None:
    """CASES 73."""
    server.answer = lambda body: as_json({"reward": None})
    with pytest.raises(NoReward, match="http are None"):
        http(server)(ROW, "")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_outage_is_tried_again(status: int, server: RewardServer) -> None:
    server.answer = lambda body: as_json({"reward": 0.5}) if len(server.asked) > 1 else (status, b"busy")
    assert http(server, retries=1)(ROW, "").value == 0.5
    assert [body for *_, body in server.asked] == [server.asked[0][2]] * 2


@pytest.mark.parametrize(
    ("status", "tries"), [(503, 2), (429, 2), (400, 1), (401, 1), (404, 1), (307, 1), (204, 1)]
)
def test_a_status_that_stays_is_a_failure_and_never_a_reward(
    status: int, tries: int, server: RewardServer
) -> None:
    """CASES 79."""
    server.headers["Location"] = "/elsewhere"
    server.answer = lambda body: (status, b"" if status == 204 else b'{"reward": 0}')
    with pytest.raises(RemoteFailure, match=f"/score answered with status {status}: ") as caught:
        http(server, retries=1)(ROW, "")
    assert len(server.asked) == tries
    assert "secret" not in str(caught.value)


def test_a_server_that_hangs_is_left_after_its_time_and_asked_again(server: RewardServer) -> None:
    server.answer = lambda body: None
    with pytest.raises(RemoteFailure, match=r"gave no answer, with 1 retries: .*timed out") as caught:
        http(server, timeout_seconds=0.1, retries=1)(ROW, "")
    assert len(server.asked) == 2
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_a_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RemoteFailure, match=r"gave no answer, with 0 retries: .*refused"):
            scorer(kind="http", url=url, retries=0)(ROW, "")


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (b"", RemoteFailure, "which is no JSON"),
        (b"<html>", RemoteFailure, "answered b'<html>', which is no JSON"),
        (b"\xff", RemoteFailure, "which is no JSON"),
        (b"[" * 100_000, RemoteFailure, "which is no JSON"),
        (b"0", RemoteFailure, "answered 0; an object with either reward or parts is needed"),
        (b"{}", RemoteFailure, "an object with either reward or parts"),
        (b'{"reward": 1, "parts": {"a": 1}}', RemoteFailure, "either reward or parts"),
        (b'{"parts": {"a": 1}, "reward": 1}', RemoteFailure, "either reward or parts"),
        (b'{"parts": 1}', RemoteFailure, "either reward or parts"),
        (b'{"reward": "1"}', InvalidReward, "the part 'http' returned '1'; it has to be a number or None"),
        (b'{"reward": NaN}', InvalidReward, "the part 'http' returned nan"),
        (b'{"reward": [1]}', InvalidReward, "the part 'http' returned"),
        (b'{"reward": {"a": 1}}', RemoteFailure, "either reward or parts"),
        (b'{"parts": {}}', InvalidReward, "a dictionary of 0"),
        (b'{"parts": {"a": "1"}}', InvalidReward, "the part 'http' returned 'a': '1'"),
    ],
)
def test_garbage_is_a_failure_and_never_a_reward(
    body: bytes, error: type[Exception], text: str, server: RewardServer
) -> None:
    """CASES 79 and 73."""
    server.answer = lambda _: (200, body)
    with pytest.raises(error, match=text):
        http(server)(ROW, "")
    assert len(server.asked) == 1


def test_a_judge_is_asked_in_openais_form(server: RewardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_REWARD_KEY", "s3cret")
    server.answer = lambda body: reply("Good. Grade: 7.5")
    prompt = 'P {prompt} C {completion} A {answer} L {list} T {trap} J {"grade": 1} {}'
    scored = judge(server, prompt, token_variable="MARLAAS_REWARD_KEY", options={"max_tokens": 8})(
        TALK, "{answer}{prompt}"
    )
    assert scored == Reward(0.75, {"judge": 0.75})
    path, headers, body = server.asked[0]
    assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer s3cret")
    assert body == {
        "model": "m",
        "max_tokens": 8,
        "messages": [
            {
                "role": "user",
                "content": 'P system: Be brief.\n\nuser: Why? C {answer}{prompt} A 42 L [1, "é"] '
                'T {answer} {completion} J {"grade": 1} {}',
            }
        ],
    }


def test_a_judge_is_asked_for_what_is_likeliest_and_of_one_message_as_it_is(server: RewardServer) -> None:
    server.answer = lambda body: reply("10")
    assert judge(server, "{prompt}|{completion}")(ROW, "x").value == 1.0
    assert server.asked[0][2] == {
        "model": "m",
        "temperature": 0.0,
        "messages": [{"role": "user", "content": "Why?|x"}],
    }


@pytest.mark.parametrize(
    ("text", "scale", "value"),
    [
        ("0", {}, 0.0),
        ("7/10", {}, 0.7),
        ("I say 3 of 10, no: 8 / 10.", {}, 0.8),
        ("2", {"low": 1, "high": 5}, 0.25),
        ("-1", {"low": -1, "high": 1}, 0.0),
    ],
)
def test_grades_become_numbers_from_0_to_1(
    text: str, scale: dict[str, Any], value: float, server: RewardServer
) -> None:
    server.answer = lambda body: reply(text)
    assert judge(server, **scale)(ROW, "").value == value


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (reply("I cannot say."), "replied 'I cannot say.'; a grade from 0 to 10 is needed"),
        (reply("11"), "replied '11'; a grade from 0 to 10"),
        (reply("-1"), "replied '-1'; a grade from 0 to 10"),
        (reply(""), "replied ''; a grade"),
        (reply(None), "which is no chat completion"),
        (as_json({"choices": []}), "which is no chat completion"),
        (as_json({"error": "overloaded"}), "which is no chat completion"),
        (as_json([]), "which is no chat completion"),
        ((200, b"<html>"), "which is no JSON"),
        ((401, b"no key"), "/v1/chat/completions answered with status 401: no key"),
    ],
)
def test_a_judge_that_gives_no_grade_is_a_failure_and_never_a_reward(
    answer: Answer, text: str, server: RewardServer
) -> None:
    """CASES 79."""
    server.answer = lambda body: answer
    with pytest.raises(RemoteFailure, match=text):
        judge(server)(ROW, "")


def test_a_field_that_the_row_lacks_is_named(server: RewardServer) -> None:
    with pytest.raises(InvalidReward, match="line 1 has no field 'solution', which the judge's prompt names"):
        judge(server, "{completion} {solution}")(ROW, "")
    assert not server.asked
