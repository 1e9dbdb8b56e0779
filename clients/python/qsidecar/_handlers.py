"""What a job's function gives: coroutines are run, and work that would be dropped unrun is refused.

A call of an `async def` or a generator function runs nothing of it. A job whose function is
one must not count as done for that.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import sys
import threading
import traceback
import types
from typing import Any, Awaitable, Callable, Coroutine, Optional, Tuple

# What may come back from a call that ran nothing.
_LAZY = (types.GeneratorType, types.AsyncGeneratorType, map, filter, zip, functools.partial)


def check(function: Callable[..., Any]) -> None:
    """Refuses a function whose call would give a generator. Coroutines are for finish."""
    for called in (function, getattr(type(function), "__call__", None)):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(f"{function!r} is a generator function, and calling it runs nothing: take the yield out of it")


def finish(value: Any) -> Any:
    """Runs what a function returned unrun, and returns what comes of that."""
    if inspect.isawaitable(value):
        result, error = _loops.run(_outcome(value))
        if error is not None:
            raise error
        return finish(result)
    if isinstance(value, concurrent.futures.Future):
        return finish(value.result())
    if _unrun(value):
        raise TypeError(f"the function returned a {type(value).__name__}, which has not run: its work was not done")
    if isinstance(value, (list, tuple, set)):
        for each in {type(each): each for each in value}.values():  # one of a kind: it may be a long list
            if _unrun(each) or inspect.isawaitable(each) or isinstance(each, concurrent.futures.Future):
                raise TypeError(f"the function returned a {type(each).__name__} in a {type(value).__name__}: wait for its work")
    return value


def _unrun(value: Any) -> bool:
    return isinstance(value, _LAZY) or type(value).__module__ in ("itertools", "contextlib") or inspect.isroutine(value)


def stay(pid: int, error: Optional[BaseException]) -> None:
    """Ends a child that a function forked and that came back from it: the job is its parent's to settle."""
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


def describe(error: BaseException) -> str:
    """An error for people: what, then where, the innermost calls first, in the 4 KiB that are kept."""
    what = "".join(traceback.format_exception_only(type(error), error)).strip()
    calls = reversed(traceback.extract_tb(error.__traceback__))
    own = os.path.dirname(__file__)
    return "\n".join([what, *(f"  in {c.name} ({c.filename}:{c.lineno})" for c in calls if os.path.dirname(c.filename) != own)])


_Outcome = Tuple[Any, Optional[BaseException]]


async def _outcome(work: Awaitable[Any]) -> _Outcome:
    """What work ends with. A SystemExit that left its task would end the loop of all jobs."""
    try:
        return await work, None
    except BaseException as e:
        return None, e


class _Loops:
    """One event loop of the process, so that what belongs to a loop (a pool, a session) serves all jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="qsidecar-asyncio", daemon=True).start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, _Outcome]) -> _Outcome:
        if asyncio._get_running_loop() is not None:  # as of a coroutine that enqueues inline: the loop waits for this
            with concurrent.futures.ThreadPoolExecutor(1) as aside:
                return aside.submit(asyncio.run, work).result()
        return asyncio.run_coroutine_threadsafe(work, self.get()).result()


_loops = _Loops()


def _after_fork() -> None:
    """In the child, which has no thread that runs its parent's loop."""
    global _loops
    _loops = _Loops()


os.register_at_fork(after_in_child=_after_fork)
