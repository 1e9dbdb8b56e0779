"""The client: one connection to the sidecar for all threads of a process."""

from __future__ import annotations

import _thread
import functools
import os
import sys
import time
import weakref
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Type, TypeVar, Union

from . import errors
from ._batch import BatchWait, Callback, EndedBatch, open_fields
from ._call import MAX_LIST, Call, Request, locked
from ._session import Session
from ._waiting import EndedJob, Waiting, call_options, result_of
from .job import BaseJob, Enqueued, Job, NewJob, Seconds, millis, nack_fields

if TYPE_CHECKING:
    from .aio import AsyncClient

AnyJob = TypeVar("AnyJob", bound=BaseJob)

# Replaces the sidecar in tests: set by qsidecar.testing.inline.
_inline: Optional[Callable[[Sequence[NewJob]], List[Enqueued]]] = None

# Default time limits of a call, in seconds. An enqueue is short, because a producer with a user at
# the other end must not wait for a sidecar that is down. A worker with a finished job must wait.
ENQUEUE_TIME, REQUEST_TIME = 2.0, 60.0
# How long close waits for replies.
CLOSE_TIME = 10.0

# How a claim chooses between its queues.
ORDERS = ("strict", "rotate")

# The largest weight of a queue.
MAX_WEIGHT = 1000


class Client:
    """One connection to a sidecar, which reconnects if it breaks. All threads of a process can use it at once.

    Signal handlers, finalizers and log handlers can use it, too. A call that would wait for itself raises Reentrant.

    It connects at its first call and raises that call's error if it can't. Later it reconnects by itself, keeps the
    leases that it holds, and repeats unanswered requests if that is safe. After a fork the child has its own
    connection and holds no jobs.

        with Client() as client:
            client.enqueue("mail", {"to": "ada"})

    socket: the path of the sidecar's socket. None means QSIDECAR_SOCKET, or else the first of
    $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock, $XDG_STATE_HOME/qsidecar/qsidecar.sock (default: ~/.local/state; not for
    root) and /run/qsidecar/qsidecar.sock on which a sidecar listens. Root skips a runtime directory of another user.
    worker: a name of at most 128 bytes, which is stored with claims, for people.
    codec: "json" or "msgpack". None means msgpack if it is installed.
    request_timeout: the time limit of a call in seconds, not counting a claim's own wait.
    Within it, the call waits for a sidecar that is down, and is repeated if the sidecar
    can't carry it out. None means one minute, and for an enqueue the number of seconds in
    QSIDECAR_ENQUEUE_TIMEOUT, or else 2.
    on_lost: called with held jobs whose leases are lost (see Job.lost). on_draining: called
    if the sidecar is about to stop. Both run in their own thread, one at a time, and can use
    the client.
    """

    def __init__(
        self,
        socket: Optional[str] = None,
        *,
        worker: Optional[str] = None,
        codec: Optional[str] = None,
        request_timeout: Optional[float] = None,
        on_lost: Optional[Callable[[List[Job]], None]] = None,
        on_draining: Optional[Callable[[], None]] = None,
    ) -> None:
        if request_timeout is not None and not (isinstance(request_timeout, (int, float)) and request_timeout >= 0):
            raise ValueError(f"request_timeout={request_timeout!r}: pass a number of seconds, 0 or more")
        self._socket = socket
        self._worker = worker
        self._codec = codec
        self._request_timeout = request_timeout
        self._job: Type[BaseJob] = Job
        self._face: Optional[AsyncClient] = None  # the face of this client for an event loop
        self._callbacks = on_lost, on_draining
        self._session = self._new_session()
        _clients.add(self)

    def _new_session(self) -> Session:
        on_lost, on_draining = self._callbacks
        return Session(
            self._socket,
            self._worker,
            self._codec,
            lambda fields: self._job(self, fields),
            functools.partial(_lost, on_lost),
            on_draining or (lambda: None),
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    # --- producing ---

    def enqueue(
        self,
        queue: str,
        payload: Any = None,
        *,
        raw: Optional[bytes] = None,
        priority: int = 0,
        delay: Optional[Seconds] = None,
        run_at: Union[datetime, float, int, None] = None,
        key: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
        max_attempts: Optional[int] = None,
        timeout: Optional[Seconds] = None,
        group: Optional[str] = None,
        batch: Optional[str] = None,
        start_before: Union[datetime, float, int, None] = None,
        start_within: Optional[Seconds] = None,
        on_expiry: Optional[str] = None,
        retain: Optional[Seconds] = None,
        key_until: Optional[str] = None,
        on_conflict: Optional[str] = None,
        debounce_max: Optional[Seconds] = None,
        request_timeout: Optional[float] = None,
    ) -> Enqueued:
        """Stores a job and returns when it is durable. The options are those of NewJob.

        Raises UnknownOutcome if the reply was lost and the job has no key: it may have been stored. With a key the
        client repeats the enqueue. Raises Unavailable if the database is unavailable: nothing was stored.
        request_timeout is the time limit of this call.
        """
        expiry = start_before, start_within, on_expiry
        unique = key_until, on_conflict, debounce_max
        job = NewJob(queue, payload, raw, priority, delay, run_at, key, headers, max_attempts, timeout, group, batch, *expiry, retain, *unique)
        if _inline is not None:
            return _inline([job])[0]
        return Enqueued.of(self._call("enqueue", job.fields(), request_timeout)["job"])

    def enqueue_many(self, jobs: Iterable[NewJob], *, request_timeout: Optional[float] = None) -> List[Enqueued]:
        """Stores up to 1,000 jobs in one transaction: all or none."""
        jobs = job_list(jobs)
        if not jobs:
            return []
        fields = many_fields(jobs)
        if _inline is not None:
            return _inline(jobs)
        reply = self._call("enqueue", fields, request_timeout)
        return [Enqueued.of(e) for e in reply["jobs"]]

    def schedule(
        self,
        name: str,
        cron: Optional[str] = None,
        *,
        queue: str,
        every: Optional[Seconds] = None,
        tz: Optional[str] = None,
        payload: Any = None,
        raw: Optional[bytes] = None,
        splay: Optional[Seconds] = None,
        priority: int = 0,
        headers: Optional[Mapping[str, str]] = None,
        missed: Optional[str] = None,
        overlap: Optional[str] = None,
        source: Optional[str] = None,
        version: Optional[int] = None,
        request_timeout: Optional[float] = None,
    ) -> str:
        """Declares a schedule, which stores a job at each of its times, over all hosts.

        cron (five fields, or @daily and the like, in the time zone tz) or every (seconds) are its times: see PROTOCOL.md. Returns
        "created", "updated", "unchanged", or "ignored" if the database has a higher version. A call with the same values
        changes nothing, so each start of a program can make it.
        """
        fields = schedule_fields(
            name, cron, queue, every, tz, payload, raw, splay, priority, headers, missed, overlap, source, version
        )
        return str(self._call("schedule", fields, request_timeout)["declared"]["outcome"])

    def batch(
        self,
        *,
        on_success: Optional[Callback] = None,
        on_finish: Optional[Callback] = None,
        key: Optional[str] = None,
        of: Optional[str] = None,
        request_timeout: Optional[float] = None,
    ) -> Batch:
        """Opens a batch of jobs. When they have ended, the callback is stored, exactly once over all hosts.

            with client.batch(on_success=("report", {"day": 7})) as batch:
                batch.enqueue("thumbnails", {"image": 17})

        The callback is a queue, a queue and a payload, or a NewJob: on_success is stored when all jobs are done, on_finish when all
        have ended. The end of the `with` closes the batch. An exception in it leaves the batch open. key: a second batch of the
        callback's queue with it is this one. of: the id of the batch of which the callback is a job.
        """
        fields = open_fields(on_success, on_finish, key, of)
        return Batch(self, fields["queue"], self._call("open_batch", fields, request_timeout)["batch"]["id"])

    def wait(
        self,
        queue: str,
        *ids: str,
        any: bool = False,
        wait: Seconds = 60,
        request_timeout: Optional[float] = None,
    ) -> List[EndedJob]:
        """Waits until the jobs have ended, or with any one of them, and returns those that have, also if the time is over.

        wait: how long, in seconds, up to an hour. A job that its queue doesn't keep has a result only if it ended through
        this client's sidecar.
        """
        waiting = Waiting(queue, ids, any, wait)
        while waiting.goes_on(self._call("wait", waiting.fields(), request_timeout, waiting.seconds)):
            pass
        return waiting.ended

    def call(self, queue: str, payload: Any = None, *, wait: Seconds = 60, **options: Any) -> Any:
        """Stores a job, waits until it has ended, and returns its result.

        options: those of enqueue. The done job is kept for a minute at least (retain), so that its result also arrives from another
        host. Raises JobFailed if the job is dead or gone, and NotEnded, a TimeoutError, if it has not ended
        after `wait` seconds.
        """
        try:
            job = self.enqueue(queue, payload, **call_options(options))
        except errors.Unsupported:
            if "retain" in options:
                raise
            job = self.enqueue(queue, payload, **options)  # its result only arrives if it ends through this client's sidecar
        return result_of(queue, job, self.wait(queue, job.id, wait=wait), wait)

    def job(self, id: str) -> Optional[Dict[str, Any]]:
        """Returns the job with the id, of any queue, with the fields that peek shows (PROTOCOL.md), or None if there is none."""
        jobs: List[Dict[str, Any]] = self._call("peek", {"ids": [id]}, None)["jobs"]
        return jobs[0] if jobs else None

    # --- working ---

    def claim(
        self,
        *queues: str,
        max: int = 1,
        wait: Seconds = 0,
        lease: Optional[Seconds] = None,
        order: str = "strict",
        weights: Optional[Mapping[str, int]] = None,
        request_timeout: Optional[float] = None,
    ) -> List[Job]:
        """Claims up to max ready jobs (1 to 1,000) of the queues.

        wait: how long to wait for the first job, in seconds, up to an hour. If none becomes ready, the list is
        empty. This client holds the jobs until they are settled or it ends. With lease, it holds them for that long
        (1 s to 24 h), even if the client ends. order: "strict" claims from a queue only if those before it are empty;
        with "rotate" the queues take turns. weights: how many turns a queue has where the others have one, as
        {"mail": 3}, with "rotate" only.
        """
        fields = claim_fields(queues, max, wait, lease, order, weights)
        jobs: List[Job] = self._call("claim", fields, request_timeout, fields.get("wait_ms", 0) / 1000)["jobs"]
        return jobs

    def ack_many(self, jobs: Iterable[Job], *, request_timeout: Optional[float] = None) -> List[Job]:
        """Settles up to 1,000 jobs as done. Returns the jobs whose leases were lost. The others are settled."""
        return self._settle_many("ack", list(jobs), {}, request_timeout)

    def nack_many(
        self,
        jobs: Iterable[Job],
        error: str = "",
        *,
        delay: Optional[Seconds] = None,
        dead: bool = False,
        snooze: bool = False,
        request_timeout: Optional[float] = None,
    ) -> List[Job]:
        """Settles up to 1,000 jobs as failed, like Job.nack. Returns the jobs whose leases were lost."""
        return self._settle_many("nack", list(jobs), nack_fields(error, delay, dead, snooze), request_timeout)

    def _settle_many(
        self, op: str, jobs: List[Job], fields: Dict[str, Any], request_timeout: Optional[float]
    ) -> List[Job]:
        if not jobs:
            return []
        return lost_of(jobs, self._call(op, {"leases": leases_of(jobs), **fields}, request_timeout))

    def cancel_claims(self) -> None:
        """Ends the waiting claims of all threads. They return the jobs they have, if any."""
        self._session.reject_reentrant("cancel_claim")
        self._session.end_claims(None, time.monotonic() + self._time_limit("cancel_claim"))

    # --- the rest ---

    def stats(self, queue: Optional[str] = None) -> List[Dict[str, Any]]:
        """Returns the number of jobs in each state, for one queue or for all: see PROTOCOL.md."""
        queues: List[Dict[str, Any]] = self._call("stats", stats_fields(queue), None)["queues"]
        return queues

    def limit(
        self,
        queue: str,
        *,
        max_claimed: Optional[int] = None,
        rate: Union[str, int, None] = None,
        burst: Optional[int] = None,
        group_limit: Optional[int] = None,
        group_on_failure: Optional[str] = None,
        group_ready: Optional[int] = None,
        none: bool = False,
    ) -> None:
        """Changes the limits of a queue, on all hosts together. A limit that is left out stays as it is; 0 removes one.

        max_claimed: how many jobs can be claimed at a time. rate: how many can start in a time, as "100/s", "30/m" or
        "5/h". burst: how many can start at once after a pause. group_limit: how many jobs of a group can be claimed at a
        time; 0: one. group_on_failure: "hold" (a failed job keeps its slot of the group during its back-off, the default) or
        "skip". group_ready: how many jobs of a group can be ready at a time, besides the claimed ones, so that groups take
        turns. none: first remove all limits.
        """
        self._call("limit", limit_fields(queue, max_claimed, rate, burst, group_limit, group_on_failure, group_ready, none), None)

    def ping(self) -> None:
        """Checks that the sidecar answers. It does not check the database."""
        self._call("ping", {}, None)

    def cancel(self, queue: str, *ids: str, key: Optional[str] = None, delete: bool = False) -> int:
        """Ends jobs that wait or run: those with the ids, or the one that has the key. Returns how many are cancelled now.

        They are dead, or removed with delete. A repeated call returns the same number, except with delete. A running
        job learns it by Job.cancelled; an `async def` job's task is cancelled.
        """
        count: int = self._call("cancel", cancel_fields(queue, ids, key, delete), None)["count"]
        return count

    def request(self, op: str, **fields: Any) -> Dict[str, Any]:
        """Sends any other operation of PROTOCOL.md with its fields, and returns the fields of the reply."""
        check_request(op, fields)
        return self._call(op, fields, None)

    def _call(
        self,
        op: str,
        fields: Dict[str, Any],
        request_timeout: Optional[float],
        wait: float = 0.0,
        claimed: Optional[List[Job]] = None,
        over: Optional[Callable[[], bool]] = None,
    ) -> Dict[str, Any]:
        """Sends a request, and repeats it after transient errors. Adds the jobs of a settle's claim to claimed.

        It asks over, if given, from time to time whether the caller's time is over.
        """
        request = self._request(op, fields, request_timeout, wait, claimed)
        session = self._session
        session.reject_reentrant(op)
        if not session.started:
            with explaining_inline(op):
                session.start(request.ends)
        while True:
            call = request.call()
            session.submit(call)
            session.wait(call, over)
            pause = request.pause_after(call)
            if pause is None:
                return call.reply
            if over is not None and over():
                raise call.error or errors.Unavailable(f"{op}: no answer in time")
            latch = locked()
            with session.pausing(call, latch):
                ended = latch.acquire(timeout=pause)
            if ended:
                return {"jobs": []}

    def _request(
        self,
        op: str,
        fields: Dict[str, Any],
        request_timeout: Optional[float],
        wait: float = 0.0,
        claimed: Optional[List[Job]] = None,
    ) -> Request:
        return Request(op, fields, self._time_limit(op) if request_timeout is None else request_timeout, wait, claimed)

    def _time_limit(self, op: str) -> float:
        if self._request_timeout is not None:
            return self._request_timeout
        return _enqueue_time() if op == "enqueue" else REQUEST_TIME

    def disconnect(self) -> None:
        """Closes the connection like close. The next call opens a new one."""
        self.close()
        self._session = self._new_session()

    def close(self) -> None:
        """Closes the client: waits for settles, and returns its jobs without using up an attempt.

        Calls of other threads end with Closed. If the sidecar is down, close tries for ten seconds. A signal handler or
        finalizer that interrupted this client can't wait: then close returns at once, and a thread does this.
        """
        session = self._session
        if sys.is_finalizing():
            return  # the process ends, and the system closes the connection
        if session.reentrant():
            _thread.start_new_thread(self._close, (session,))  # threading.Thread.start takes a lock of its own
        else:
            self._close(session)

    def _close(self, session: Session) -> None:
        with session.lock:
            if session.closing:
                return
            session.closing = True
        try:
            self._return_jobs(session, time.monotonic() + CLOSE_TIME)
        finally:
            session.end()

    def _return_jobs(self, session: Session, deadline: float) -> None:
        session.end_claims(errors.Closed("the client is closed"), deadline)
        session.wait_settled(deadline)
        with session.lock:
            leases = list(session.leases.held)
            wire = session.wire
            bound = wire is not None and not session.leases.unbound(wire.number)
        if not leases:
            return
        if bound:  # bye keeps the jobs' positions, but it applies to one connection
            call = Call("bye", {}, ends=deadline)
            try:
                session.submit(call, internal=True, on=wire)
                session.wait(call)
            except errors.NotConnected as e:  # the connection has ended since
                call.error = e
            if call.error is None:
                return
        for i in range(0, len(leases), MAX_LIST):
            fields = {"leases": leases[i : i + MAX_LIST], "snooze": True, "delay_ms": 0}
            call = Call("nack", fields, ends=deadline)
            session.submit(call, internal=True)
            session.wait(call)


@contextmanager
def explaining_inline(op: str) -> Iterator[None]:
    """Is around the first connection. It adds to an error that the test mode doesn't replace the sidecar for this call."""
    try:
        yield
    except errors.NotConnected as e:
        if _inline is None:
            raise
        raise errors.NotConnected(f"{op}: qsidecar.testing.inline covers enqueue only; {e}") from e


def job_list(jobs: Iterable[NewJob]) -> List[NewJob]:
    """Returns the jobs as a list. One NewJob is a tuple, so its values would be taken for jobs."""
    if isinstance(jobs, NewJob):
        raise TypeError("pass a list of jobs, as in [NewJob(queue, payload)], not one job")
    return list(jobs)


def many_fields(jobs: Sequence[NewJob]) -> Dict[str, Any]:
    if len(jobs) > MAX_LIST:
        raise ValueError(f"{len(jobs)} jobs: one transaction takes {MAX_LIST} at most")
    for i, job in enumerate(jobs):
        if not isinstance(job, NewJob):
            raise TypeError(f"job {i} is of the type {type(job).__name__}: pass NewJob(queue, payload)")
    return {"jobs": [job.fields() for job in jobs]}


def leases_of(jobs: Sequence[AnyJob]) -> List[str]:
    for job in jobs:
        if not hasattr(job, "lease"):
            raise TypeError(f"{job!r} is no job: pass jobs that were claimed")
    return [job.lease for job in jobs]


def claim_fields(
    queues: Sequence[str], max: int, wait: Seconds, lease: Optional[Seconds], order: str, weights: Optional[Mapping[str, int]]
) -> Dict[str, Any]:
    for queue in queues:
        if not isinstance(queue, str):
            raise TypeError(f"claim: {queue!r} isn't the name of a queue: pass each name as an argument, as in claim(\"mail\", \"api\")")
    fields: Dict[str, Any] = {"queue": queues[0]} if len(queues) == 1 else {"queues": list(queues)}
    if max != 1:
        fields["max"] = max
    wait_ms = millis("wait", wait)
    if wait_ms:
        fields["wait_ms"] = wait_ms
    if lease is not None:
        fields["lease_ms"] = millis("lease", lease)
    return {**fields, **order_fields(queues, order, weights)}


def order_fields(queues: Sequence[str], order: str, weights: Optional[Mapping[str, int]]) -> Dict[str, Any]:
    """Returns the order of a claim, and the weights. Those of a single queue have no meaning."""
    check_order(order)
    if not weights:
        return {"order": order} if order == "rotate" and len(queues) > 1 else {}
    if order != "rotate":
        raise ValueError('weights need order="rotate": with "strict", the first queue comes first')
    for name, weight in weights.items():
        if name not in queues:
            raise ValueError(f"weights has the queue {name!r}, which isn't one of {', '.join(queues)}")
        if not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
            raise ValueError(f"the weight of {name!r} is {weight!r}, must be an integer from 1 to {MAX_WEIGHT}")
    return {"order": order, "weights": dict(weights)} if len(queues) > 1 else {}


def lost_of(jobs: Sequence[AnyJob], reply: Mapping[str, Any]) -> List[AnyJob]:
    """Returns the jobs that a reply to a settle reports as lost."""
    lost = reply.get("lost") or []
    return [job for job in jobs if job.lease in lost]


class Batch:
    """A batch of jobs, which Client.batch opened. id is its id."""

    def __init__(self, client: Client, queue: str, id: str) -> None:
        self._client, self._queue, self.id = client, queue, id

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if error is None:
            self.close()

    def enqueue(self, queue: str, payload: Any = None, **options: Any) -> Enqueued:
        """Stores a job of the batch. The options are those of Client.enqueue."""
        return self._client.enqueue(queue, payload, batch=self.id, **options)

    def enqueue_many(self, jobs: Iterable[NewJob], *, request_timeout: Optional[float] = None) -> List[Enqueued]:
        """Stores up to 1,000 jobs of the batch in one transaction: all or none."""
        return self._client.enqueue_many((job._replace(batch=self.id) for job in jobs), request_timeout=request_timeout)

    def close(self, *, request_timeout: Optional[float] = None) -> None:
        """Closes the batch: it ends when its jobs have ended. A second call does nothing."""
        self._client._call("close_batch", {"queue": self._queue, "batch": self.id}, request_timeout)

    def cancel(self, *, request_timeout: Optional[float] = None) -> int:
        """Cancels the jobs of the batch, which ends without its callback. Returns how many jobs."""
        return int(self._client._call("cancel_batch", {"queue": self._queue, "batch": self.id}, request_timeout)["count"])

    def wait(self, wait: Seconds = 60, *, request_timeout: Optional[float] = None) -> EndedBatch:
        """Waits until the batch has ended, for that many seconds, up to an hour, and returns it, also if the time is over."""
        waiting = BatchWait(self._queue, self.id, wait)
        while waiting.goes_on(self._client._call("wait", waiting.fields(), request_timeout, waiting.seconds)):
            pass
        return waiting.batch


def schedule_fields(
    name: str,
    cron: Optional[str],
    queue: str,
    every: Optional[Seconds],
    tz: Optional[str],
    payload: Any,
    raw: Optional[bytes],
    splay: Optional[Seconds],
    priority: int,
    headers: Optional[Mapping[str, str]],
    missed: Optional[str],
    overlap: Optional[str],
    source: Optional[str],
    version: Optional[int],
) -> Dict[str, Any]:
    """Returns the fields of a declaration. Raises ValueError and TypeError like NewJob."""
    if (cron is None) == (every is None):
        raise ValueError(f"schedule {name}: give cron or every")
    job = NewJob(queue, payload, raw, priority, headers=headers).fields()
    schedule = {
        "name": name,
        "cron": cron,
        "every_ms": None if every is None else millis("every", every),
        "tz": tz,
        "splay_ms": None if splay is None else millis("splay", splay),
        "payload": job.get("payload"),
        "headers": job.get("headers"),
        "priority": job.get("priority"),
        "missed": missed,
        "overlap": overlap,
        "source": source,
        "version": version,
    }
    return {"queue": queue, "schedule": {key: value for key, value in schedule.items() if value is not None}}


def stats_fields(queue: Optional[str]) -> Dict[str, Any]:
    return {} if queue is None else {"queue": queue}


def cancel_fields(queue: str, ids: Sequence[str], key: Optional[str], delete: bool) -> Dict[str, Any]:
    fields: Dict[str, Any] = {"queue": queue}
    if ids:
        fields["ids"] = list(ids)
    if key is not None:
        fields["key"] = key
    if delete:
        fields["delete"] = True
    return fields


def limit_fields(
    queue: str,
    max_claimed: Optional[int],
    rate: Union[str, int, None],
    burst: Optional[int],
    group_limit: Optional[int],
    group_on_failure: Optional[str],
    group_ready: Optional[int],
    none: bool,
) -> Dict[str, Any]:
    fields = {
        "max_claimed": max_claimed,
        "rate": None if rate is None else str(rate),
        "burst": burst,
        "group_limit": group_limit,
        "group_on_failure": group_on_failure,
        "group_ready": group_ready,
        "none": none or None,
    }
    return {"queue": queue, **{name: value for name, value in fields.items() if value is not None}}


def check_request(op: str, fields: Mapping[str, Any]) -> None:
    if op in ("hello", "bye", "cancel_claim", "claim") or "claim" in fields:
        raise ValueError(f"{'claim' if 'claim' in fields else op} is sent by the client itself")


def _lost(on_lost: Optional[Callable[[List[Any]], None]], jobs: List[BaseJob]) -> None:
    for job in jobs:
        if job._cancel is not None:
            job._cancel()
    if on_lost is not None:
        on_lost(jobs)


def check_order(order: str) -> None:
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, must be one of {', '.join(ORDERS)}")


def _enqueue_time() -> float:
    text = os.environ.get("QSIDECAR_ENQUEUE_TIMEOUT")
    if not text:
        return ENQUEUE_TIME
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"QSIDECAR_ENQUEUE_TIMEOUT={text} isn't a number of seconds: write it without a unit, such as 2 or 0.5")
    return seconds


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child of a fork: gives each client a new session."""
    for client in list(_clients):
        old, client._session = client._session, client._new_session()
        old.close_after_fork()


os.register_at_fork(after_in_child=_after_fork)
