"""For unit tests of programs that enqueue: jobs run at once, without a sidecar.

    with qsidecar.testing.inline() as did:
        sign_up("ada")                                      # enqueues as usual
    assert did.jobs[0].queue == "mail"
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from . import client
from .aio import AsyncClient
from .job import Enqueued, Job, NewJob, dump
from .worker import App, _apps


@dataclass
class Done:
    """An enqueued job and its result."""

    job: Job
    new: NewJob
    ran: bool = False  # an app has a function for its queue
    result: Any = None  # the function's return value, if the queue's results are kept
    error: Optional[BaseException] = None  # the function's exception, also Retry, Snooze and Dead

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self.job.queue

    @property
    def payload(self) -> Any:
        """The payload as a JSON value: see Job.payload."""
        return self.job.payload


class Inline:
    """The enqueued jobs, in order."""

    def __init__(self, apps: Sequence[App], raises: bool) -> None:
        self.jobs: List[Done] = []
        self._apps = apps
        self._raises = raises
        self._keys: Dict[Tuple[str, str], Done] = {}
        self._client = _NoSidecar()
        _NoSidecarForTasks._of(self._client)

    def of(self, queue: str) -> List[Done]:
        """Returns the jobs of one queue."""
        return [done for done in self.jobs if done.queue == queue]

    def _enqueue(self, jobs: Sequence[NewJob]) -> List[Enqueued]:
        return [self._one(job) for job in jobs]

    def _one(self, new: NewJob) -> Enqueued:
        fields = new.fields()  # raises the errors that a sidecar would report
        known = self._keys.get((new.queue, new.key)) if new.key is not None else None
        replaces = new.on_conflict in ("replace", "debounce")
        if known is not None and not (known.ran and (replaces or known.new.key_until == "start")):
            if not replaces:
                return Enqueued(known.job.id, True, "deleted" if known.ran else "ready")
            known.new = new
            known.job.raw = dump(new.payload, new.raw, f"the payload of a job for {new.queue}") or b""
            known.job.headers = fields.get("headers") or {}
            return Enqueued(known.job.id, False, "ready", "replaced")
        number = len(self.jobs) + 1
        job = Job(
            self._client,
            {
                "id": f"inline-{number}",
                "queue": new.queue,
                "lease": f"inline.{number}",
                "payload": dump(new.payload, new.raw, f"the payload of a job for {new.queue}") or b"",
                "attempt": 1,
                "max_attempts": new.max_attempts or 20,
                "fence": number,
                "priority": new.priority,
                "headers": fields.get("headers"),
                "key": new.key,
            },
        )
        done = Done(job, new)
        self.jobs.append(done)
        if new.key is not None:
            self._keys[new.queue, new.key] = done
        app = next((app for app in self._apps or list(_apps) if new.queue in app.jobs), None)
        if app is not None:
            self._run(app, done)
        return Enqueued(job.id)

    def _run(self, app: App, done: Done) -> None:
        done.ran = True
        try:
            done.result = app.perform(done.job)
        except BaseException as e:
            done.error = e
            if self._raises or not isinstance(e, Exception):
                raise
            return
        self._enqueue(done.job._then)


class _NoSidecar(client.Client):
    """Records how a function settles its job."""

    def _call(
        self,
        op: str,
        fields: Dict[str, Any],
        request_timeout: Optional[float],
        wait: float = 0.0,
        claimed: Optional[List[Job]] = None,
        over: Optional[Callable[[], bool]] = None,
    ) -> Dict[str, Any]:
        return {}


class _NoSidecarForTasks(AsyncClient):
    """Does the same for `async def` functions."""

    async def _call(
        self,
        op: str,
        fields: Dict[str, Any],
        request_timeout: Optional[float],
        wait: float = 0.0,
        claimed: Optional[List[Any]] = None,
    ) -> Dict[str, Any]:
        return {}


@contextmanager
def inline(*apps: App, raises: bool = True) -> Iterator[Inline]:
    """While it is active, every enqueue in this process runs its job at once, in the caller's thread.

    That applies to Client, AsyncClient, App and qsidecar.sql. Other calls, such as claim, still need a sidecar. The given apps run the jobs, or all apps if none is given. A job of
    a queue without an app is only recorded. Delays are ignored. An exception of a function is raised by the enqueue
    (raises=False: only recorded).
    """
    did = Inline(apps, raises)
    before, client._inline = client._inline, did._enqueue
    try:
        yield did
    finally:
        client._inline = before
