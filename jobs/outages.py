"""Temporal's errors, as what they mean to people."""

import re

from temporalio.service import RPCError, RPCStatusCode

from .errors import ServiceUnreachable

_OUTAGE = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
_TEXT = re.compile(r'(?:message|error): "([^"]*)"')


def is_outage(error: RPCError) -> bool:
    """Whether the same call may succeed later."""
    return error.status in _OUTAGE


def unreachable(where: str, error: RPCError | RuntimeError) -> ServiceUnreachable:
    """What to raise for an error of Temporal's client.

    Args:
        where: Temporal's address.
        error: a RuntimeError when there was no connection.
    """
    text = error.message if isinstance(error, RPCError) else (_TEXT.findall(str(error)) or [str(error)])[-1]
    return ServiceUnreachable(
        f"Temporal at {where}: {text}. `marlaas status` shows what can be reached, `marlaas up` starts a "
        "stack of one's own",
        may_recover=not isinstance(error, RPCError) or is_outage(error),
    )
