"""Event files of which a killed process wrote any number of bytes."""

from pathlib import Path

import pytest
from marlaas.schemas.tracker_calls import Position
from marlaas.tests.tracking.readers import tensorboard_points
from marlaas.tests.tracking.writer import row
from marlaas.tracking import tensorboard_files
from marlaas.tracking.tensorboard_files import TensorBoardFiles


def test_a_file_that_ends_at_any_byte_is_gone_on_with(tmp_path: Path) -> None:
    rows = [row(version, "step") for version in (1, 2, 3)]
    TensorBoardFiles(tmp_path).append(rows, final=False)
    (path,) = (tmp_path / "step").iterdir()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        files = TensorBoardFiles(tmp_path)
        files.append(rows[files.position().step :], final=False)
        assert path.read_bytes() == whole


def test_bytes_that_a_crashed_machine_left_are_cut_off(tmp_path: Path) -> None:
    TensorBoardFiles(tmp_path).append([row(1, "step")], final=False)
    (path,) = (tmp_path / "step").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(200))
    assert TensorBoardFiles(tmp_path).position() == Position(step=1)
    TensorBoardFiles(tmp_path).append([row(2, "step")], final=False)
    assert path.read_bytes().startswith(whole)
    assert sorted({step for _, step in tensorboard_points(tmp_path)}) == [1, 2]


def test_a_long_job_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard_files, "_ROWS", 3)
    for version in range(1, 9):
        files = TensorBoardFiles(tmp_path)
        assert files.position().step == version - 1
        files.append([row(version, "step")], final=False)
    assert len(list((tmp_path / "step").iterdir())) == 3
    points = tensorboard_points(tmp_path)
    assert points == {
        **{("reward/mean", version): [version / 8] for version in range(1, 9)},
        **{("reward/mean_2", version): [-version / 4] for version in range(1, 9)},
    }


def test_a_new_file_without_a_row_hides_no_row(tmp_path: Path) -> None:
    TensorBoardFiles(tmp_path).append([row(5, "evaluation")], final=False)
    (tmp_path / "evaluation" / "events.out.tfevents.0000010006.marlaas").write_bytes(b"\x18")
    assert TensorBoardFiles(tmp_path).position() == Position(evaluation=5)
