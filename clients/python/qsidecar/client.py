"""The client: one connection to the sidecar, for all threads of a process."""

from __future__ import annotations

import os
import time
import weakref
from datetime import datetime
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Type, Union

from . import errors
from ._call import MAX_LIST, SETTLES, Call, pause_for, repeatable
from ._session import Session
from .job import Enqueued, Job, NewJob, Seconds, millis, nack_fields

# Instead of a sidecar: set by qsidecar.testing.inline.
_inline: Optional[Callable[[Sequence[NewJob]], List[Enqueued]]] = None

# How long a call may take, in seconds, where nothing else is said: a producer that answers a user must not wait
# for a sidecar that is away, and a worker with a job that is done must.
ENQUEUE_TIME, REQUEST_TIME = 2.0, 60.0
# How long close waits for answers.
CLOSE_TIME = 10.0


class Client:
    """One connection to a sidecar, which comes back when it breaks. All threads of a process may use it at once.

    It connects at its first call; an error of that is the caller's. From then on it connects again by itself,
    keeps the leases that it holds, and sends again what was not answered and may be sent twice. After a fork
    the child has a connection of its own, and holds nothing.

        with Client() as client:
            client.enqueue("mail", {"to": "ada"})

    socket: the path of the sidecar's socket; None for QSIDECAR_SOCKET, then $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock,
    then /run/qsidecar/qsidecar.sock. worker: a name of at most 128 bytes, kept with claims, for people. codec: "json"
    or "msgpack"; None for msgpack where it is installed. request_timeout: how long a call may take, in seconds, beside
    the time that a claim waits: so long it waits for a sidecar that is away, and is sent again where the
    sidecar could not do it just now; None for a minute, and for an enqueue
    as many seconds as QSIDECAR_ENQUEUE_TIMEOUT says, else 2 s. on_lost is told of held jobs whose leases are lost (see Job.lost), on_draining
    that the sidecar is about to stop; both are called from a thread of their own, one at a time, and may use the client.
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
        self._socket = socket
        self._worker = worker
        self._codec = codec
        self._request_timeout = request_timeout
        self._callbacks = on_lost, on_draining
        self._session = self._new_session()
        _clients.add(self)

    def _new_session(self) -> Session:
        on_lost, on_draining = self._callbacks
        return Session(
            self._socket,
            self._worker,
            self._codec,
            lambda fields: Job(self, fields),
            on_lost or (lambda jobs: None),
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
        request_timeout: Optional[float] = None,
    ) -> Enqueued:
        """Stores a job, and returns when it is durable. The options are those of NewJob.

        Raises UnknownOutcome where the answer was lost and there is no key: it may have been stored. With a key
        it is sent again. Raises Unavailable where the database is away: nothing was stored. request_timeout is
        the client's timeout for this call.
        """
        job = NewJob(queue, payload, raw, priority, delay, run_at, key, headers, max_attempts, timeout)
        if _inline is not None:
            return _inline([job])[0]
        return Enqueued.of(self._do("enqueue", job.fields(), request_timeout)["job"])

    def enqueue_many(self, jobs: Iterable[NewJob], *, request_timeout: Optional[float] = None) -> List[Enqueued]:
        """Stores up to 1,000 jobs in one transaction: all or none."""
        jobs = list(jobs)
        if not jobs:
            return []
        if len(jobs) > MAX_LIST:
            raise ValueError(f"{len(jobs)} jobs: one transaction takes {MAX_LIST} at most")
        if _inline is not None:
            return _inline(jobs)
        reply = self._do("enqueue", {"jobs": [job.fields() for job in jobs]}, request_timeout)
        return [Enqueued.of(e) for e in reply["jobs"]]

    # --- working ---

    def claim(
        self,
        *queues: str,
        max: int = 1,
        wait: Seconds = 0,
        lease: Optional[Seconds] = None,
        request_timeout: Optional[float] = None,
    ) -> List[Job]:
        """Takes up to max ready jobs (1 to 1,000) of the queues, in this order of preference.

        wait: how long to wait for the first, in seconds, up to an hour; without one the list is empty. The jobs are
        this client's until they are settled or it ends. With lease they are so for that long (1 s to
        24 h), whatever becomes of the client.
        """
        fields: Dict[str, Any] = {"queue": queues[0]} if len(queues) == 1 else {"queues": list(queues)}
        if max != 1:
            fields["max"] = max
        wait_ms = millis(wait)
        if wait_ms:
            fields["wait_ms"] = wait_ms
        if lease is not None:
            fields["lease_ms"] = millis(lease)
        jobs: List[Job] = self._do("claim", fields, request_timeout, wait_ms / 1000)["jobs"]
        return jobs

    def ack_many(self, jobs: Iterable[Job], *, request_timeout: Optional[float] = None) -> List[Job]:
        """Settles up to 1,000 jobs as done, and returns those whose leases were lost; the others are settled."""
        return self._settle_many("ack", list(jobs), {}, request_timeout)

    def nack_many(
        self,
        jobs: Iterable[Job],
        error: str = "",
        *,
        delay: Optional[Seconds] = None,
        dead: bool = False,
        charge: bool = True,
        request_timeout: Optional[float] = None,
    ) -> List[Job]:
        """Settles up to 1,000 jobs as failed, as Job.nack, and returns those whose leases were lost."""
        return self._settle_many("nack", list(jobs), nack_fields(error, delay, dead, charge), request_timeout)

    def _settle_many(self, op: str, jobs: List[Job], fields: Dict[str, Any], timeout: Optional[float]) -> List[Job]:
        if not jobs:
            return []
        lost = self._do(op, {"leases": [job.lease for job in jobs], **fields}, timeout).get("lost") or []
        return [job for job in jobs if job.lease in lost]

    def cancel(self) -> None:
        """Ends the claims of all threads that wait: they return what they have, which may be nothing."""
        self._session.end_claims(None, time.monotonic() + self._patience("cancel"))

    # --- the rest ---

    def stats(self, queue: Optional[str] = None) -> List[Dict[str, Any]]:
        """How many jobs a queue has in each state, or each queue: see PROTOCOL.md."""
        fields = {} if queue is None else {"queue": queue}
        queues: List[Dict[str, Any]] = self._do("stats", fields, None)["queues"]
        return queues

    def ping(self) -> None:
        """Asks whether the sidecar answers; not the database."""
        self._do("ping", {}, None)

    def request(self, op: str, **fields: Any) -> Dict[str, Any]:
        """Any other operation of PROTOCOL.md, with the fields that it has there: its reply's fields."""
        if op in ("hello", "bye", "cancel", "claim"):
            raise ValueError(f"{op} is sent by the client itself")
        return self._do(op, fields, None)

    def _do(self, op: str, fields: Dict[str, Any], timeout: Optional[float], wait: float = 0.0) -> Dict[str, Any]:
        """Carries a request out, and again where the answer was that it could not be done just now."""
        session = self._session
        began = time.monotonic()
        patience = self._patience(op) if timeout is None else timeout
        ends = began + wait + patience
        session.start(ends)
        until = began + wait if wait else None
        tries, twice = 0, False
        while True:
            call = Call(op, fields, until, ends)
            call.twice = twice
            session.submit(call)
            session.wait(call)
            error = call.error
            if error is None:
                return call.reply
            if not _passing(op, fields, error, wait):
                raise error
            tries += 1
            pause = pause_for(error, tries)
            if time.monotonic() + pause > (until or began + patience):
                raise error
            twice = twice or isinstance(error, errors.UnknownOutcome)
            if not self._rest(session, call, pause):
                return {"jobs": []}

    def _patience(self, op: str) -> float:
        if self._request_timeout is not None:
            return self._request_timeout
        return _enqueue_time() if op == "enqueue" else REQUEST_TIME

    def _rest(self, session: Session, call: Call, pause: float) -> bool:
        if call.op not in SETTLES:
            return session.rest(call.op, pause)
        # A lease that is lost between two tries is told by the second one's answer.
        with session.lock:
            session.leases.settling(call.leases(), +1)
        try:
            return session.rest(call.op, pause)
        finally:
            with session.lock:
                session.leases.settling(call.leases(), -1)

    def disconnect(self) -> None:
        """Ends the connection as close does; the next call makes a new one."""
        self.close()
        self._session = self._new_session()

    def close(self) -> None:
        """Ends the client in order: settles are answered, and what it holds goes back uncharged.

        Calls of other threads end with Closed. Where the sidecar is away it tries for ten seconds.
        """
        session = self._session
        with session.lock:
            if session.closing:
                return
            session.closing = True
        try:
            self._give_back(session, time.monotonic() + CLOSE_TIME)
        finally:
            session.end()

    def _give_back(self, session: Session, deadline: float) -> None:
        session.end_claims(errors.Closed("the client is closed"), deadline)
        session.settled_down(deadline)
        with session.lock:
            leases = list(session.leases.held)
            wire = session.wire
            bound = wire is not None and not session.leases.unbound(wire.number)
        if not leases:
            return
        if bound:  # bye leaves the jobs in their places, but it is of one connection
            call = Call("bye", {}, ends=deadline)
            session.submit(call, internal=True)
            session.wait(call)
            if call.error is None:
                return
        for i in range(0, len(leases), MAX_LIST):
            fields = {"leases": leases[i : i + MAX_LIST], "charge": False, "delay_ms": 0}
            call = Call("nack", fields, ends=deadline)
            session.submit(call, internal=True)
            session.wait(call)


def _enqueue_time() -> float:
    text = os.environ.get("QSIDECAR_ENQUEUE_TIMEOUT")
    if not text:
        return ENQUEUE_TIME
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"QSIDECAR_ENQUEUE_TIMEOUT={text} is no number of seconds")
    return seconds


def _passing(op: str, fields: Dict[str, Any], error: Exception, wait: float) -> bool:
    """Whether the same request may do better in a moment, and that is the client's to try.

    An enqueue that could not be done is told: its caller may have better things to do than to wait for a database.
    """
    if isinstance(error, errors.UnknownOutcome):
        return error.told and repeatable(op, fields)
    if isinstance(error, (errors.Unavailable, errors.Busy, errors.Draining)):
        return op in ("ack", "nack", "extend") or (op == "claim" and wait > 0)
    return False


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: its clients begin anew."""
    for client in list(_clients):
        old, client._session = client._session, client._new_session()
        old.leave()


os.register_at_fork(after_in_child=_after_fork)
