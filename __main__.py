"""The program `marlaas`, also as `python -m marlaas`: ctrl-C ends it quietly from its first moment on."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line of this process and ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until a command begins its work there are only imports, which take a second, to interrupt.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main

    main()


if __name__ == "__main__":
    main()
