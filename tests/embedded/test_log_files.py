from pathlib import Path

from marlaas.workers.log_files import bound_logs, tail


def test_a_long_log_is_moved_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("a") as writer:
        writer.write("old\n" * 100)
        writer.flush()
        bound_logs(tmp_path, max_bytes=100)
        writer.write("new\n")
    assert log.read_text() == "new\n"
    assert (tmp_path / "server.log.1").read_text() == "old\n" * 100


def test_a_short_log_stays(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("x" * 100)
    bound_logs(tmp_path, max_bytes=100)
    assert [path.name for path in tmp_path.iterdir()] == ["server.log"]


def test_the_tail(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert tail(log) == ""
    log.write_bytes(b"\xff" * 10_000 + b"\n" + "\n".join(map(str, range(20))).encode())
    assert tail(log, lines=3) == "17\n18\n19"
