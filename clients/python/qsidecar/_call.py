"""One request that waits for its reply, and when it is sent again."""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Callable, List, Optional

from . import errors
from ._wire import Message

# The pause between two tries to connect, in seconds. The maximum is well below the shortest restart
# grace (1 s).
BACKOFF_FIRST, BACKOFF_MOST = 0.010, 0.4
# How many leases one request can have.
MAX_LIST = 1000

SETTLES = ("ack", "nack")


def backoff(tries: int) -> float:
    """Returns the jittered pause before the n-th try, n from 1, in seconds."""
    longest = min(BACKOFF_FIRST * (1 << min(tries - 1, 10)), BACKOFF_MOST)
    return longest * random.uniform(0.5, 1)


def locked() -> Any:
    """Returns a lock that is released to wake its thread."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Call:
    """A request that waits for its reply. The session's lock guards it after submit."""

    __slots__ = (
        "op", "fields", "id", "latch", "reply", "error", "sent", "resent", "answered", "abandoned", "awaited_by_close", "expired", "rebinds", "until", "ends", "limit", "on_done"
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        fields: Message,
        until: Optional[float] = None,
        ends: Optional[float] = None,
        on_done: Optional[Callable[[Call], None]] = None,
        latch: Any = None,
    ) -> None:
        self.op = op
        self.fields = fields
        self.id = 0
        self.latch = locked() if latch is None else latch  # released once, when there is a result
        self.reply: Message = {}
        self.error: Optional[Exception] = None
        self.sent = False  # sent on the current connection, or being sent
        self.resent = False  # also sent on an earlier connection, which ended without a reply
        self.answered = False  # the latch is released
        self.abandoned = False  # the caller no longer waits for the reply
        self.awaited_by_close = False  # close still waits for the reply
        self.expired = False  # the time of a call without a waiting thread is over
        self.rebinds = False  # the extend that the session sends after a reconnect
        self.until = until  # end of a claim's own wait, by the monotonic clock
        self.ends = ends  # end of the caller's time; None: no limit
        self.limit = 0.0  # the caller's time in seconds, for its error
        # Called with the result, under the session's lock, mostly by the reader. No thread waits for such a call.
        self.on_done = on_done

    def left(self) -> float:
        """Returns the rest of the caller's time as a timeout for a lock."""
        return -1 if self.ends is None else min(max(0.0, self.ends - time.monotonic()), threading.TIMEOUT_MAX)

    def leases(self) -> List[str]:
        many: Optional[List[str]] = self.fields.get("leases")
        if many is not None:
            return many
        one = self.fields.get("lease")
        return [] if one is None else [one]

    def claim(self) -> Optional[Message]:
        """Returns the fields of the claim that it is or, as a settle, carries. None if it claims nothing."""
        return self.fields if self.op == "claim" else self.fields.get("claim") if self.op in SETTLES else None

    def repeatable(self) -> bool:
        """Whether it can be sent again although the sidecar may have carried out the first one."""
        return repeatable(self.op, self.fields)


class Request:
    """A request of a caller over all its tries. It decides whether and when there is another one, and doesn't wait."""

    def __init__(self, op: str, fields: Message, limit: float, wait: float = 0.0, claimed: Optional[List[Any]] = None) -> None:
        if not isinstance(limit, (int, float)):
            raise TypeError(f"request_timeout={limit!r}: pass a number of seconds")
        began = time.monotonic()
        self.op = op
        self._limit = wait + limit
        self.ends = began + self._limit
        self._fields = fields
        self._wait = wait
        self._until = began + wait if wait else None
        self._last = self._until or began + limit  # no try begins after it
        self._claimed = claimed
        self._tries = 0
        self._resent = False

    def call(self, latch: Any = None) -> Call:
        """Returns the next try."""
        call = Call(self.op, self._fields, self._until, self.ends, latch=latch)
        call.resent, call.limit = self._resent, self._limit
        return call

    def pause_after(self, call: Call) -> Optional[float]:
        """Returns the pause after a try that ended, in seconds, or None if it has succeeded. Otherwise raises its error.

        Adds the jobs of a settle's claim to `claimed`.
        """
        error = call.error
        if self._claimed is not None and call.reply.get("jobs"):
            self._claimed += call.reply["jobs"]
            self._fields = {name: value for name, value in self._fields.items() if name != "claim"}
        if error is None:
            return None
        if not transient(self.op, self._fields, error, self._wait):
            raise error
        self._tries += 1
        pause = pause_for(error, self._tries)
        if time.monotonic() + pause > self._last:
            raise error
        self._resent = self._resent or isinstance(error, errors.UnknownOutcome)
        return pause


def transient(op: str, fields: Message, error: Exception, wait: float = 0.0) -> bool:
    """Whether the same request can succeed soon, and whether the client repeats it.

    It does not repeat an enqueue that was not carried out: the caller decides whether to wait for a database.
    """
    if isinstance(error, errors.UnknownOutcome):
        return error.reported and repeatable(op, fields)
    if isinstance(error, (errors.Unavailable, errors.Busy, errors.Draining)):
        return op in ("ack", "nack", "extend", "progress") or (op == "claim" and wait > 0)
    return False


def repeatable(op: str, fields: Message) -> bool:
    if op == "enqueue":
        return all(job.get("key") is not None for job in fields.get("jobs", [fields]))
    if op == "open_batch":
        return fields.get("key") is not None
    # a second reclaim could take back a newer claim, and a second run of a schedule would store another job; the others refer
    # to one connection
    return op not in ("reclaim", "change_schedule", "cancel_claim", "bye")


def pause_for(error: Optional[Exception], tries: int) -> float:
    """Returns the pause that the sidecar asks for, or a back-off, in seconds."""
    asked = getattr(error, "retry_ms", None)
    # At least 20 ms, because the sidecar answered.
    return backoff(tries + 2) if asked is None else asked / 1000


def unanswered(call: Call, why: str) -> errors.Error:
    return errors.UnknownOutcome(f"{call.op}: no answer ({why}); it may or may not have been carried out")
