"""Runs the functions of jobs. It runs coroutines, and rejects functions whose work would not run.

A call of an `async def` or generator function runs none of its code. Its job must not count as done.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import os
import queue
import sys
import threading
import traceback
import types
from typing import Any, Awaitable, Callable, Coroutine, List, Optional, Set, Tuple, TypeVar

# Types that a call can return without having run anything.
_LAZY = (types.GeneratorType, types.AsyncGeneratorType, map, filter, zip, functools.partial)

Item = TypeVar("Item")

_COLLECTIONS = (list, tuple, set, frozenset, dict)


def reject_generators(function: Callable[..., Any]) -> None:
    """Rejects a function whose call returns a generator. run_result handles coroutines."""
    for called in (function, getattr(type(function), "__call__", None)):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(f"{function!r} is a generator function, and calling it runs nothing: remove the yield")


def reject_other_arguments(function: Callable[..., Any]) -> None:
    """Rejects a function that can't be called with the job alone. Otherwise each job would fail."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of C
        return
    try:
        signature.bind(None)
    except TypeError as e:
        raise TypeError(f"{function!r} is called with the job as its only argument: {e}") from None


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(type(function), "__call__", None))


def start(work: Coroutine[Any, Any, Any], done: Callable[[Any, Optional[BaseException]], None]) -> None:
    """Starts a coroutine in the loop of all jobs, which calls done with its result and its error."""

    def end(future: concurrent.futures.Future[_Outcome]) -> None:
        try:
            outcome = future.result()
        except BaseException as e:  # a handler cancelled all tasks of the loop
            outcome = None, e
        done(*outcome)

    asyncio.run_coroutine_threadsafe(_outcome(work), _loops.get()).add_done_callback(end)


def run_result(value: Any) -> Any:
    """Runs an awaitable or waits for a future that a function returned, and returns its result."""
    if inspect.isawaitable(value):
        result, error = _loops.run(_outcome(value))
        if error is not None:
            raise error
        return run_result(result)
    if isinstance(value, concurrent.futures.Future):
        return run_result(value.result())
    if _has_not_run(value):
        raise TypeError(f"the function returned a {type(value).__name__}, which has not run: its work was not done")
    if isinstance(value, _COLLECTIONS):
        _check_parts(value)
    return value


def _check_parts(value: Any) -> None:
    """Rejects a collection that contains work, at any depth, also as the key of a dict."""
    left: List[Any] = [value]
    seen: Set[int] = set()
    while left:
        outer = left.pop()
        if id(outer) in seen:
            continue
        seen.add(id(outer))
        parts = (*outer, *outer.values()) if isinstance(outer, dict) else outer
        for part in {type(part): part for part in parts}.values():  # one value of each type, because the list can be long
            if _has_not_run(part) or inspect.isawaitable(part) or isinstance(part, concurrent.futures.Future):
                raise TypeError(f"the function returned a {type(part).__name__} in a {type(outer).__name__}: wait for its work")
        left.extend(part for part in parts if isinstance(part, _COLLECTIONS))


def _has_not_run(value: Any) -> bool:
    return isinstance(value, _LAZY) or type(value).__module__ in ("itertools", "contextlib") or inspect.isroutine(value)


def exit_forked_child(pid: int, error: Optional[BaseException]) -> None:
    """Ends a child process that a function forked and that returned from the function. The parent settles the job."""
    if os.getpid() == pid:
        return
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__


_OWN = os.path.dirname(__file__)


def for_log(error: BaseException) -> Any:
    """Returns an error as exc_info for the log. Its traceback begins in the program, not in this package that calls it."""
    trace = error.__traceback__
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == _OWN:
        trace = trace.tb_next
    return type(error), error, trace


def describe(error: BaseException) -> str:
    """Describes an error for people: the error, then the calls, innermost first. The sidecar keeps 4 KiB."""
    what = "".join(traceback.format_exception_only(type(error), error)).strip()
    calls = reversed(traceback.extract_tb(error.__traceback__))
    return "\n".join([what, *(f"  in {c.name} ({c.filename}:{c.lineno})" for c in calls if os.path.dirname(c.filename) != _OWN)])


_Outcome = Tuple[Any, Optional[BaseException]]


async def _outcome(work: Awaitable[Any]) -> _Outcome:
    """Returns the result and the error of work. A SystemExit that left its task would end the loop of all jobs."""
    try:
        return await work, None
    except BaseException as e:
        return None, e


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop until it is closed. A handler's loop.stop(), or a task of its own that ends with
    SystemExit or KeyboardInterrupt, ends run_forever, but must not end the loop of all jobs."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            pass  # the task has it too, for the code that awaits the task


class MainLoop:
    """The event loop of a worker whose main thread runs the jobs. Only there asyncio can handle signals.

    It runs while a coroutine runs, and while the thread waits for the next job: tasks that jobs left behind go on.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def __enter__(self) -> MainLoop:
        _loops.main = self
        return self

    def __exit__(self, *error: Any) -> None:
        _loops.main = None
        if self._loop is None:
            return
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(_outcome(asyncio.wait(tasks, timeout=1)))
        self._loop.close()

    def mine(self) -> bool:
        return self._thread == threading.get_ident()

    def run(self, work: Coroutine[Any, Any, _Outcome]) -> _Outcome:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(work)
        task.add_done_callback(lambda task: task.get_loop().stop())
        while not task.done():
            self._forever(self._loop)
        return task.result()

    def next(self, items: queue.SimpleQueue[Item]) -> Item:
        """Waits for an item. `wake` must follow each put."""
        while self._loop is not None:
            try:
                return items.get_nowait()
            except queue.Empty:
                self._forever(self._loop)
        return items.get()

    def wake(self) -> None:
        """Ends a wait of next, from another thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _forever(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a task, see _run_on
            loop.run_forever()


class _Loops:
    """One event loop per process, so that a connection pool or HTTP session of the loop serves all jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self.main: Optional[MainLoop] = None  # runs the coroutines of the main thread

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_on, args=(self._loop,), name="qsidecar-asyncio", daemon=True).start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, _Outcome]) -> _Outcome:
        if self.main is not None and self.main.mine() and asyncio._get_running_loop() is None:
            return self.main.run(work)
        if asyncio._get_running_loop() is not None:  # a coroutine that enqueues inline: the running loop waits for this
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                return pool.submit(asyncio.run, work).result()
        return asyncio.run_coroutine_threadsafe(work, self.get()).result()


_loops = _Loops()


def _after_fork() -> None:
    """Runs in the child, which has no thread for its parent's loop."""
    global _loops
    _loops = _Loops()


os.register_at_fork(after_in_child=_after_fork)
