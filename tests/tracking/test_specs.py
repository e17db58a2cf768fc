"""Trackers in a job file."""

from typing import Any

import pytest
from marlaas.schemas.job_spec import InvalidJobSpec, parse_job_spec
from marlaas.tests.noop_activities import job


@pytest.mark.parametrize(
    ("trackers", "problem"),
    [
        (
            [{"kind": "tensorboard"}, {"kind": "tensorboard"}],
            "trackers has a kind twice: tensorboard, tensorboard",
        ),
        ([{"kind": "tensorboard", "folder": "/etc"}], "trackers.0.folder is not a known field"),
        ([{"kind": "mlflow", "experiment": "../other/x"}], "trackers.0.experiment is"),
        ([{"kind": "wandb"}], "trackers.0.project is missing"),
        ([{"kind": "comet"}], "trackers.0.kind is"),
    ],
)
def test_a_wrong_tracker_is_refused_with_its_path(trackers: list[Any], problem: str) -> None:
    with pytest.raises(InvalidJobSpec) as raised:
        parse_job_spec(job("wrong", trackers=trackers))
    assert problem in str(raised.value)


def test_trackers_change_no_digest() -> None:
    tracked = parse_job_spec(job("same", trackers=[{"kind": "tensorboard"}]))
    assert tracked.digest == parse_job_spec(job("same")).digest
