"""The test suite under a shell that ignores ctrl-C for its background jobs."""

import subprocess
import sys

_CODE = """
import subprocess, sys
import marlaas.tests.conftest
child = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"]
subprocess.run(child, check=True)
"""


def test_what_the_tests_start_can_be_interrupted_even_when_pytest_itself_cannot() -> None:
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", _CODE]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
