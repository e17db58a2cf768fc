"""Identities of processes: a pid together with when its process began.

A reused pid never passes for the process that once had it. The start is counted in the kernel's ticks
since a named boot, so that a step of the system clock, or a virtual machine that was suspended, makes
no process a stranger.
"""

import os
import signal
import time
from pathlib import Path
from typing import Self

from ..schemas.contract import Contract

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessIdentity(Contract):
    """One process of this machine.

    Attributes:
        boot: id of the boot that it runs in.
        ticks: of the kernel's clock from that boot to the start of the process.
    """

    pid: int
    boot: str
    ticks: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Who has a pid now; None when nobody has, or a process that has ended and awaits its parent."""
        try:
            # The name, in parentheses, may hold spaces and parentheses itself.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, ticks = fields[0], int(fields[19])
        return None if state in "ZX" else cls(pid=pid, boot=_BOOT_ID.read_text().strip(), ticks=ticks)

    def is_alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def age(self) -> float:
        """Seconds since its start."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.ticks / os.sysconf("SC_CLK_TCK")

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal to this process and to no other; False when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def ends_within(self, seconds: float) -> bool:
        """Waits for its end; False when it is still alive after `seconds`. Blocks."""
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True
