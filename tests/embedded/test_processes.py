import os
import shutil
import signal
import subprocess
from pathlib import Path

from marlaas.workers.processes import ProcessIdentity


def test_a_process_is_known_by_its_start_too(tmp_path: Path) -> None:
    # A name that looks like the fields after it.
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "a) Z 1 (b")
    with subprocess.Popen([program, "1000"]) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        assert identity.is_alive()
        assert ProcessIdentity.of(os.getpid()) != identity
        assert identity.age() >= 0
        earlier = identity.model_copy(update={"ticks": identity.ticks - 1})
        rebooted = identity.model_copy(update={"boot": "another"})
        for stranger in (earlier, rebooted):
            assert not stranger.is_alive()
            assert not stranger.send(signal.SIGKILL)
        assert not identity.ends_within(0.1)
        assert identity.send(signal.SIGKILL)
        # Not yet reaped, and dead.
        assert identity.ends_within(10)
        assert not identity.send(signal.SIGKILL)
    assert ProcessIdentity.of(process.pid) is None
