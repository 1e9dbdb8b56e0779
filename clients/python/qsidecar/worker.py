"""The worker: functions for queues, run at once in threads or processes."""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import threading
import weakref
from datetime import datetime
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, TypeVar, Union

from . import _handlers, _processes, errors
from ._handlers import describe, text_of
from .client import Client
from .job import Enqueued, Job, Seconds

log = logging.getLogger("qsidecar")

# How long one claim waits, in seconds; then there is another.
CLAIM_WAIT = 300.0

# What ends a claim and passes; other errors end the worker.
PASSING = (
    errors.NotConnected, errors.Unavailable, errors.UnknownOutcome, errors.Busy, errors.Draining, errors.Internal
)  # fmt: skip

# Of these, what says that no sidecar answers or that its database is away: exit code 5.
UNAVAILABLE = PASSING[:-1]
EXIT_UNAVAILABLE = 5

Handler = TypeVar("Handler", bound=Callable[[Job], Any])
Before = TypeVar("Before", bound=Callable[[Job], Any])
After = TypeVar("After", bound=Callable[[Job, Optional[BaseException]], Any])


class Retry(Exception):
    """Raised by a job's function: the attempt failed, try again after delay seconds, None for the queue's back-off.

    charge=False: *not now* rather than *failed*; this delivery does not count.
    """

    def __init__(self, message: str = "", *, delay: Optional[Seconds] = None, charge: bool = True) -> None:
        super().__init__(message)
        self.delay = delay
        self.charge = charge


class Dead(Exception):
    """Raised by a job's function: no more attempts, the job is dead."""


class _Entry(NamedTuple):
    function: Callable[[Job], Any]
    result: bool


class App:
    """Functions that work the jobs of queues.

        app = App()

        @app.job("resize")
        def resize(job):
            print(job.payload)

        app.run(concurrency=8)

    The options are those of Client; or client is one that is there already.

    It logs to the logger "qsidecar", and sets up no logging of its own: its start and its end, each job that is to be
    tried again or dead, and the beginning and the end of a time without the sidecar or its database.
    """

    def __init__(
        self,
        client: Optional[Client] = None,
        *,
        socket: Optional[str] = None,
        worker: Optional[str] = None,
        codec: Optional[str] = None,
        request_timeout: Optional[float] = None,
        on_lost: Optional[Callable[[List[Job]], None]] = None,
        on_draining: Optional[Callable[[], None]] = None,
    ) -> None:
        self.client = client or Client(
            socket, worker=worker, codec=codec, request_timeout=request_timeout, on_lost=on_lost, on_draining=on_draining
        )
        self.jobs: Dict[str, _Entry] = {}
        self._before: List[Callable[[Job], Any]] = []
        self._after: List[Callable[[Job, Optional[BaseException]], Any]] = []
        self._stop = threading.Event()
        _apps.add(self)

    def job(self, queue: str, *, result: bool = False) -> Callable[[Handler], Handler]:
        """Says that the function works the jobs of that queue; it stays the function that it is.

        A job whose function returns is done; result=True keeps what it returns with the job, as JSON (or bytes as
        they are). One whose function raises has failed: see Retry and Dead. An `async def` function is run by the
        one event loop that the process has for them; generator functions are refused with a TypeError.
        """

        def decorate(function: Handler) -> Handler:
            _handlers.check(function)
            if queue in self.jobs:
                raise ValueError(f"the queue {queue} has a function already: {self.jobs[queue].function!r}")
            self.jobs[queue] = _Entry(function, result)
            return function

        return decorate

    def before_job(self, hook: Before) -> Before:
        """Says that hook(job) is called before each job's function, in its thread. If it raises the job has failed."""
        _handlers.check(hook)
        self._before.append(hook)
        return hook

    def after_job(self, hook: After) -> After:
        """Says that hook(job, error) is called after each job's function, before the job is settled.

        error is what the function raised, or None. If the hook raises and the function did not, the job has failed.
        """
        _handlers.check(hook)
        self._after.append(hook)
        return hook

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
        """Client.enqueue."""
        return self.client.enqueue(
            queue,
            payload,
            raw=raw,
            priority=priority,
            delay=delay,
            run_at=run_at,
            key=key,
            headers=headers,
            max_attempts=max_attempts,
            timeout=timeout,
            request_timeout=request_timeout,
        )

    def run(self, concurrency: int = 8, *, processes: bool = False, drain: bool = False) -> None:
        """Works until SIGTERM or SIGINT, or stop: then it claims no more, lets the jobs under way finish, and returns.

        concurrency: how many jobs at once, in threads, or in processes of one thread each. A second signal ends the
        process at once. drain: it returns when nothing is ready and its own jobs are done, for cron; where that cannot be
        asked it raises NotConnected, Unavailable or what else says that it is to be tried later (see UNAVAILABLE).
        In another than the main thread no signals are handled.
        """
        if not self.jobs:
            raise ValueError("the app has no job: say @app.job(\"queue\") above a function")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}, and 1 at least")
        if processes:
            _processes.run(lambda: self._run(1, drain), concurrency, exit_code)
        else:
            self._run(concurrency, drain)

    def stop(self) -> None:
        """Ends run in order, from another thread."""
        self._stop.set()

    def _run(self, threads: int, drain: bool) -> None:
        self._stop.clear()
        log.info("worker started: queues %s, %d jobs at once", ", ".join(self.jobs), threads)
        crew = _Crew(self, threads, drain)
        if threading.current_thread() is not threading.main_thread():
            crew.start()
            self._await(crew)
        else:
            with _processes.Signals() as signals:
                crew.at_end = signals.poke
                crew.start()
                while not crew.ended.is_set() and not self._stop.is_set():
                    if signals.wait(0.5):
                        self.stop()
                if signals.told:
                    log.info("stopping: %d jobs are under way", crew.busy())
                signals.leave_at_second()
                self._await(crew)
        self.client.disconnect()
        log.info("worker stopped")
        if crew.error is not None:
            raise crew.error

    def _await(self, crew: _Crew) -> None:
        while not crew.ended.wait(0.2):
            if self._stop.is_set():
                self.client.cancel()  # again and again: a claim may just have begun
        crew.thread.join()

    def perform(self, job: Job) -> Any:
        """Runs a job's function with the hooks around it. It returns and raises what the function does."""
        entry = self.jobs[job.queue]
        error: Optional[BaseException] = None
        result, pid = None, os.getpid()
        try:
            for before in self._before:
                _handlers.finish(before(job))
            result = _handlers.finish(entry.function(job))
        except BaseException as e:
            error = e
        _handlers.stay(pid, error)
        for after in self._after:
            try:
                _handlers.finish(after(job, error))
            except BaseException as e:
                log.exception("%r: the hook %r failed", job, after)
                error = error or e
        if error is not None:
            raise error
        return result if entry.result else None


class _Crew:
    """The threads of one run: one claims as many jobs as there are free ones, the others work."""

    def __init__(self, app: App, threads: int, drain: bool) -> None:
        self.app = app
        self.threads = threads
        self.drain = drain
        self.ended = threading.Event()
        self.error: Optional[BaseException] = None
        self.at_end: Callable[[], None] = lambda: None
        self._tasks: queue.SimpleQueue[Optional[Job]] = queue.SimpleQueue()
        self._lock = threading.Condition()
        self._free = threads
        self.thread = threading.Thread(target=self._lead, name="qsidecar-claim", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def busy(self) -> int:
        return self.threads - self._free

    def _lead(self) -> None:
        workers = [threading.Thread(target=self._work, name=f"qsidecar-{i}", daemon=True) for i in range(self.threads)]
        for worker in workers:
            worker.start()
        try:
            self._claim()
        except BaseException as e:
            self.error = e
        for _ in workers:
            self._tasks.put(None)
        for worker in workers:
            worker.join()
        self.ended.set()
        self.at_end()

    def _claim(self) -> None:
        stop, client, queues = self.app._stop, self.app.client, list(self.app.jobs)
        failed = 0
        while not stop.is_set():
            with self._lock:
                while self._free == 0:
                    self._lock.wait()
                free = self._free
            if stop.is_set():
                return
            try:
                jobs = client.claim(*queues, max=min(free, 1000), wait=0 if self.drain else CLAIM_WAIT)
                if failed:
                    log.warning("jobs can be claimed again")
                failed = 0
            except PASSING as e:
                if self.drain:  # cron has another of it soon
                    raise
                failed += 1
                if failed == 1:
                    log.warning("no jobs can be claimed just now, trying on: %s", e)
                stop.wait(min(0.05 * 2 ** min(failed, 10), 2.0))
                continue
            if stop.is_set():
                client.nack_many(jobs, charge=False, delay=0)
                return
            with self._lock:
                self._free -= len(jobs)
                if self.drain and not jobs:
                    if free == self.threads:  # before the claim: a job may have enqueued another since
                        return
                    self._lock.wait_for(lambda: self._free > free)
            for job in jobs:
                self._tasks.put(job)

    def _work(self) -> None:
        while True:
            job = self._tasks.get()
            if job is None:
                return
            try:
                self._one(job)
            except BaseException:
                log.exception("%r could not be settled", job)
            with self._lock:
                self._free += 1
                self._lock.notify()

    def _one(self, job: Job) -> None:
        result: Any = None
        error: Optional[BaseException] = None
        try:
            result = self.app.perform(job)
        except BaseException as e:
            error = e
        if job.settled:  # by its function
            if error is not None:
                log.error("%r was settled by its function, which failed then", job, exc_info=error)
            return
        if job.lost:
            log.warning("%r: its lease was lost while it ran; another worker may have done it too", job)
            return
        try:
            self._settle(job, result, error)
        except errors.SettledOrLost as e:
            log.info("%r: %s", job, e)
        except errors.LeaseLost:
            log.warning("%r: its lease was lost; another worker may have done it too", job)

    def _settle(self, job: Job, result: Any, error: Optional[BaseException]) -> None:
        """Settles a job, again if the answer is internal: else the job stays with this worker until that ends."""
        for tries in itertools.count(1):
            try:
                return settle(job, result, error)
            except errors.Internal as e:
                log.warning("%r could not be settled yet: %s", job, e)
                if self.app._stop.wait(min(0.05 * 2 ** min(tries, 10), 2.0)):
                    raise


def exit_code(error: BaseException) -> int:
    """What a worker that ended with an error exits with, as the program qsidecar does."""
    return EXIT_UNAVAILABLE if isinstance(error, UNAVAILABLE) else 1


# What the sidecar, or this library, says of a settle that is wrong as it stands.
REFUSED = (errors.TooLarge, errors.BadRequest, errors.UnknownQueue, errors.Forbidden, errors.Unsupported)


def settle(job: Job, result: Any, error: Optional[BaseException]) -> None:
    """Settles a job by how its function ended, and tries for as long as the lease is not known to be lost.

    Where that can't be settled as it is (a result that is no JSON, a delay of a century), now or ever, the attempt has
    failed: a job that was left alone would stay this worker's until it ends.
    """
    try:
        return _settle(job, result, error)
    except errors.Error as e:
        if not isinstance(e, REFUSED):
            raise
        refusal: Exception = e
    except Exception as e:
        refusal = e
    log.error("%r: its outcome was refused, so the attempt has failed", job, exc_info=refusal)
    job.nack(describe(refusal), request_timeout=math.inf)


def _settle(job: Job, result: Any, error: Optional[BaseException]) -> None:
    if error is None:
        if isinstance(result, (bytes, bytearray)):
            job.ack(raw=bytes(result), request_timeout=math.inf)
        else:
            job.ack(result, request_timeout=math.inf)
    elif isinstance(error, Retry):
        log.warning("%r %s: %s", job, _ended(job, error.charge), text_of(error) or "Retry")
        job.nack(text_of(error) or "Retry", delay=error.delay, charge=error.charge, request_timeout=math.inf)
    elif isinstance(error, Dead):
        log.error("%r is dead: %s", job, text_of(error))
        job.nack(text_of(error), dead=True, request_timeout=math.inf)
    else:
        log.error("%r %s", job, _ended(job, True), exc_info=error)
        job.nack(describe(error), request_timeout=math.inf)


def _ended(job: Job, charge: bool) -> str:
    """What a failed attempt makes of a job."""
    return "is dead, after its last attempt" if charge and job.attempt >= job.max_attempts else "is to be tried again"


_apps: weakref.WeakSet[App] = weakref.WeakSet()  # for qsidecar.testing
