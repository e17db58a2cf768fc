"""The environment variables of children that run what tenants wrote."""

import os
from collections.abc import Iterable

_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
)


def tenant_variables() -> dict[str, str]:
    """Few variables of this process, none that could hold its credentials, and some fixed ones.

    The hash seed makes sets iterate alike in every child; one thread keeps children from crowding
    each other; each allocation arena reserves 64 MiB of the address space, which is limited.
    """
    return {
        **named_variables(_PASSED_ON),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }


def named_variables(names: Iterable[str]) -> dict[str, str]:
    """Those of the named variables that this process has."""
    return {name: os.environ[name] for name in names if name in os.environ}
