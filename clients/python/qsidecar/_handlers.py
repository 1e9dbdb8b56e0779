"""What a job's function gives: coroutines are run, and work that would be dropped unrun is refused.

A call of an `async def` or a generator function runs nothing of it. A job whose function is
one must not count as done for that.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import threading
import types
from typing import Any, Awaitable, Callable, Optional, Tuple

# What may come back from a call that ran nothing.
_LAZY = (types.GeneratorType, types.AsyncGeneratorType, map, filter, zip)


def check(function: Callable[..., Any]) -> None:
    """Refuses a function whose call would give a generator. Coroutines are for finish."""
    for called in (function, getattr(type(function), "__call__", None)):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(f"{function!r} is a generator function, and calling it runs nothing: take the yield out of it")


def finish(value: Any) -> Any:
    """Runs what a function returned unrun, and returns what comes of that."""
    if inspect.isawaitable(value):
        result, error = asyncio.run_coroutine_threadsafe(_outcome(value), _loops.get()).result()
        if error is not None:
            raise error
        return finish(result)
    if isinstance(value, concurrent.futures.Future):
        return finish(value.result())
    if isinstance(value, _LAZY):
        raise TypeError(f"the function returned a {type(value).__name__}, which has not run: its work was not done")
    return value


async def _outcome(work: Awaitable[Any]) -> Tuple[Any, Optional[BaseException]]:
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


_loops = _Loops()


def _after_fork() -> None:
    """In the child, which has no thread that runs its parent's loop."""
    global _loops
    _loops = _Loops()


os.register_at_fork(after_in_child=_after_fork)
