"""A lock for code that an exception of a signal handler can interrupt anywhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Deque

# How long a thread sleeps at most before it checks the lock again, in seconds: the thread that it
# was waiting for, or that was woken before it, can have been interrupted.
CHECK = 1.0


class Turn:
    """A lock whose owner is an object. Another thread can release it for the owner.

    A handler of a signal can raise its exception just after a plain lock's acquire, which then stays locked
    indefinitely. Here the caller releases it in any case, and nothing happens unless it is the owner.
    """

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()  # guards the fields below; `with` acquires it without that gap
        self._owner: Any = None
        self._thread = 0  # the thread in which the owner works
        self._waiting: Deque[threading.Lock] = deque()  # locked; released to wake their threads

    def take(self, owner: Any, timeout: float) -> bool:
        """Waits until the lock is free (timeout in seconds, negative: no limit) and returns whether owner has it now."""
        ends = time.monotonic() + timeout
        wake = None
        while True:
            with self._lock:
                if wake is not None and wake in self._waiting:
                    self._waiting.remove(wake)
                if self._owner is None:
                    self._thread = threading.get_ident()
                    self._owner = owner
                    return True
                left = CHECK if timeout < 0 else ends - time.monotonic()
                if left <= 0:
                    return False
                wake = threading.Lock()
                wake.acquire()
                self._waiting.append(wake)
            wake.acquire(timeout=min(left, CHECK))

    def held(self) -> bool:
        """Whether this thread has the lock, or is about to take or release it. If so, it would wait for itself."""
        return self._lock._is_owned() or (self._owner is not None and self._thread == threading.get_ident())

    def hand(self, owner: Any, thread: int) -> None:
        """Notes that the owner works in another thread from now on. 0: in none yet."""
        with self._lock:
            if self._owner is owner:
                self._thread = thread

    def give(self, owner: Any) -> None:
        """Releases the lock if owner has it."""
        with self._lock:
            if self._owner is owner:
                self._owner = None
                if self._waiting:
                    self._waiting.popleft().release()
