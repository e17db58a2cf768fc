"""Turns into another program that the kernel kills when its parent ends, however that ends.

Run as a script, without the package: `python -I -S die_with_parent.py PARENT PROGRAM ARGUMENT…`, PARENT
being the parent's pid. A script, because code between fork and exec is not safe in a parent with threads.
The kernel watches the parent's *thread* that forked, so that must be one that lives as long as the parent.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"the parent {parent} has ended already")
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]} cannot be run: {error}")


if __name__ == "__main__":
    main()
