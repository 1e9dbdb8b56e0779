"""Signals, and several processes of one worker."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Callable, Dict, Optional, Sequence, Tuple, Type

log = logging.getLogger("qsidecar")

# A process that a signal killed is replaced at once if it lived this long, in seconds.
STABLE_AFTER = 1.0
# How long a process that ends at once waits for its last line of the log, in seconds. Another thread can keep the log.
LAST_LINE = 1.0

_alive: Optional[int] = None  # in a child: a pipe that ends when the parent ends


class Signals:
    """SIGTERM and SIGINT as bytes in a pipe. A signal handler must not take a lock, but it can wake any thread.

    The main thread runs jobs, and can be in a call of C that takes hours. Then Python's handler is late, so Python also
    writes each signal to the pipe at once (set_wakeup_fd). A job can replace that, as asyncio does, but not both.
    """

    watched = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, *more: signal.Signals) -> None:
        self._handled = self._written = 0  # how many signals arrived, by the handler and in the pipe
        self._all = (*Signals.watched, *more)

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._closed = False
        self._guard: Optional[threading.Thread] = None
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {s: signal.signal(s, self._handle) for s in self._all}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._all)  # see _Parent.spawn
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._closed = True
        if self._guard is not None:
            self.poke()
            self._guard.join()
        os.close(self._read)
        os.close(self._write)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        if number in Signals.watched:
            self._handled += 1
        self.poke()

    @property
    def received(self) -> int:
        """How many signals arrived."""
        return max(self._handled, self._written)

    def _drain(self) -> None:
        """Reads from the pipe, and waits until it has something."""
        self._written += sum(number in Signals.watched for number in os.read(self._read, 512))

    def poke(self) -> None:
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            pass  # the pipe is full, so the reader wakes up anyway

    def wait(self, seconds: Optional[float]) -> bool:
        """Waits for a signal or for poke. Returns whether to stop. The end of the parent counts as a signal."""
        watched = [self._read] + ([] if _alive is None else [_alive])
        ready, _, _ = select.select(watched, [], [], seconds)
        if _alive in ready:
            return True
        if ready:
            self._drain()
        return self.received > 0

    def exit_at_second(self, report: Callable[[], None]) -> None:
        """Ends the process at the second signal, whatever it does at that time. report logs that."""

        def guard() -> None:
            while not self._closed:
                if self.received > 1:
                    _exit_now(report)
                self._drain()

        self._guard = threading.Thread(target=guard, name="qsidecar-signals", daemon=True)
        self._guard.start()


def _exit_now(report: Callable[[], None]) -> None:
    try:
        line = threading.Thread(target=report, name="qsidecar-log", daemon=True)
        line.start()
        line.join(LAST_LINE)
    finally:
        os._exit(1)


# The signals that the first process of a container passes on.
_PASSED_ON = (*Signals.watched, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def fork_if_first() -> None:
    """In the first process of a container, returns in a child. The first process reaps orphans until the child ends.

    The processes that a job leaves behind become children of the first process. They would stay as zombies, up to the
    limit of processes. The worker can't reap them itself: it doesn't know which children a job waits for.
    """
    if os.getpid() != 1:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # the first process gets no signal that it doesn't handle
    child = os.fork()
    if child == 0:
        os.setsid()  # otherwise a terminal sends it a signal that the first process passes on, too
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        return
    for number in _PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def run(works: Sequence[Callable[[], None]], exit_code: Callable[[BaseException], int]) -> None:
    """Runs each work in a process of its own until SIGTERM or SIGINT, passes the signal on and waits for them.

    A process that a signal killed is replaced. A process that fails ends the others, and run raises SystemExit with
    its exit code.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("run processes from the main thread, which handles the signals")
    mine, theirs = os.pipe()  # no process writes; the kernel closes it when this process ends
    parent = _Parent(mine, theirs, exit_code)
    with Signals(signal.SIGCHLD) as signals:
        for work in works:
            parent.spawn(work)
        while parent.children:
            signals.wait(1.0)
            if signals.received > 1:
                parent.signal(signal.SIGKILL)
                _exit_now(lambda: log.warning("ended by a second signal; each job that ran uses up an attempt"))
            if signals.received:
                parent.stop()
            parent.reap()
    os.close(mine)
    if not parent.stopping:
        os.close(theirs)
    if parent.failed:
        raise SystemExit(parent.failed)


class _Parent:
    def __init__(self, mine: int, theirs: int, exit_code: Callable[[BaseException], int]) -> None:
        self.exit_code = exit_code
        self.pipe = mine, theirs
        self.children: Dict[int, Tuple[Callable[[], None], float]] = {}  # by pid: what it does, and its start time
        self.stopping = False
        self.failed = 0  # the exit code of the first process that failed

    def spawn(self, work: Callable[[], None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # Before the child has its own handlers, a signal would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, Signals.watched)
        pid = os.fork()
        if pid == 0:
            self._child(work)
        self.children[pid] = work, time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.watched)

    def _child(self, work: Callable[[], None]) -> None:
        global _alive
        code = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _alive, theirs = self.pipe
            os.close(theirs)
            work()
            code = 0
        except BaseException as e:
            code = self.exit_code(e)
            log.exception("a worker process ended with an error")
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)  # do not run the parent's exit handlers

    def reap(self) -> None:
        for pid, (work, began) in list(self.children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del self.children[pid]
            if os.WIFSIGNALED(status) and not self.stopping:
                log.error("worker process %d was killed by signal %d: starting another one", pid, os.WTERMSIG(status))
                if time.monotonic() - began < STABLE_AFTER:
                    time.sleep(STABLE_AFTER)
                self.spawn(work)
            elif os.WIFEXITED(status) and status != 0:
                self.failed = self.failed or os.WEXITSTATUS(status)
                self.stop()

    def stop(self) -> None:
        # Close the pipe. A signal could be the second one, which ends the children at once: a
        # terminal or a service manager sends the first to all processes.
        if not self.stopping:
            self.stopping = True
            os.close(self.pipe[1])

    def signal(self, number: signal.Signals) -> None:
        for pid in self.children:
            os.kill(pid, number)
