"""The errors of this package: one class for each code of the protocol, and the client's own.

Every class is an `Error`. An error that the sidecar reported is a `SidecarError` of the class for its code.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Type


class Error(Exception):
    """Any error of this package."""


class NotConnected(Error, ConnectionError):
    """No sidecar answered on the socket within the call's time. Nothing was sent."""


class Closed(Error):
    """The client was closed, before or during the call."""


class Reentrant(Error):
    """The call would wait for itself. Nothing was sent.

    A signal handler, a finalizer such as `__del__`, or a hook of the interpreter made it. That interrupted another call
    of this client in the same thread, or the thread that reads the client's replies. Hand the data to a thread, with
    `queue.SimpleQueue.put` for example, and make the call there.
    """


class WrongLoop(Error):
    """An AsyncClient was used in another event loop than before, or after a fork. Nothing was sent.

    It belongs to the loop of its first call. Each loop, and so each thread and each process, needs its own AsyncClient.
    """


class SettledOrLost(Error):
    """An ack or nack was sent twice, and the lease was invalid the second time.

    Either the first request settled the job, or the lease was lost before. Treat the job as settled: if it was not,
    it is delivered again, as after any lost lease. Other leases of the call were settled.
    """

    def __init__(self, op: str, leases: List[str]) -> None:
        super().__init__(
            f"{op}: sent twice, because no answer came to the first try; "
            f"{len(leases)} of its leases were settled by that, or had been lost"
        )
        self.op = op
        self.leases = leases  # do not log them: a lease is the right to settle


class SidecarError(Error):
    """An error that the sidecar reported. `field` and `index` locate a wrong value, `retry_ms` is when to try again."""

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
    """The sidecar could not parse the bytes that were sent. This is a bug of the client."""

    code = "bad_frame"


class BadRequest(SidecarError):
    """The request is invalid, or a rule of the database rejects it."""

    code = "bad_request"


class TooLarge(SidecarError):
    """A request, payload or result exceeds the sidecar's limits. Store the data elsewhere and its address in the job."""

    code = "too_large"


class UnknownOp(SidecarError):
    """The sidecar does not support the operation. It is possibly older than this client."""

    code = "unknown_op"


class UnknownQueue(SidecarError):
    """The sidecar's config lists its queues, and this queue is not one of them."""

    code = "unknown_queue"


class Forbidden(SidecarError):
    """This user is not permitted to do this, or not on this queue: see `allow` in the sidecar's config."""

    code = "forbidden"


class Unsupported(SidecarError):
    """The sidecar, or this queue's table, can't do this."""

    code = "unsupported"


class LeaseLost(SidecarError):
    """The lease is no longer valid, and nothing changed. Another worker possibly has the job."""

    code = "lease_lost"


class Cancelled(LeaseLost):
    """The job was cancelled while it ran: stop the work. Job.checkpoint raises it. Nothing changes the job any more."""


class Busy(SidecarError):
    """Too many claims of this connection are waiting."""

    code = "busy"


class Draining(SidecarError):
    """The sidecar is about to stop and delivers no more jobs."""

    code = "draining"


class Unavailable(SidecarError):
    """The sidecar can't reach or write the database now. Nothing was written. `retry_ms` is when to try again."""

    code = "unavailable"


class UnknownOutcome(SidecarError):
    """The request may or may not have been carried out: a reply did not arrive.

    It is raised for requests that must not be sent twice, such as an enqueue without a key. `reported` is true if the
    sidecar replied unknown_outcome, because its connection to the database broke during a commit. It is false if the
    sidecar's reply did not arrive.
    """

    code = "unknown_outcome"
    reported = False


class Internal(SidecarError):
    """An error without a more specific code (see the sidecar's log), or a code that this client does not support."""

    code = "internal"


_classes: Dict[str, Type[SidecarError]] = {c.code: c for c in SidecarError.__subclasses__()}


def from_wire(fields: Dict[str, Any]) -> SidecarError:
    """Returns the exception for the map `error` of a reply."""
    code = str(fields.get("code", "internal"))
    error = _classes.get(code, Internal)(
        str(fields.get("message", "")), code, fields.get("field"), fields.get("index"), fields.get("retry_ms")
    )
    if isinstance(error, UnknownOutcome):
        error.reported = True
    return error
