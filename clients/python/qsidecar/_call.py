"""A request on its way to an answer, and when it is sent again."""

from __future__ import annotations

import random
import threading
import time
from typing import List, Optional

from . import errors
from ._wire import Message

# The pause between two tries to connect. The most is well under the shortest restart grace, 1 s.
BACKOFF_FIRST, BACKOFF_MOST = 0.010, 0.4
# What one request may name.
MAX_LIST = 1000

SETTLES = ("ack", "nack")


def backoff(tries: int) -> float:
    """The jittered pause before the n-th try, n from 1, in seconds."""
    longest = min(BACKOFF_FIRST * (1 << min(tries - 1, 10)), BACKOFF_MOST)
    return longest * random.uniform(0.5, 1)


class Call:
    """A request on its way to an answer. The session's lock guards it once it is submitted."""

    __slots__ = (
        "op", "fields", "id", "latch", "reply", "error", "sent", "twice", "told", "abandoned", "owed", "binder", "until", "ends"
    )  # fmt: skip

    def __init__(self, op: str, fields: Message, until: Optional[float] = None, ends: Optional[float] = None) -> None:
        self.op = op
        self.fields = fields
        self.id = 0
        self.latch = threading.Lock()  # released once, when there is an answer
        self.latch.acquire()
        self.reply: Message = {}
        self.error: Optional[Exception] = None
        self.sent = False  # on the present connection, or being sent
        self.twice = False  # sent on an earlier connection too, which never answered
        self.told = False  # the latch is released
        self.abandoned = False  # nobody waits for the answer
        self.owed = False  # close waits for the answer all the same
        self.binder = False  # the session's own, after a reconnect
        self.until = until  # a claim's own wait, by the monotonic clock
        self.ends = ends  # when its caller has no more time; None: never

    def left(self) -> float:
        """How long its caller waits yet, as a lock takes it."""
        return -1 if self.ends is None else min(max(0.0, self.ends - time.monotonic()), threading.TIMEOUT_MAX)

    def leases(self) -> List[str]:
        many: Optional[List[str]] = self.fields.get("leases")
        if many is not None:
            return many
        one = self.fields.get("lease")
        return [] if one is None else [one]

    def repeatable(self) -> bool:
        """Whether it may be sent again although the first try may have been carried out."""
        return repeatable(self.op, self.fields)


def repeatable(op: str, fields: Message) -> bool:
    if op == "enqueue":
        return all(job.get("key") is not None for job in fields.get("jobs", [fields]))
    # release could take a newer claim back; the others are of one connection.
    return op not in ("release", "cancel", "bye")


def pause_for(error: Optional[Exception], tries: int) -> float:
    """What the sidecar asks for, or a back-off; in seconds."""
    asked = getattr(error, "retry_ms", None)
    # Not before some 20 ms: these answers come from a sidecar that is there.
    return backoff(tries + 2) if asked is None else asked / 1000


def unanswered(call: Call, why: str, sent: bool = False) -> errors.Error:
    if sent or call.twice:
        return errors.UnknownOutcome(f"{call.op}: no answer ({why}); it may have been carried out and may not")
    return errors.NotConnected(f"{call.op}: not sent ({why})")
