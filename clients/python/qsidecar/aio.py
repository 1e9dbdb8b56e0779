"""The asyncio client: one connection to the sidecar for all tasks of an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Awaitable, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Type, Union

from . import client as _client
from . import errors
from ._batch import BatchWait, Callback, EndedBatch, open_fields
from ._call import Call, Request
from ._session import Session
from .client import Client, cancel_fields, check_request, claim_fields, explaining_inline, job_list, leases_of, limit_fields, lost_of, many_fields, schedule_fields, stats_fields
from ._waiting import EndedJob, Waiting, call_options, result_of
from .job import BaseJob, Enqueued, NewJob, Seconds, enqueued_of, nack_fields


class AsyncClient:
    """One connection to a sidecar for all tasks of an event loop, with the methods of Client as coroutines.

    Options, arguments, errors and limits are those of Client, and so are reconnects and repeated requests.

        async with AsyncClient() as client:
            await client.enqueue("mail", {"to": "ada"})

    A task can be cancelled during any call. If a claim is cancelled, its jobs go back without using up an attempt. A
    cancelled enqueue, ack or nack may have been carried out.
    A client belongs to the event loop of its first call. In another loop, thread or forked process it raises WrongLoop.
    Create it anywhere, and close it in its loop or after that.
    on_lost, on_draining: functions or `async def` functions, which run in the loop. on_lost gets a list of AsyncJob.

    A thread keeps the connection. So the client reconnects in time and keeps its jobs also while a task blocks the loop.
    """

    def __init__(
        self,
        socket: Optional[str] = None,
        *,
        worker: Optional[str] = None,
        codec: Optional[str] = None,
        request_timeout: Optional[float] = None,
        on_lost: Optional[Callable[[List[AsyncJob]], Any]] = None,
        on_draining: Optional[Callable[[], Any]] = None,
    ) -> None:
        self._client = Client(
            socket,
            worker=worker,
            codec=codec,
            request_timeout=request_timeout,
            on_lost=self._in_loop(on_lost),
            on_draining=self._in_loop(on_draining),
        )
        self._client._job = AsyncJob
        self._join(self._client)

    @classmethod
    def _of(cls, client: Client) -> AsyncClient:
        """Returns another face of a client: the same connection, for the tasks of one loop."""
        face = cls.__new__(cls)
        face._client = client
        face._join(client)
        return face

    def _join(self, client: Client) -> None:
        client._face = self
        self._home: Optional[Tuple[_Wakes, int]] = None  # the loop and the process
        self._first: Optional[asyncio.Future[Optional[Exception]]] = None  # the first connection, while it is opened
        self._callbacks: Set[asyncio.Future[Any]] = set()  # the loop has only weak references

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    # --- producing ---

    async def enqueue(
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
        """Stores a job and returns when it is durable: see Client.enqueue."""
        expiry = start_before, start_within, on_expiry
        unique = key_until, on_conflict, debounce_max
        job = NewJob(queue, payload, raw, priority, delay, run_at, key, headers, max_attempts, timeout, group, batch, *expiry, retain, *unique)
        if _client._inline is not None:
            return _client._inline([job])[0]
        return Enqueued.of((await self._call("enqueue", job.fields(), request_timeout))["job"])

    async def enqueue_many(self, jobs: Iterable[NewJob], *, request_timeout: Optional[float] = None) -> List[Enqueued]:
        """Stores up to 1,000 jobs in one transaction: all or none."""
        jobs = job_list(jobs)
        if not jobs:
            return []
        fields = many_fields(jobs)
        if _client._inline is not None:
            return _client._inline(jobs)
        return [Enqueued.of(e) for e in (await self._call("enqueue", fields, request_timeout))["jobs"]]

    def batch(
        self,
        *,
        on_success: Optional[Callback] = None,
        on_finish: Optional[Callback] = None,
        key: Optional[str] = None,
        of: Optional[str] = None,
        request_timeout: Optional[float] = None,
    ) -> AsyncBatch:
        """Returns a batch, which `async with` opens and closes: see Client.batch."""
        return AsyncBatch(self, open_fields(on_success, on_finish, key, of), request_timeout)

    async def wait(
        self,
        queue: str,
        *ids: str,
        any: bool = False,
        wait: Seconds = 60,
        request_timeout: Optional[float] = None,
    ) -> List[EndedJob]:
        """Waits until the jobs have ended, or with any one of them: see Client.wait."""
        waiting = Waiting(queue, ids, any, wait)
        while waiting.goes_on(await self._call("wait", waiting.fields(), request_timeout, waiting.seconds)):
            pass
        return waiting.ended

    async def call(self, queue: str, payload: Any = None, *, wait: Seconds = 60, **options: Any) -> Any:
        """Stores a job, waits until it has ended, and returns its result: see Client.call."""
        try:
            job = await self.enqueue(queue, payload, **call_options(options))
        except errors.Unsupported:
            if "retain" in options:
                raise
            job = await self.enqueue(queue, payload, **options)
        return result_of(queue, job, await self.wait(queue, job.id, wait=wait), wait)

    # --- working ---

    async def job(self, id: str) -> Optional[Dict[str, Any]]:
        """Returns the job with the id: see Client.job."""
        jobs: List[Dict[str, Any]] = (await self._call("peek", {"ids": [id]}, None))["jobs"]
        return jobs[0] if jobs else None

    async def claim(
        self,
        *queues: str,
        max: int = 1,
        wait: Seconds = 0,
        lease: Optional[Seconds] = None,
        order: str = "strict",
        weights: Optional[Mapping[str, int]] = None,
        request_timeout: Optional[float] = None,
    ) -> List[AsyncJob]:
        """Claims up to max ready jobs of the queues: see Client.claim."""
        fields = claim_fields(queues, max, wait, lease, order, weights)
        jobs: List[AsyncJob] = (await self._call("claim", fields, request_timeout, fields.get("wait_ms", 0) / 1000))["jobs"]
        return jobs

    async def ack_many(self, jobs: Iterable[AsyncJob], *, request_timeout: Optional[float] = None) -> List[AsyncJob]:
        """Settles up to 1,000 jobs as done. Returns the jobs whose leases were lost. The others are settled."""
        return await self._settle_many("ack", list(jobs), {}, request_timeout)

    async def nack_many(
        self,
        jobs: Iterable[AsyncJob],
        error: str = "",
        *,
        delay: Optional[Seconds] = None,
        dead: bool = False,
        snooze: bool = False,
        request_timeout: Optional[float] = None,
    ) -> List[AsyncJob]:
        """Settles up to 1,000 jobs as failed, like AsyncJob.nack. Returns the jobs whose leases were lost."""
        return await self._settle_many("nack", list(jobs), nack_fields(error, delay, dead, snooze), request_timeout)

    async def _settle_many(
        self, op: str, jobs: List[AsyncJob], fields: Dict[str, Any], request_timeout: Optional[float]
    ) -> List[AsyncJob]:
        if not jobs:
            return []
        return lost_of(jobs, await self._call(op, {"leases": leases_of(jobs), **fields}, request_timeout))

    async def cancel_claims(self) -> None:
        """Ends the waiting claims of all tasks. They return the jobs they have, if any."""
        self._at_home("cancel_claim")
        await self._in_thread(self._client.cancel_claims)

    # --- the rest ---

    async def stats(self, queue: Optional[str] = None) -> List[Dict[str, Any]]:
        """Returns the number of jobs in each state, for one queue or for all: see PROTOCOL.md."""
        queues: List[Dict[str, Any]] = (await self._call("stats", stats_fields(queue), None))["queues"]
        return queues

    async def limit(
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
        """Changes the limits of a queue: see Client.limit."""
        await self._call("limit", limit_fields(queue, max_claimed, rate, burst, group_limit, group_on_failure, group_ready, none), None)

    async def schedule(
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
        """Declares a schedule: see Client.schedule."""
        fields = schedule_fields(
            name, cron, queue, every, tz, payload, raw, splay, priority, headers, missed, overlap, source, version
        )
        return str((await self._call("schedule", fields, request_timeout))["declared"]["outcome"])

    async def ping(self) -> None:
        """Checks that the sidecar answers. It does not check the database."""
        await self._call("ping", {}, None)

    async def cancel(self, queue: str, *ids: str, key: Optional[str] = None, delete: bool = False) -> int:
        """Ends jobs that wait or run: see Client.cancel."""
        count: int = (await self._call("cancel", cancel_fields(queue, ids, key, delete), None))["count"]
        return count

    async def request(self, op: str, **fields: Any) -> Dict[str, Any]:
        """Sends any other operation of PROTOCOL.md with its fields, and returns the fields of the reply."""
        check_request(op, fields)
        return await self._call(op, fields, None)

    async def disconnect(self) -> None:
        """Closes the connection like close. The next call opens a new one."""
        await self._in_thread(self._client.disconnect)

    async def close(self) -> None:
        """Closes the client: waits for settles, and returns its jobs without using up an attempt.

        Calls of other tasks end with Closed. If the sidecar is down, close tries for ten seconds. If its task is
        cancelled, a thread closes the client.
        """
        await self._in_thread(self._client.close)

    # --- calls ---

    async def _call(
        self,
        op: str,
        fields: Dict[str, Any],
        request_timeout: Optional[float],
        wait: float = 0.0,
        claimed: Optional[List[Any]] = None,
    ) -> Dict[str, Any]:
        """Sends a request, and repeats it after transient errors. Client._call does the same in a thread."""
        wakes = self._at_home(op)
        request = self._client._request(op, fields, request_timeout, wait, claimed)
        session = self._client._session
        session.reject_reentrant(op)
        if not session.started:
            with explaining_inline(op):
                await self._start(wakes.loop, session, request)
        while True:
            wake = _Wake(wakes)
            call = request.call(wake)
            await self._answer(wakes.loop, session, call, wake)
            pause = request.pause_after(call)
            if pause is None:
                return call.reply
            wake = _Wake(wakes)
            with session.pausing(call, wake):
                ended, _ = await asyncio.wait([wake.future], timeout=pause)
            if ended:
                return {"jobs": []}

    async def _answer(self, loop: asyncio.AbstractEventLoop, session: Session, call: Call, wake: _Wake) -> None:
        """Sends a call and waits for the reply. If the task is cancelled, the session gives back what it claims."""
        session.submit(call, waits=False)
        timer = loop.call_later(call.left(), session.expire, call)
        try:
            await wake.future
        except BaseException:
            session.leave(call)
            raise
        finally:
            timer.cancel()

    async def _start(self, loop: asyncio.AbstractEventLoop, session: Session, request: Request) -> None:
        """Opens the first connection in a thread. Tasks wait for the same one, and each gets an error of its own try."""
        while not session.started and not session.closing:
            first, own = self._first, self._first is None
            if first is None:

                def start() -> Optional[Exception]:
                    try:
                        session.start(request.ends)
                    except Exception as e:
                        return e
                    return None

                first = self._first = _thread_future(loop, start)
                first.add_done_callback(self._started)
            await asyncio.wait([first], timeout=max(0.0, request.ends - time.monotonic()))
            if not first.done():
                raise session.unstarted()
            error = first.result()
            if own and error is not None and not session.closing:
                raise error

    def _started(self, first: asyncio.Future[Optional[Exception]]) -> None:
        self._first = None

    def _at_home(self, op: str) -> _Wakes:
        """Returns the wakes of the running loop. Raises WrongLoop if it isn't that of the first call."""
        loop = asyncio.get_running_loop()
        if self._home is None:
            self._home = _Wakes(loop), os.getpid()
        home, pid = self._home
        if pid != os.getpid():
            raise errors.WrongLoop(f"{op} was not sent: this process was forked after the client's first call; create an AsyncClient here")
        if home.loop is not loop:
            raise errors.WrongLoop(
                f"{op} was not sent: the client belongs to another event loop, that of its first call; "
                "create an AsyncClient in each loop, or use qsidecar.Client, which serves all threads"
            )
        return home

    async def _in_thread(self, function: Callable[[], None]) -> None:
        """Runs what can wait in a thread of its own. The threads of the loop's executor can all be in use."""

        def run() -> Optional[Exception]:
            try:
                function()
            except Exception as e:
                return e
            return None

        error = await _thread_future(asyncio.get_running_loop(), run)
        if error is not None:
            raise error

    def _in_loop(self, callback: Optional[Callable[..., Any]]) -> Optional[Callable[..., None]]:
        """Returns a function that lets the loop run a callback, from another thread."""
        if callback is None:
            return None

        def run(*args: Any) -> None:
            result = callback(*args)
            if isinstance(result, Awaitable):
                task = asyncio.ensure_future(result)
                self._callbacks.add(task)
                task.add_done_callback(self._callbacks.discard)

        def from_thread(*args: Any) -> None:
            if self._home is not None:
                with suppress(RuntimeError):  # the loop is closed, and its tasks have ended
                    self._home[0].loop.call_soon_threadsafe(run, *args)

        return from_thread


class AsyncJob(BaseJob):
    """A job that an AsyncClient claimed, or that an `async def` function of a worker runs."""

    @classmethod
    def _of(cls, job: BaseJob) -> AsyncJob:
        """Returns another face of a job. Both have the same state."""
        face = cls.__new__(cls)
        face.__dict__ = job.__dict__
        return face

    @property
    def client(self) -> AsyncClient:
        """The client that claimed the job. In a worker it shares the connection of the app's client."""
        client: AsyncClient = self._client._face
        return client

    async def ack(
        self,
        result: Any = None,
        *,
        raw: Optional[bytes] = None,
        enqueue: Iterable[NewJob] = (),
        request_timeout: Optional[float] = None,
    ) -> List[Enqueued]:
        """Settles the job as done: see Job.ack."""
        return enqueued_of(await self._do("ack", self._ack_fields(result, raw, enqueue), request_timeout))

    async def nack(
        self,
        error: str = "",
        *,
        delay: Optional[Seconds] = None,
        dead: bool = False,
        snooze: bool = False,
        request_timeout: Optional[float] = None,
    ) -> None:
        """Settles the job as failed: see Job.nack."""
        await self._do("nack", self._nack_fields(error, delay, dead, snooze), request_timeout)

    async def extend(self, lease: Optional[Seconds] = None, *, request_timeout: Optional[float] = None) -> None:
        """Renews the lease: see Job.extend."""
        await self._do("extend", self._extend_fields(lease), request_timeout)

    async def progress(
        self,
        done: Optional[int] = None,
        total: Optional[int] = None,
        *,
        raw: Optional[bytes] = None,
        request_timeout: Optional[float] = None,
        **data: Any,
    ) -> None:
        """Reports how far the job is: see Job.progress."""
        await self._do("progress", self._progress_fields(done, total, raw, data), request_timeout)

    async def _do(self, op: str, fields: Dict[str, Any], request_timeout: Optional[float]) -> Dict[str, Any]:
        with self._noting(op, fields) as client:
            reply: Dict[str, Any] = await client._face._call(op, fields, request_timeout, claimed=self._next)
        return reply


async def run(function: Callable[..., Awaitable[Any]], job: BaseJob, *args: Any) -> Any:
    """Runs an `async def` function of a worker. If the job's lease is lost, its task is cancelled."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(stop)

    def stop() -> None:
        if job._cancel is cancel:  # the function still runs
            task.cancel()

    if job._client is not None and job._client._face is None:
        AsyncClient._of(job._client)
    job._cancel = cancel
    try:
        if job.lost:
            cancel()
        return await function(AsyncJob._of(job), *args)
    finally:
        job._cancel = None


class _Wakes:
    """The waits of a loop's tasks that have ended. The loop gets them together: waking it is a system call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ended: Deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def end(self, wait: asyncio.Future[None]) -> None:
        self._ended.append(wait)
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed, and its tasks have ended
                self.loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._scheduled = False  # before the first one is taken, so that none stays
        while self._ended:
            wait = self._ended.popleft()
            if not wait.done():
                wait.set_result(None)


class _Wake:
    """The latch of a call that a task waits for."""

    __slots__ = ("future", "_wakes")

    def __init__(self, wakes: _Wakes) -> None:
        self._wakes = wakes
        self.future: asyncio.Future[None] = wakes.loop.create_future()

    def release(self) -> None:
        """Ends the wait, from any thread. It must not wait, log or call the program."""
        self._wakes.end(self.future)


def _thread_future(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Runs a function in a new thread. The future gets what it returns."""
    future: asyncio.Future[Any] = loop.create_future()

    def end(result: Any) -> None:
        if not future.done():
            future.set_result(result)

    def run() -> None:
        result = function()
        with suppress(RuntimeError):  # the loop is closed, and its tasks have ended
            loop.call_soon_threadsafe(end, result)

    threading.Thread(target=run, name="qsidecar-call", daemon=True).start()
    return future


class AsyncBatch:
    """A batch of jobs, which `async with` opens and closes. id is its id."""

    id: str

    def __init__(self, client: AsyncClient, fields: Dict[str, Any], request_timeout: Optional[float]) -> None:
        self._client, self._fields, self._queue, self._request_timeout = client, fields, fields["queue"], request_timeout

    async def __aenter__(self) -> AsyncBatch:
        await self.open(request_timeout=self._request_timeout)
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if error is None:
            await self.close()

    async def open(self, *, request_timeout: Optional[float] = None) -> None:
        """Opens the batch."""
        self.id = (await self._client._call("open_batch", self._fields, request_timeout))["batch"]["id"]

    async def enqueue(self, queue: str, payload: Any = None, **options: Any) -> Enqueued:
        """Stores a job of the batch. The options are those of Client.enqueue."""
        return await self._client.enqueue(queue, payload, batch=self.id, **options)

    async def enqueue_many(self, jobs: Iterable[NewJob], *, request_timeout: Optional[float] = None) -> List[Enqueued]:
        """Stores up to 1,000 jobs of the batch in one transaction: all or none."""
        return await self._client.enqueue_many((job._replace(batch=self.id) for job in jobs), request_timeout=request_timeout)

    async def close(self, *, request_timeout: Optional[float] = None) -> None:
        """Closes the batch: it ends when its jobs have ended. A second call does nothing."""
        await self._client._call("close_batch", {"queue": self._queue, "batch": self.id}, request_timeout)

    async def cancel(self, *, request_timeout: Optional[float] = None) -> int:
        """Cancels the jobs of the batch, which ends without its callback. Returns how many jobs."""
        return int((await self._client._call("cancel_batch", {"queue": self._queue, "batch": self.id}, request_timeout))["count"])

    async def wait(self, wait: Seconds = 60, *, request_timeout: Optional[float] = None) -> EndedBatch:
        """Waits until the batch has ended, for that many seconds, up to an hour, and returns it, also if the time is over."""
        waiting = BatchWait(self._queue, self.id, wait)
        while waiting.goes_on(await self._client._call("wait", waiting.fields(), request_timeout, waiting.seconds)):
            pass
        return waiting.batch
