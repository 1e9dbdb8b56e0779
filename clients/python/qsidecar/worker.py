"""The worker: functions for queues, which run in several threads or processes."""

from __future__ import annotations

import collections.abc
import functools
import itertools
import logging
import os
import queue
import re
import threading
import weakref
from datetime import datetime
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union

from . import _handlers, _processes, aio, errors
from ._behind import Behind, report_lost
from ._folder import Folder
from ._settle import log_loss, outcome, settle
from .client import Client, order_fields, schedule_fields
from .job import Enqueued, Job, Seconds

log = logging.getLogger("qsidecar")

# How long one claim waits, in seconds. Then the worker claims again.
CLAIM_WAIT = 300.0

# Transient errors of a claim. Other errors end the worker.
TRANSIENT = (
    errors.NotConnected, errors.Unavailable, errors.UnknownOutcome, errors.Busy, errors.Draining, errors.Internal
)  # fmt: skip

# Of these, errors that mean that the sidecar or its database is unavailable: exit code 5.
UNAVAILABLE = TRANSIENT[:-1]
EXIT_UNAVAILABLE = 5

# When a job is settled: while the next ones run, or before its thread begins the next one.
ACKS = ("behind", "sync")

# How many threads settle the jobs of `async def` functions. The functions need no thread.
SETTLERS = 32

# The optional arguments of a declaration that has none.
_NO_SCHEDULE: Dict[str, Any] = {
    **dict.fromkeys(("every", "tz", "payload", "raw", "splay", "headers", "missed", "overlap", "source", "version")),
    "priority": 0,
}

Handler = TypeVar("Handler", bound=Callable[[Any], Any])
Before = TypeVar("Before", bound=Callable[[Any], Any])
After = TypeVar("After", bound=Callable[[Any, Optional[BaseException]], Any])


_Share = Tuple[List[str], int]  # queues, and how many of their jobs run at once


class _Entry(NamedTuple):
    function: Callable[[Any], Any]
    result: bool
    coroutine: bool  # an `async def` function


_QUEUE_NAME = re.compile(r"[A-Za-z0-9_:/][A-Za-z0-9._:/-]{0,127}")


class _Ended(NamedTuple):
    """A job whose coroutine has ended."""

    job: Job
    result: Any
    error: Optional[BaseException]


class App:
    """Functions that run the jobs of queues.

        app = App()

        @app.job("resize")
        def resize(job):
            print(job.payload)

        app.run(concurrency=8)

    The options are those of Client. Alternatively, pass an existing client.

    It logs to the logger "qsidecar" and does not configure logging. It logs its start and end, each job that fails,
    and the start and end of an outage of the sidecar or its database.
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
        self._before: List[Callable[..., Any]] = []
        self._after: List[Callable[..., Any]] = []
        self._schedules: List[Dict[str, Any]] = []
        self._stop = threading.Event()
        _apps.add(self)

    def job(self, queue: str, *, result: bool = False) -> Callable[[Handler], Handler]:
        """Decorator that makes the function run the jobs of a queue. The function itself does not change.

        A job whose function returns is done. result=True stores the return value with the job, as JSON (or bytes
        unchanged). A job whose function raises has failed: see Retry, Snooze and Dead. Generator functions raise a TypeError.

        An `async def` function gets an AsyncJob, and runs as a task in the one event loop of the process. Its `job.client`
        is an AsyncClient. If the job's lease is lost, its task is cancelled.
        """

        if not isinstance(queue, str):  # a function, if the parentheses are missing: it would never run
            raise TypeError(f'name the queue, as in @app.job("mail"), not {queue!r}')
        if not _QUEUE_NAME.fullmatch(queue):
            raise ValueError(f'"{queue}" is not a queue name: use A-Z a-z 0-9 . _ : / - and do not start with . or -')

        def decorate(function: Handler) -> Handler:
            if not callable(function):
                raise TypeError(f"app.job({queue!r}) takes a function, not {function!r}")
            _handlers.reject_generators(function)
            _handlers.reject_other_arguments(function)
            if queue in self.jobs:
                raise ValueError(f"the queue {queue} already has a function: {self.jobs[queue].function!r}")
            self.jobs[queue] = _Entry(function, result, _handlers.is_coroutine_function(function))
            return function

        return decorate

    def before_job(self, hook: Before) -> Before:
        """Decorator for hook(job), which runs before each job's function, in its thread. If it raises, the job fails."""
        _handlers.reject_generators(hook)
        self._before.append(hook)
        return hook

    def after_job(self, hook: After) -> After:
        """Decorator for hook(job, error), which runs after each job's function, before the job is settled.

        error is the exception of the function, or None. If only the hook raises, the job has failed.
        """
        _handlers.reject_generators(hook)
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
        group: Optional[str] = None,
        start_before: Union[datetime, float, int, None] = None,
        start_within: Optional[Seconds] = None,
        on_expiry: Optional[str] = None,
        retain: Optional[Seconds] = None,
        key_until: Optional[str] = None,
        on_conflict: Optional[str] = None,
        debounce_max: Optional[Seconds] = None,
        request_timeout: Optional[float] = None,
    ) -> Enqueued:
        """Calls Client.enqueue."""
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
            group=group,
            start_before=start_before,
            start_within=start_within,
            on_expiry=on_expiry,
            retain=retain,
            key_until=key_until,
            on_conflict=on_conflict,
            debounce_max=debounce_max,
            request_timeout=request_timeout,
        )

    def schedule(self, name: str, cron: Optional[str] = None, **options: Any) -> None:
        """Declares a schedule when the app runs. The arguments are those of Client.schedule.

            app.schedule("daily-report", "0 6 * * *", tz="Europe/Berlin", queue="reports", payload={"kind": "daily"})
        """
        self._schedules.append(schedule_fields(**{**_NO_SCHEDULE, "name": name, "cron": cron, **options}))

    def run(
        self,
        concurrency: int = 8,
        *,
        queues: Optional[Mapping[str, Optional[int]]] = None,
        processes: bool = False,
        drain: bool = False,
        ack: str = "behind",
        order: str = "rotate",
        weights: Optional[Mapping[str, int]] = None,
    ) -> None:
        """Runs until SIGTERM, SIGINT or stop. Then it claims no more, lets the running jobs finish and returns.

        concurrency: how many jobs run at once, in threads, or in processes of one thread each. If it is 1, and in
        processes, the main thread runs the jobs, so they can use signals. A second signal ends the process at once.
        queues: the queues to work, each with how many of its jobs run at once; those with None share `concurrency`, as
        all queues of the app do without this option. order: with "rotate", queues that share a concurrency take turns; with
        "strict", a queue is claimed from only if those before it are empty, in the order of `queues` or of the app. weights: how many turns
        a queue has where the others have one, as {"mail": 3}; only of queues that share `concurrency`. drain: returns when no job is ready and its own jobs are done, for cron. If it can't
        check that, it raises NotConnected, Unavailable or another error of UNAVAILABLE. If a settle is unanswered for a
        minute at the end, it raises Unavailable. ack: "behind" begins the
        next job before the ack of the last one is answered; "sync" waits for each. It handles signals only in the
        main thread.
        """
        if queues is not None and not isinstance(queues, collections.abc.Mapping):
            raise TypeError(
                f"queues is {queues!r}, must be a dict such as {{'mail': 8}}, or {{'mail': None}} for one that shares concurrency"
            )
        shares = self._shares(concurrency, queues)
        if ack not in ACKS:
            raise ValueError(f"ack is {ack!r}, must be one of {', '.join(ACKS)}")
        self._check_weights(queues, order, weights)
        if processes:
            works = [
                functools.partial(self._run, [(names, 1)], drain, ack, order, weights) for names, count in shares for _ in range(count)
            ]
            _processes.run(works, exit_code)
        else:
            self._run(shares, drain, ack, order, weights)

    def _check_weights(
        self, queues: Optional[Mapping[str, Optional[int]]], order: str, weights: Optional[Mapping[str, int]]
    ) -> None:
        """Raises ValueError for a wrong order, and for weights of queues that don't share `concurrency`."""
        queues = dict.fromkeys(self.jobs) if queues is None else queues
        order_fields(list(queues), order, weights)
        for name in weights or ():
            if queues[name] is not None:
                raise ValueError(f"weights has the queue {name!r}, whose jobs have a number of their own: leave one of them out")

    def _shares(self, concurrency: int, queues: Optional[Mapping[str, Optional[int]]]) -> List[_Share]:
        """Returns lists of queues, each with how many of their jobs run at once. Raises ValueError for wrong arguments."""
        if not self.jobs:
            raise ValueError("the app has no jobs: decorate a function with @app.job(\"queue\")")
        if queues is None:
            queues = dict.fromkeys(self.jobs)
        for name, count in [("concurrency", concurrency), *queues.items()]:
            if count is not None and not isinstance(count, int):
                raise TypeError(f"{name} is {count!r}, must be a whole number")
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, must be at least 1")
        for name in queues:
            if name not in self.jobs:
                raise ValueError(f"the app has no function for the queue {name!r}, only for {', '.join(self.jobs)}")
        if not queues:
            raise ValueError("queues is empty: name at least one queue")
        shares: List[_Share] = [([name], count) for name, count in queues.items() if count is not None]
        rest = [name for name, count in queues.items() if count is None]
        return ([(rest, concurrency)] if rest else []) + shares

    def stop(self) -> None:
        """Ends run from another thread. Running jobs finish."""
        self._stop.set()

    def _run(self, shares: List[_Share], drain: bool, ack: str, order: str, weights: Optional[Mapping[str, int]]) -> None:
        self._stop.clear()
        groups = [_Group(names, count, order, weights) for names, count in shares]
        log.info("worker started: %s", "; ".join(map(str, groups)))
        pool = _ThreadPool(self, groups, drain, ack)
        if threading.current_thread() is not threading.main_thread():
            pool.start()
            self._await(pool)
        else:
            with _processes.Signals() as signals:
                pool.at_end = signals.poke
                pool.main = pool.threads == 1
                pool.start()
                if pool.main:
                    watcher = threading.Thread(target=self._watch, args=(pool, signals), name="qsidecar-stop", daemon=True)
                    watcher.start()
                    pool.work_in_main()
                    watcher.join()
                else:
                    self._watch(pool, signals)
        self.client.disconnect()
        log.info("worker stopped")
        if pool.error is not None:
            raise pool.error

    def _declare(self, drain: bool) -> None:
        """Declares the schedules. It waits for the sidecar and its database, like a claim, but not in a drain, and until stop."""
        failed = False
        for fields in self._schedules:
            name = fields["schedule"]["name"]
            while not self._stop.is_set():
                try:
                    reply = self.client._call("schedule", dict(fields), None)
                except (*UNAVAILABLE, errors.Closed) as e:
                    if self._stop.is_set():
                        return
                    if drain or isinstance(e, errors.Closed):
                        raise
                    if not failed:
                        log.warning("can't declare the schedule %s, trying again: %s", name, e)
                    failed = True
                    self._stop.wait(1)
                else:
                    log.info("schedule %s: %s", name, reply["declared"]["outcome"])
                    break

    def _watch(self, pool: _ThreadPool, signals: _processes.Signals) -> None:
        """Waits until the pool ends, and stops it at a signal."""
        signalled = False  # or the parent stopped, which gets the signal for its children
        while not pool.ended.is_set() and not self._stop.is_set():
            if signals.wait(0.5):
                signalled = True
                self.stop()
        if signalled or signals.received:
            log.info("stopping; running jobs: %d; a second signal ends the worker at once", pool.busy())
        signals.exit_at_second(
            lambda: log.warning("ended by a second signal; running jobs that use up an attempt: %d", pool.busy())
        )
        self._await(pool)

    def _await(self, pool: _ThreadPool) -> None:
        while not pool.ended.wait(0.2):
            if self._stop.is_set():
                if pool.declaring:
                    self.client.close()  # ends the declaration; there are no jobs yet
                self.client.cancel_claims()  # repeated, because a claim may have just started
        pool.thread.join()

    def perform(self, job: Job) -> Any:
        """Runs a job's function and its hooks. Returns and raises what the function does."""
        error: Optional[BaseException] = None
        result, pid = None, os.getpid()
        try:
            self._run_before(job)
            result = self._call(self.jobs[job.queue].function, job)
        except BaseException as e:
            error = e
        _handlers.exit_forked_child(pid, error)
        return self._run_after(job, result, error)

    def _call(self, function: Callable[..., Any], job: Job, *args: Any) -> Any:
        asynchronous = _handlers.is_coroutine_function(function)
        return _handlers.run_result(aio.run(function, job, *args) if asynchronous else function(job, *args))

    def _start(self, job: Job, done: Callable[[Any, Optional[BaseException]], None]) -> None:
        """Starts the coroutine of a job. done gets its outcome, for _run_after."""
        try:
            self._run_before(job)
            _handlers.start(aio.run(self.jobs[job.queue].function, job), done)
        except BaseException as e:
            done(None, e)

    def _run_before(self, job: Job) -> None:
        for before in self._before:
            self._call(before, job)

    def _run_after(self, job: Job, result: Any, error: Optional[BaseException]) -> Any:
        """Runs the hooks after a job's function. Returns and raises what the function does."""
        try:
            if error is None:
                result = _handlers.run_result(result)
        except BaseException as e:
            error = e
        for after in self._after:
            try:
                self._call(after, job, error)
            except BaseException as e:
                log.error("%r: the hook %r failed", job, after, exc_info=_handlers.for_log(e))
                error = error or e
        if error is not None:
            raise error
        return result if self.jobs[job.queue].result else None


class _Group:
    """The threads for some queues. The pool's lock guards `free`."""

    def __init__(self, queues: List[str], threads: int, order: str, weights: Optional[Mapping[str, int]]) -> None:
        self.queues = queues
        self.order = order
        self.threads = threads
        self.free = threads
        self.weights = {name: weight for name, weight in (weights or {}).items() if name in queues}
        self.next_claim: Dict[str, Any] = {"queues": queues, **order_fields(queues, order, self.weights)}
        self.tasks: queue.SimpleQueue[Union[Job, _Ended, None]] = queue.SimpleQueue()

    def __str__(self) -> str:
        names = ", ".join(f"{name}={self.weights[name]}" if name in self.weights else name for name in self.queues)
        how = {"rotate": " in rotation", "strict": " in strict order"}[self.order] if len(self.queues) > 1 else ""
        return f"queues {names}{how}, concurrency {self.threads}"


class _ThreadPool:
    """The threads of one run. One thread for each group of queues claims as many jobs as there are free threads, and the
    others run them.

    A coroutine has no thread. One of the threads starts it, and one settles the job when the coroutine has ended.
    After a job, its thread sends the settle with a claim of the next job, which doesn't wait for one. It begins the
    next job when the claim is answered. If the settle must be answered first, both are one request.
    """

    def __init__(self, app: App, groups: List[_Group], drain: bool, ack: str) -> None:
        self.app = app
        self._groups = groups
        self.threads = sum(group.threads for group in self._groups)
        self.drain = drain
        self.ended = threading.Event()
        self.error: Optional[BaseException] = None
        self.at_end: Callable[[], None] = lambda: None
        self.declaring = True
        self.main = False  # the main thread runs the jobs, so that they can handle signals
        self._main_over = threading.Event()
        self._loop: Optional[_handlers.MainLoop] = None  # in which the main thread waits
        self._lock = threading.Condition()  # guards the next field
        self._finished = 0  # how many times a thread was free again
        self._sync = ack == "sync"
        self._folder = Folder()
        self._behind = Behind(app.client, self.threads, drain, self._ending)
        aio.AsyncClient._of(app.client)  # for the loop of this run
        self.thread = threading.Thread(target=self._run, name="qsidecar-claim", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def busy(self) -> int:
        return sum(group.threads - group.free for group in self._groups)

    def work_in_main(self) -> None:
        """Runs the jobs in this thread. It raises what a signal handler of the program raises between two jobs."""
        try:
            with _handlers.MainLoop() as loop:
                self._loop = loop
                self._work(self._groups[0])
        except BaseException:
            self.app._stop.set()
            raise
        finally:
            self._main_over.set()

    def _run(self) -> None:
        self._behind.start()
        try:
            self.app._declare(self.drain)
        except BaseException as e:
            self.error = e
            self.app._stop.set()
        self.declaring = False
        threads = [threading.Thread(target=self._claim_guarded, args=(group,), name="qsidecar-claim") for group in self._groups[1:]]
        if not self.main:
            workers = [group for group in self._groups for _ in range(self._threads(group))]
            threads += [threading.Thread(target=self._work, args=(g,), name=f"qsidecar-{i}") for i, g in enumerate(workers)]
        for thread in threads:
            thread.daemon = True
            thread.start()
        self._claim_guarded(self._groups[0])
        for thread in threads:
            thread.join()
        if self.main:
            self._main_over.wait()
        self.error = self._behind.end() or self.error
        self.ended.set()
        self.at_end()

    def _claim_guarded(self, group: _Group) -> None:
        try:
            self._claim(group)
        except BaseException as e:
            self.error = self.error or e
            self.app._stop.set()  # the other groups end, too
        if not self.main:
            with self._lock:  # a coroutine that runs needs a thread at its end
                self._lock.wait_for(lambda: group.free == group.threads)
        for _ in range(self._threads(group)):
            self._put(group, None)

    def _threads(self, group: _Group) -> int:
        """Returns how many threads a group needs."""
        asynchronous = all(self.app.jobs[name].coroutine for name in group.queues)
        return min(group.threads, SETTLERS) if asynchronous else group.threads

    def _claim(self, group: _Group) -> None:
        stop, client = self.app._stop, self.app.client
        failed = 0
        while not stop.is_set():
            with self._lock:
                while group.free == 0:
                    self._lock.wait()
                free, finished = group.free, self._finished
                quiet = self.busy() == 0
            # A job that runs, or an ack that is not carried out, can store another job after this claim.
            quiet = quiet and self._behind.idle()
            if not self._behind.can_begin() or stop.is_set():
                return
            try:
                jobs = client.claim(*group.queues, max=min(free, 1000), wait=0 if self.drain else CLAIM_WAIT, order=group.order, weights=group.weights)
                if failed:
                    log.warning("jobs can be claimed again")
                failed = 0
            except TRANSIENT as e:
                if self.drain:  # cron will start it again soon
                    raise
                failed += 1
                if failed == 1:
                    log.warning("can't claim jobs, trying again: %s", e)
                stop.wait(min(0.05 * 2 ** min(failed, 10), 2.0))
                continue
            if stop.is_set():
                client.nack_many(jobs, snooze=True, delay=0)
                return
            if self.drain and not jobs:
                if quiet:
                    return
                with self._lock:
                    self._lock.wait_for(lambda: self._finished > finished or self.busy() == 0)
                    idle = self.busy() == 0
                if idle:
                    self._behind.wait()
                continue
            with self._lock:
                group.free -= len(jobs)
            for job in jobs:
                self._put(group, job)

    def _put(self, group: _Group, item: Union[Job, _Ended, None]) -> None:
        group.tasks.put(item)
        if self._loop is not None:
            self._loop.wake()

    def _work(self, group: _Group) -> None:
        while True:
            item = group.tasks.get() if self._loop is None else self._loop.next(group.tasks)
            if item is None:
                return
            last = self._run_jobs(item, group)
            if last is None:
                continue
            if self.drain:  # its ack can store jobs that the next claim must see
                self._behind.wait(last)
            with self._lock:
                group.free += 1
                self._finished += 1
                self._lock.notify_all()

    def _run_jobs(self, item: Union[Job, _Ended], group: _Group) -> Optional[Job]:
        """Runs a job, or settles it after its coroutine, and continues with the jobs that were claimed with the settles.

        Returns the last one, or None if it started a coroutine, which counts as the job until it ends.
        """
        ended = item if isinstance(item, _Ended) else None
        job = item.job if isinstance(item, _Ended) else item
        while True:
            if ended is None and not self._behind.begin(job):
                self._give_back([job])
                return job
            try:
                if ended is not None or self._can_run(job):
                    if ended is None and self._starts(job, group):
                        return None
                    self._run_job(job, group, ended)
            except BaseException:
                log.exception("%r could not be settled", job)
            self._behind.leave(job)
            following, ended = self._next(job), None
            if following is None:
                return job
            job = following

    def _starts(self, job: Job, group: _Group) -> bool:
        """Starts the job if it is a coroutine that needs no thread. Returns whether it did."""
        if self.main or not self.app.jobs[job.queue].coroutine:
            return False
        self.app._start(job, lambda result, error: self._put(group, _Ended(job, result, error)))
        return True

    def _ending(self) -> bool:
        return self.app._stop.is_set() or self.error is not None

    def _next(self, job: Job) -> Optional[Job]:
        """Returns the job that was claimed with the settle of a job. If the run ends, it gives that job back."""
        following = job._next[:]
        job._next.clear()  # otherwise the first job of a busy thread would keep all later ones
        if following and self._ending():
            self._give_back(following)
            return None
        return following[0] if following else None

    def _give_back(self, jobs: List[Job]) -> None:
        try:
            self.app.client.nack_many(jobs, snooze=True, delay=0)
        except errors.Error as e:
            log.warning("%r could not be returned, it is released when the connection closes: %s", jobs[0], e)

    def _cannot_run(self, job: Job) -> bool:
        """Returns whether the working folder is gone. Then it returns the job, and the run ends."""
        gone = self._folder.gone()
        if gone is None:
            return False
        self.error = self.error or gone
        self.app._stop.set()
        self._give_back([job])
        return True

    def _can_run(self, job: Job) -> bool:
        if job.cancelled:  # while it waited to begin
            log.info("%r was cancelled before it began", job)
            return False
        if job.lost:
            log.warning("%r: its lease was lost before it began; another worker can have it", job)
            return False
        return not self._cannot_run(job)

    def _run_job(self, job: Job, group: _Group, ended: Optional[_Ended]) -> None:
        result: Any = None
        error: Optional[BaseException] = None
        try:
            result = self.app.perform(job) if ended is None else self.app._run_after(*ended)
        except BaseException as e:
            error = e
        if job.settled:  # by its function
            if error is not None:
                log.error("%r was settled by its function, and then failed", job, exc_info=_handlers.for_log(error))
            return
        if job.cancelled:
            log.info("%r was cancelled while it ran", job)
            return
        if job.lost:
            return log_loss(job)
        if error is not None and self._cannot_run(job):
            return
        try:
            self._settle(job, group, result, error)
        except errors.SettledOrLost as e:
            log.info("%r: %s", job, e)
        except errors.LeaseLost:
            report_lost(self.app.client, job)

    def _settle(self, job: Job, group: _Group, result: Any, error: Optional[BaseException]) -> None:
        """Settles a job, and claims the next one unless the run ends.

        It repeats after an internal error. Otherwise the job would stay with this worker until it ends.
        """
        if not self._sync and not self.app.client._session.joins:
            claim = None if self._ending() else group.next_claim
            job._next += self._behind.settle(job, *outcome(job, result, error), claim)
            return
        over = self._behind.limit()
        for tries in itertools.count(1):
            job._claim = None if self._ending() else group.next_claim
            try:
                return settle(job, result, error, over)
            except TRANSIENT as e:
                if over():
                    self.error = self.error or e  # ends the run
                    return self._behind.give_up(job)
                if not isinstance(e, errors.Internal):
                    raise
                log.warning("%r could not be settled yet: %s", job, e)
                if self.app._stop.wait(min(0.05 * 2 ** min(tries, 10), 2.0)):
                    raise


def exit_code(error: BaseException) -> int:
    """Returns the exit code of a worker that failed. The program qsidecar uses the same."""
    return EXIT_UNAVAILABLE if isinstance(error, UNAVAILABLE) else 1


_apps: weakref.WeakSet[App] = weakref.WeakSet()  # for qsidecar.testing
