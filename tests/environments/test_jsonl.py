"""JSONL files as people have them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from marlaas.environments import row_check
from marlaas.environments.datasets import build_dataset
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.jsonl import read_jsonl
from marlaas.schemas.dataset import Dataset, Message
from marlaas.schemas.environment import JsonlEnvironment
from marlaas.schemas.job_spec import EvaluationSpec, JobSpec, SamplingSpec


def line(content: str = "What is 1 + 1?", **fields: Any) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content}], **fields})


def written(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def spec(path: str, held_out: int) -> JobSpec:
    return JobSpec(
        tenant="acme",
        job="sums",
        model="tiny",
        steps=1,
        environment=JsonlEnvironment(kind="jsonl", path=path, reward="rewards:exact"),
        sampling=SamplingSpec(groups_per_step=1, samples_per_group=2),
        evaluation=EvaluationSpec(prompts=held_out),
    )


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    for path in (str(tmp_path / "rows.jsonl"), "/dev/zero"):
        with pytest.raises(InvalidEnvironment, match="is no file that can be read to its end"):
            read_jsonl(path)


def test_rows_keep_their_order_messages_and_fields(tmp_path: Path) -> None:
    conversation = [
        {"role": "system", "content": "Be brief.\u2028"},
        {"role": "user", "content": "Hi \u0000"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "What is 2 + 2? 🙂"},
    ]
    text = "\n".join([json.dumps({"answer": 4, "messages": conversation}), "", "  \t", line(answer="2"), ""])
    first, second = read_jsonl(written(tmp_path, text))
    assert first.messages == tuple(Message.model_validate(message) for message in conversation)
    assert first.fields == {"answer": 4}
    assert (first.source, second.source) == ("line 1", "line 4")


def test_arguments_of_different_shapes_come_back_unchanged(tmp_path: Path) -> None:
    """CASES 91: no null keys, no common schema, and through the stored document too."""
    values: list[Any] = [
        {"args": {"a": 1}},
        {"args": {"b": None, "c": [1, 2.5, {"d": "x"}]}},
        {"args": [], "id": "one"},
        {"args": "text", "id": "two", "": 0, "not an identifier": True},
        {"big": 2**80, "small": -1.5e-300, "zero": -0.0, "long": 0.1 + 0.2},
        {},
    ]
    text = "\n".join(line(f"question {index}", **value) for index, value in enumerate(values))
    stored = build_dataset(spec(written(tmp_path, text), 0)).model_dump_json()
    rows = Dataset.model_validate_json(stored).train
    assert [row.fields for row in rows] == values
    assert json.dumps([row.fields for row in rows]) == json.dumps(values)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    rows = read_jsonl(written(tmp_path, b"\xef\xbb\xbf" + f"{line()}\r\n{line()}\r\n".encode()))
    assert [row.source for row in rows] == ["line 1", "line 2"]


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    text = json.dumps(
        {"messages": [{"role": "user", "content": "a\u2028b\x0bc\x85d"}]}, ensure_ascii=False
    ).replace("\\u000b", "\x0b")
    with pytest.raises(InvalidEnvironment, match="Invalid control character"):
        read_jsonl(written(tmp_path, text))
    [row] = read_jsonl(written(tmp_path, text.replace("\x0b", "")))
    assert row.messages[0].content == "a\u2028bc\x85d"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("{", r"is no JSON: Expecting property name .* at column 2"),
        (line() + "}", "is no JSON: Extra data"),
        ("\x00" * 20, "is no JSON"),
        (b'{"messages": "\xff"}', "is not UTF-8 at byte 15"),
        ("[1]", "is a list; every row is an object with 'messages' or a 'prompt'"),
        ("null", "is null; every row"),
        ('"text"', "is text; every row"),
        (
            '{"text": "hi", "answer": 1}',
            "has neither 'messages' nor 'prompt'; its fields are 'text', 'answer'",
        ),
        ("{}", "has neither 'messages' nor 'prompt'; its fields are none"),
        ('{"prompt": " "}', "prompt is empty; it has to be text that is not blank"),
        ('{"prompt": 3}', "prompt is a number; it has to be text, or a list of {role, content}"),
        ('{"messages": []}', "messages is an empty list; it has to be a list"),
        ('{"messages": "hi"}', "messages is text; it has to be a list"),
        ('{"messages": ["hi"]}', r"messages\[0\] is text; it has to be an object"),
        (
            '{"messages": [{"role": "user"}]}',
            r"messages\[0\] has the fields 'role'; it has to have 'role'",
        ),
        (
            '{"messages": [{"role": "user", "content": "a", "name": "b"}]}',
            r"messages\[0\] has the fields 'role', 'content', 'name'",
        ),
        (
            '{"messages": [{"role": "human", "content": "a"}]}',
            r"messages\[0\].role is 'human'; allowed are system, user, assistant",
        ),
        (
            '{"messages": [{"role": ["user"], "content": "a"}]}',
            r"messages\[0\].role is \['user'\]; allowed",
        ),
        ('{"messages": [{"role": "user", "content": ""}]}', r"messages\[0\].content is empty"),
        ('{"messages": [{"role": "user", "content": " \\n"}]}', r"messages\[0\].content is empty"),
        ('{"messages": [{"role": "user", "content": null}]}', r"messages\[0\].content is null"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
            r"messages\[0\].content is a list",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
            "the last message has role 'assistant'; it has to be 'user'",
        ),
        (line(completion="x"), "has a field 'completion', by which the reward is given the completion"),
        (line()[:-1] + ', "x": NaN}', "has the number NaN, which JSON does not know"),
        (line()[:-1] + ', "x": -Infinity}', "has the number -Infinity"),
        (line()[:-1] + ', "x": 1e999}', "has the number 1e999, which is too large"),
        (line()[:-1] + ', "x": ' + "9" * 5000 + "}", "cannot be stored: Exceeds the limit"),
        (
            line()[:-1] + ', "x": ' + "[" * 10**5 + "]" * 10**5 + "}",
            "cannot be stored: maximum recursion",
        ),
        (line()[:-1] + ', "x": "\\ud83d"}', "has half of a surrogate pair"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, bad: str | bytes, problem: str) -> None:
    bad = bad if isinstance(bad, bytes) else bad.encode()
    path = written(tmp_path, f"{line()}\n\n".encode() + bad + f"\n{line()}\n".encode())
    with pytest.raises(InvalidEnvironment, match=f"rows.jsonl', line 3: {problem}") as caught:
        read_jsonl(path)
    assert caught.value.path == "environment.path"


def test_wrong_lines_are_told_together(tmp_path: Path) -> None:
    bad = ["{", '{"prompt": ""}', line(), line(id=7), '{"prompt": "a", "id": 7}'] + ["[]"] * 9
    with pytest.raises(InvalidEnvironment) as caught:
        read_jsonl(written(tmp_path, "\n".join(bad)))
    told = caught.value.problem.split("\n  ")
    assert told[0].endswith("rows.jsonl' has 12 wrong rows:")
    assert told[1].startswith("line 1: is no JSON")
    assert told[2].startswith("line 2: prompt is empty")
    assert told[3] == "line 5: has the id 7, which line 4 has too"
    assert told[10].startswith("line 12: is an empty list")
    assert told[11:] == ["and 2 more"]


def test_ids_are_compared_with_their_kinds_and_given_to_the_reward(tmp_path: Path) -> None:
    rows = read_jsonl(written(tmp_path, "\n".join(line(id=one) for one in (1, "1", True, None, None))))
    assert [row.fields for row in rows] == [{"id": 1}, {"id": "1"}, {"id": True}, {"id": None}, {"id": None}]


def test_a_prompt_is_text_or_messages_in_a_column_of_any_name(tmp_path: Path) -> None:
    text = json.dumps({"prompt": "a", "question": [{"role": "user", "content": "b"}], "x": 1})
    path = written(tmp_path, text)
    [by_default], [by_name] = read_jsonl(path), read_jsonl(path, "question")
    assert by_default.messages == (Message(role="user", content="a"),)
    assert by_default.fields == {"question": [{"role": "user", "content": "b"}], "x": 1}
    assert by_name.messages == (Message(role="user", content="b"),)
    assert by_name.fields == {"prompt": "a", "x": 1}
    with pytest.raises(InvalidEnvironment, match="line 1: has no 'other'; its fields are 'prompt'"):
        read_jsonl(path, "other")
    both = written(tmp_path, line(prompt="a"))
    assert read_jsonl(both)[0].fields == {"prompt": "a"}
    with pytest.raises(InvalidEnvironment, match="has a field 'messages', by which the reward is given the"):
        read_jsonl(both, "prompt")


@pytest.mark.parametrize(("limit", "most"), [("MOST_ROWS", 4), ("MOST_BYTES", 5 * len(line()) - 1)])
def test_a_file_beyond_the_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(row_check, limit, most)
    path = written(tmp_path, f"{line()}\n" * 5)
    with pytest.raises(InvalidEnvironment, match="is too big at line 5: at most"):
        read_jsonl(path)
    monkeypatch.setattr(row_check, limit, 5 * most)
    assert len(read_jsonl(path)) == 5


def test_errors_do_not_show_what_the_file_holds(tmp_path: Path) -> None:
    """A path of a job spec must not be a way to read files of the worker."""
    with pytest.raises(InvalidEnvironment) as caught:
        read_jsonl(written(tmp_path, "root:x:0:0:secret"))
    assert "secret" not in str(caught.value)


def test_utf_16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironment, match="line 1: is not UTF-8 at byte 1"):
        read_jsonl(written(tmp_path, line().encode("utf-16")))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.jsonl")
    for path, problem in [
        (missing, "No such file"),
        (str(tmp_path), "Is a directory"),
        ("a\0b", "embedded null"),
        (written(tmp_path, "\n \n"), "has no rows"),
    ]:
        with pytest.raises(InvalidEnvironment, match=problem) as caught:
            read_jsonl(path)
        assert repr(path) in str(caught.value)


def test_a_fault_of_the_disk_is_not_the_environments() -> None:
    """What may pass must not end the job. Address 0 of this process is no file of anybody's."""
    with pytest.raises(OSError, match="Input/output error"):
        read_jsonl("/proc/self/mem")


def test_held_out_rows_are_chosen_by_content_alone(tmp_path: Path) -> None:
    lines = [line(f"question {index}") for index in range(100)]
    dataset = build_dataset(spec(written(tmp_path, "\n".join(lines)), 20))
    held_out = {row.messages[0].content for row in dataset.held_out}
    train = [row.messages[0].content for row in dataset.train]
    assert len(dataset.held_out) == len(held_out) == 20
    assert sorted([*train, *held_out]) == sorted(f"question {index}" for index in range(100))
    assert held_out != {f"question {index}" for index in range(20)}
    assert train == sorted(train, key=lambda content: int(content.split()[1]))

    again = build_dataset(spec(written(tmp_path, "\n".join(reversed(lines))), 20))
    assert {row.messages[0].content for row in again.held_out} == held_out
    fewer = build_dataset(spec(written(tmp_path, "\n".join(lines)), 10))
    assert {row.messages[0].content for row in fewer.held_out} < held_out


def test_no_prompt_is_on_both_sides(tmp_path: Path) -> None:
    lines = [line(f"question {index % 10}", copy=index) for index in range(30)]
    dataset = build_dataset(spec(written(tmp_path, "\n".join(lines)), 4))
    held_out = [row.messages for row in dataset.held_out]
    assert len(set(held_out)) == len(held_out) == 4
    assert not set(held_out) & {row.messages for row in dataset.train}
    assert len(dataset.train) == 6 * 3


@pytest.mark.parametrize("held_out", [3, 4, 100])
def test_something_has_to_be_left_to_train_on(tmp_path: Path, held_out: int) -> None:
    path = written(tmp_path, "\n".join(line(f"question {index % 3}") for index in range(9)))
    with pytest.raises(InvalidEnvironment, match=f"evaluation.prompts: is {held_out}; .* 3 distinct prompts"):
        build_dataset(spec(path, held_out))
    assert len(build_dataset(spec(path, 2)).train) == 3
    assert build_dataset(spec(path, 0)).held_out == ()
