"""What can go wrong: a class for each code of the protocol, and the outcomes that a client knows of.

Everything here is an `Error`. What the sidecar said is a `SidecarError` of the code's own class.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Type


class Error(Exception):
    """Any error of this package."""


class NotConnected(Error, ConnectionError):
    """No sidecar answers on the socket, or the call's time was over before there was one. Nothing was sent."""


class Closed(Error):
    """The client was closed, before the call or while it waited."""


class SettledOrLost(Error):
    """An ack or nack was sent twice, and the second try found the lease not valid.

    The first try settled the job, or the lease had been lost before it. Take it as settled: where
    it was not, the job is delivered again, as after any lost lease. Other leases of the call were settled.
    """

    def __init__(self, op: str, leases: List[str]) -> None:
        super().__init__(
            f"{op}: sent twice, because no answer came to the first try; "
            f"{len(leases)} of its leases were settled by that, or had been lost"
        )
        self.op = op
        self.leases = leases  # not for logs: a lease is the right to settle


class SidecarError(Error):
    """What the sidecar answered. `field` and `index` say where a request is wrong, `retry_ms` when to try again."""

    code = "internal"

    def __init__(
        self,
        message: str,
        code: Optional[str] = None,
        field: Optional[str] = None,
        index: Optional[int] = None,
        retry_ms: Optional[int] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.field = field
        self.index = index
        self.retry_ms = retry_ms

    def __str__(self) -> str:
        where = "".join(
            f", {name} {value}" for name, value in (("field", self.field), ("index", self.index)) if value is not None
        )
        return f"{self.message} ({self.code}{where})"


class BadFrame(SidecarError):
    """The bytes that were sent are no messages: a bug of the client."""

    code = "bad_frame"


class BadRequest(SidecarError):
    """The request is wrong as it stands, or the database refuses it by a rule of its own."""

    code = "bad_request"


class TooLarge(SidecarError):
    """A request, payload or result is over the sidecar's limits. Put the data elsewhere and its address into the job."""

    code = "too_large"


class UnknownOp(SidecarError):
    """The sidecar has no such operation; it may be older than this client."""

    code = "unknown_op"


class UnknownQueue(SidecarError):
    """The sidecar's config names its queues, and this is none of them."""

    code = "unknown_queue"


class Forbidden(SidecarError):
    """This user may not do this, or not to this queue: see `allow` in the sidecar's config."""

    code = "forbidden"


class Unsupported(SidecarError):
    """The sidecar, or this queue's table, cannot do this."""

    code = "unsupported"


class LeaseLost(SidecarError):
    """The lease is not valid any more, and nothing was done: another worker may have the job."""

    code = "lease_lost"


class Busy(SidecarError):
    """Too many claims of this connection wait."""

    code = "busy"


class Draining(SidecarError):
    """The sidecar is about to stop and gives out no more jobs."""

    code = "draining"


class Unavailable(SidecarError):
    """The database cannot be reached or written just now. Nothing was written; `retry_ms` says when to try."""

    code = "unavailable"


class UnknownOutcome(SidecarError):
    """It may have been done and may not: the answer did not come, or the database's did not.

    It is raised for what must not be sent twice: an enqueue without a key. `told` says that the sidecar
    answered so, as its database's connection broke inside a commit; else its answer is what did not come.
    """

    code = "unknown_outcome"
    told = False


class Internal(SidecarError):
    """An error that the sidecar has no name for (its log says more), or a code that this client does not know."""

    code = "internal"


_classes: Dict[str, Type[SidecarError]] = {c.code: c for c in SidecarError.__subclasses__()}


def from_wire(fields: Dict[str, Any]) -> SidecarError:
    """The error of a reply, by its code. `fields` is the map that stands in the reply."""
    code = str(fields.get("code", "internal"))
    error = _classes.get(code, Internal)(
        str(fields.get("message", "")), code, fields.get("field"), fields.get("index"), fields.get("retry_ms")
    )
    if isinstance(error, UnknownOutcome):
        error.told = True
    return error
