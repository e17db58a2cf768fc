"""What a person may hand in that can't work: each with the words that they are told.

Files that are no YAML or JSON are in tests/front_door/test_job_files.py, samples whose rewards misbehave in
tests/workers_children/test_reward_pool.py, damaged blobs, a full store and wrong credentials in
tests/storage/test_object_store.py, and servers that are not there in tests/front_door/test_command_line.py.
"""

from typing import Any

LONG = "a" * 300

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"step": 3}, "step is not a known field; did you mean steps?"),
    "no steps": ({"steps": 0}, "steps is 0: should be greater than or equal to 1"),
    "steps as text": ({"steps": "x"}, 'steps is "x": should be a valid integer'),
    "tenant with a path": ({"tenant": "../x"}, 'tenant is "../x": should be a DNS label'),
    "long tenant": ({"tenant": LONG}, "should be a DNS label: 1 to 55 of a-z, 0-9 and '-'"),
    "long name": ({"job": LONG}, "should be a DNS label: 1 to 63 of a-z, 0-9 and '-'"),
    "capitals in a name": ({"job": "Sums"}, 'job is "Sums": should be a DNS label'),
    "group of one": (
        {"sampling": {"samples_per_group": 1}},
        "sampling.samples_per_group is 1: grpo compares",
    ),
    "nucleus sampling": ({"sampling": {"top_p": 0.9}}, "sampling.top_p is not a known field"),
    "temperature 0": (
        {"sampling": {"temperature": 0}},
        "sampling.temperature is 0: should be greater than 0",
    ),
    "slots": ({"sampling": {"slots": 8}}, "sampling.slots is 8: should be a multiple of 16"),
    "empty stop string": ({"sampling": {"stop": [""]}}, 'sampling.stop.0 is ""'),
    "ppo": ({"objective": {"name": "ppo"}}, "objective: ppo needs a value model (a critic), which is not"),
    "unknown objective": ({"objective": {"name": "trpo"}}, "objective.name is \"trpo\": should be 'grpo'"),
    "dual clip of cispo": (
        {"objective": {"name": "cispo", "dual_clip": 3.0}},
        "objective: dual_clip belongs to clip: ppo, and clip is cispo",
    ),
    "correction of nothing": (
        {"objective": {"correction": {"kind": "token-mask"}}},
        "objective: correction needs old: trainer",
    ),
    "refills without comparison": (
        {"objective": {"name": "reinforce_pp", "refill_limit": 1.0}},
        "objective: refill_limit is 1.0: it makes up for groups whose rewards are equal",
    ),
    "overlong buffer": (
        {"objective": {"overlong": {"buffer_tokens": 99}}},
        "objective.overlong.buffer_tokens is 99: at most sampling.max_tokens, 16",
    ),
    "mini-batches": ({"optimizer": {"mini_batches": 99}}, "optimizer.mini_batches is 99, and a mini-batch"),
    "warm-up": ({"optimizer": {"warmup_steps": 99}}, "optimizer.warmup_steps is 99: at most steps"),
    "negative rate": (
        {"optimizer": {"learning_rate": -1}},
        "optimizer.learning_rate is -1: should be greater",
    ),
    "rank 0": ({"lora": {"rank": 0}}, "lora.rank is 0: should be greater than or equal to 1"),
    "layer twice": ({"lora": {"targets": ["q", "q"]}}, "lora.targets names a layer twice: q"),
    "negative staleness": (
        {"max_staleness": -1},
        "max_staleness is -1: should be greater than or equal to 0",
    ),
    "no such kind": ({"environment": {"kind": "gym"}}, 'environment.kind is "gym": should be one of'),
    "reward of one word": ({"environment": {"reward": "nope"}}, "is 'nope'; write module:function"),
    "start without an end": (
        {"start": {"job": "faults/a"}},
        "start: has job: give either adapter, or job and",
    ),
    "start of another": (
        {"start": {"job": "other/a", "version": 1}},
        "start.job is 'other/a': a job of tenant",
    ),
}
"""Changes to a valid spec, and what `submit` says."""

FOUND: dict[str, tuple[dict[str, Any], str]] = {
    "no such model": ({"model": "{folder}/none"}, "model '{folder}/none' is no folder on this machine"),
    "model that is no causal LM": ({"model": "{folder}/t5"}, "t5: Unrecognized configuration class"),
    "cut weights": (
        {"model": "{folder}/cut"},
        "model folder {folder}/cut: Error while deserializing header: incomplete metadata",
    ),
    "no such layer": (
        {"lora": {"targets": ["w_proj"]}},
        "lora.targets: the model has no linear layer named w_proj",
    ),
    "beyond the context": (
        {"sampling": {"max_prompt_tokens": 900}},
        "make 916 tokens; the model takes at most 512",
    ),
    "no such file": ({"environment": {"path": "{folder}/none.jsonl"}}, "none.jsonl' cannot be read"),
    "empty file": (
        {"environment": {"path": "{folder}/empty.jsonl"}},
        "has no rows; every row has 'messages'",
    ),
    "line that is no JSON": (
        {"environment": {"path": "{folder}/broken.jsonl"}},
        "broken.jsonl', line 2: is no JSON: Expecting value at column 12",
    ),
    "row without a prompt": (
        {"environment": {"path": "{folder}/promptless.jsonl"}},
        "promptless.jsonl', line 1: has neither 'messages' nor 'prompt'",
    ),
    "id twice": (
        {"environment": {"path": "{folder}/twice.jsonl"}},
        "twice.jsonl', line 2: has the id 1, which line 1 has too",
    ),
    "prompt too long": (
        {"environment": {"path": "{folder}/long.jsonl"}},
        "1 prompts do not fit sampling.max_prompt_tokens 64 or the chat template: line 2: 2519",
    ),
    "no such module": ({"environment": {"reward": "nowhere:f"}}, "is 'nowhere:f'; importing it failed"),
    "no such function": (
        {"environment": {"reward": "rewards:none"}},
        "has nothing of that name, not a function",
    ),
    "no such parameters": (
        {"environment": {"reward": "rewards:no_fields"}},
        "it cannot be called as reward(completion",
    ),
    "all held out": ({"evaluation": {"prompts": 20}}, "evaluation.prompts: is 20; the environment's"),
    "no such task": (
        {"environment": {"kind": "reasoning-gym", "task": "chain_sun"}},
        "environment.task: no task is named 'chain_sun'; did you mean 'chain_sum'",
    ),
    "adapter of another shape": (
        {"start": {"adapter": "{folder}/adapter"}},
        "start.adapter: {folder}/adapter cannot be gone on with: r is 2, and lora.rank is 4",
    ),
}
"""Changes to a valid spec, and what the job fails with, before its first version; {folder} is the test's."""
