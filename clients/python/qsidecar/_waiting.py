"""Waits for the ends of jobs, without sending: Client and AsyncClient send the requests."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from .errors import Error
from .job import Enqueued, Seconds, millis

# How long one request waits, in seconds. The sidecar queries the jobs by their ids when a request begins.
PART = 60.0


# How long a call keeps its done job, in seconds: another sidecar's jobs are found within two, and a sidecar can restart.
RETAIN = 60.0


def call_options(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the options of the enqueue of a call."""
    return {"retain": RETAIN, **options}


class EndedJob(NamedTuple):
    """How a job ended.

    state: "done", "dead", or "deleted": the queue has no such job, or not any more. A deleted job can have been done.
    raw: the bytes of its result, or None. last_error: the message of its last failed attempt, or None.
    """

    id: str
    state: str
    raw: Optional[bytes] = None
    last_error: Optional[str] = None

    @property
    def result(self) -> Any:
        """The result as a JSON value, None if there is none. Raises ValueError if the bytes aren't JSON in UTF-8."""
        if not self.raw:
            return None
        try:
            return json.loads(self.raw.decode())
        except (ValueError, RecursionError) as e:
            raise ValueError(f"the result of job {self.id} isn't JSON ({e}); raw has its bytes") from e


class JobFailed(Error):
    """A job that a call waited for is dead, or gone without a result. `job` is how it ended."""

    def __init__(self, queue: str, job: EndedJob) -> None:
        reason = {
            "dead": f"is dead: {job.last_error or 'no attempt has an error'}",
            "deleted": "is gone: it was removed, or it ended through another sidecar and is not kept (retention)",
        }
        super().__init__(f"job {job.id} of {queue} {reason.get(job.state, job.state)}")
        self.job = job


class NotEnded(Error, TimeoutError):
    """A job had not ended when the time of the call was over. It goes on; `job` is what its enqueue returned."""

    def __init__(self, queue: str, job: Enqueued, timeout: Seconds) -> None:
        super().__init__(f"job {job.id} of {queue} has not ended within {timeout} s")
        self.job = job


class Waiting:
    """A wait: the fields of its next request, and what the replies to the others had."""

    def __init__(self, queue: str, ids: Sequence[str], any: bool, wait: Seconds) -> None:
        self._queue, self._left, self._any = queue, list(dict.fromkeys(ids)), any
        self._until = time.monotonic() + millis("wait", wait) / 1000
        self.seconds = 0.0  # that the next request waits
        self.ended: List[EndedJob] = []

    def fields(self) -> Dict[str, Any]:
        self.seconds = min(PART, max(0.0, self._until - time.monotonic()))
        return {"queue": self._queue, "ids": self._left, "mode": "any" if self._any else "all", "wait_ms": int(self.seconds * 1000)}

    def goes_on(self, reply: Dict[str, Any]) -> bool:
        """Adds what a reply has, and returns whether to send another request."""
        some = [EndedJob(e["id"], e["state"], e.get("result"), e.get("last_error")) for e in reply.get("ended", ())]
        self.ended += some
        gone = {e.id for e in some}
        self._left = [id for id in self._left if id not in gone]
        if not self._left or self._any and self.ended:
            return False
        return bool(some) or self.seconds > 0  # with some, others possibly didn't fit the reply


def result_of(queue: str, job: Enqueued, ended: List[EndedJob], timeout: Seconds) -> Any:
    """Returns the result of the only job of a wait."""
    if not ended:
        raise NotEnded(queue, job, timeout)
    if ended[0].state != "done":
        raise JobFailed(queue, ended[0])
    return ended[0].result
