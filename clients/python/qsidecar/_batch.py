"""Batches of jobs."""

from __future__ import annotations

import time
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

from .job import NewJob, Seconds, millis

PART = 60.0  # seconds that one request of a wait lasts at most

Callback = Union[str, Tuple[str, Any], NewJob]


class EndedBatch(NamedTuple):
    """A batch, and how many of its jobs were done and failed if it has ended.

    state: open, closed, ended, cancelling or cancelled. callback: the id of the callback's job if it is stored.
    """

    id: str
    state: str
    done: int = 0
    failed: int = 0
    callback: Optional[str] = None


def open_fields(on_success: Optional[Callback], on_finish: Optional[Callback], key: Optional[str], of: Optional[str]) -> Dict[str, Any]:
    """Returns the fields of open_batch. Raises ValueError and TypeError like NewJob."""
    if (on_success is None) == (on_finish is None):
        raise ValueError("a batch needs on_success or on_finish: the callback, as a queue and a payload")
    callback = on_finish if on_success is None else on_success
    if isinstance(callback, NewJob):
        job = callback
    elif isinstance(callback, str):
        job = NewJob(callback)
    elif isinstance(callback, tuple) and len(callback) == 2:
        job = NewJob(*callback)
    else:
        raise TypeError(f"the callback {callback!r}: pass a queue, a queue and a payload, or a NewJob")
    if job.key is not None or job.delay is not None or job.run_at is not None or job.batch is not None:
        raise ValueError("the callback of a batch has no key, delay, run_at or batch: leave them out")
    fields = {**job.fields(), "on": "finish" if on_success is None else "success", "key": key, "batch": of}
    return {name: value for name, value in fields.items() if value is not None}


class BatchWait:
    """A wait for a batch: the fields of its next request, and what the last reply had."""

    def __init__(self, queue: str, id: str, wait: Seconds) -> None:
        self._queue, self._id = queue, id
        self._until = time.monotonic() + millis("wait", wait) / 1000
        self.seconds = 0.0  # that the next request waits
        self.batch = EndedBatch(id, "open")

    def fields(self) -> Dict[str, Any]:
        self.seconds = min(PART, max(0.0, self._until - time.monotonic()))
        return {"queue": self._queue, "batch": self._id, "wait_ms": int(self.seconds * 1000)}

    def goes_on(self, reply: Dict[str, Any]) -> bool:
        """Notes what a reply has, and returns whether to send another request."""
        b = reply["batch"]
        self.batch = EndedBatch(b["id"], b["state"], b.get("done", 0), b.get("failed", 0), b.get("callback"))
        return self.batch.state not in ("ended", "cancelled") and self.seconds > 0
