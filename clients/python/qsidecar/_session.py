"""The connection of a client: connecting, reconnecting and handling replies.

Threads: callers write their own requests. One reader delivers the replies, and reconnects if the connection ends.
After a reconnect a helper thread sends the unanswered calls and binds the held leases.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from typing import Any, Callable, List, Optional, Tuple

from . import errors
from ._call import MAX_LIST, SETTLES, Call, backoff, pause_for, unanswered
from ._calls import Calls
from ._turn import Turn
from ._wire import STALLED, ClosedByPeer, Message, NoSidecar, Wire, not_listening, sockets, why_not
from .job import BaseJob

log = logging.getLogger("qsidecar")

# How long a connection must last before the back-off starts resend, in seconds.
STABLE_AFTER = 1.0
# How long the end waits for the reader, which can be connecting, in seconds.
JOIN_TIME = 5.0


class Session(Calls):
    def __init__(
        self,
        socket: Optional[str],
        worker: Optional[str],
        codec: Optional[str],
        make_job: Callable[[Message], BaseJob],
        on_lost: Callable[[List[Any]], None],
        on_draining: Callable[[], None],
    ) -> None:
        super().__init__(socket, codec)
        self._worker = worker
        self._make_job = make_job
        self._on_lost = on_lost
        self._on_draining = on_draining
        self._starting = Turn()  # held while the first connection is opened
        self._callback_lock = threading.Lock()  # held while a callback runs, so that there is one at a time
        self._log_lock = threading.Lock()  # held while a line is logged, so that the order is kept
        self._lines: queue.SimpleQueue[Tuple[str, Tuple[object, ...]]] = queue.SimpleQueue()  # to log

        # Guarded by the lock.
        self._thread: Optional[threading.Thread] = None
        self._trying: Optional[Wire] = None  # the connection that is open or being opened
        self._connections = 0  # number of connections so far
        self._binding: Optional[Wire] = None  # the connection on which a thread binds leases

    # --- calls from anywhere ---

    def reentrant(self) -> bool:
        """Whether a call in this thread would wait for itself.

        A signal handler or a finalizer can run in any thread between two steps, also while that thread has a lock.
        """
        wire = self._trying
        return (
            (self._thread is not None and self._thread.ident == threading.get_ident() and not self._ending.is_set())
            or self.lock._is_owned()
            or self._starting.held()
            or (wire is not None and wire.sending.held())
        )

    def reject_reentrant(self, op: str) -> None:
        """Raises an error if a call in this thread could never be answered."""
        if sys.is_finalizing():
            raise errors.Closed(f"{op} was not sent: the interpreter ends, and the client's threads have ended")
        if self.reentrant():
            raise errors.Reentrant(
                f"{op} was not sent: it came from a signal handler, a finalizer or a hook, which interrupted this client in "
                "the same thread and would wait for it; hand the data to another thread (queue.SimpleQueue) and call there"
            )

    # --- connections ---

    @property
    def started(self) -> bool:
        """Whether the first connection was opened."""
        return self._thread is not None

    def start(self, deadline: float) -> None:
        """Opens the first connection in the caller's thread, so that the caller gets its error."""
        if self._thread is not None:
            return
        caller = object()
        try:
            if not self._starting.take(caller, max(0.0, deadline - time.monotonic())):
                raise self.unstarted()
            if self._thread is not None or self.closing:
                return
            wire = self._first(deadline)
            thread = threading.Thread(target=self._run, args=(wire,), name="qsidecar", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:
                wire.close()
                raise errors.NotConnected(f"not sent: the client's thread can't start: {e}") from e
            self._thread = thread
        finally:
            self._starting.give(caller)

    def unstarted(self) -> errors.Error:
        """Returns the error of a call whose time is over before the first connection."""
        return errors.NotConnected(f"no sidecar has answered on {' or '.join(sockets(self._path))} yet: nothing was sent")

    def _first(self, deadline: float) -> Wire:
        tried: List[Tuple[str, OSError]] = []
        for path in sockets(self._path):
            try:
                wire = self._connect(path, max(0.001, min(STALLED, deadline - time.monotonic())))
            except (OSError, NoSidecar) as e:
                if isinstance(e, OSError) and not_listening(e):
                    tried.append((path, e))
                    continue
                raise errors.NotConnected(f"no sidecar answers on {path}: {e}") from e
            except Exception as e:
                if isinstance(e, errors.Error):
                    raise
                raise errors.NotConnected(f"no sidecar answers on {path}: {e}") from e
            self._path = path  # a client that reconnects must not reach another sidecar
            return wire
        paths = " or ".join(f"{path} ({why_not(path, e)})" for path, e in tried)
        raise errors.NotConnected(f"no sidecar answers on {paths}: start one, or name its socket in QSIDECAR_SOCKET") from tried[0][1]

    def _connect(self, path: str, limit: float = STALLED) -> Wire:
        """Connects and sends hello. Each step can take `limit` seconds."""
        wire = self._trying = Wire(path, self._codec, self._connections + 1, limit)
        try:
            if self._ending.is_set():
                raise errors.Closed("the client is closed")
            hello: Message = {"id": 0, "op": "hello", "version": 1, "events": ["lost", "draining"]}
            if self._worker:
                hello["worker"] = self._worker
            frame = self._codec.encode(hello)
            wire.write(frame, None)
            reply = wire.read()
            while "event" in reply:
                reply = wire.read()
            if not reply.get("ok"):
                raise errors.from_wire(reply.get("error") or {})
            wire.end_handshake()
        except BaseException:
            wire.close()
            raise
        with self.lock:
            self.server = reply
            self._connections = wire.number
            self.wire = wire
            self.joins = False
            resend, self.queue = self.queue, []
            for call in resend:
                self.open[call.id] = call
            busy = resend or self.leases.unbound(wire.number)
        if busy:
            threading.Thread(target=self._resend_and_bind, args=(wire, resend), name="qsidecar-bind", daemon=True).start()
        return wire

    def _run(self, wire: Optional[Wire]) -> None:
        """The reader thread. It keeps a connection open until the client is closed."""
        tries = 0
        while wire is not None:
            why = self._serve(wire)
            self._requeue(wire, why)
            if time.monotonic() - wire.since >= STABLE_AFTER:
                tries = 0
            wire, away = None, False
            while not self._ending.is_set() and wire is None:
                if tries and self._ending.wait(backoff(tries)):
                    break
                tries += 1
                try:
                    wire = self._connect(str(self._path))
                except Exception as e:
                    if not away and not self._ending.is_set():  # a restart is over by the first try
                        self._log("can't reach the sidecar on %s, trying again: %s", self._path, e)
                    away = True
            if away and wire is not None:
                self._log("reconnected to the sidecar")
        with self.lock:
            self.leases.held.clear()
            for call in self.queue + list(self.open.values()):
                self._finish(call, error=errors.Closed("the client is closed"))
            self.queue = []

    def _serve(self, wire: Wire) -> Exception:
        while not self._ending.is_set():
            try:
                message = wire.read()
                self._handle(wire, message)
            except (OSError, ClosedByPeer) as e:
                return e
            except Exception as e:
                self._log("closed the connection to the sidecar: %s", e)
                return e
        return errors.Closed("the client is closed")

    def _requeue(self, wire: Wire, why: Exception) -> None:
        """Queues the calls of a connection that ended if they can be repeated, and fails the others."""
        with self.lock:
            self.wire = None
        wire.close()
        wire.reader_done.set()
        with self.lock:
            resend = []
            for call in sorted(self.open.values(), key=lambda c: c.id):
                if call.abandoned or call.rebinds or call.op == "bye" or (call.sent and not call.repeatable()):
                    self._finish(call, error=unanswered(call, str(why)))
                    continue
                call.resent, call.sent = call.resent or call.sent, False
                resend.append(call)
            self.open.clear()
            self.queue = resend + self.queue

    def _resend_and_bind(self, wire: Wire, resend: List[Call]) -> None:
        for call in resend:
            self._send(wire, call)
        tries = 0
        while True:
            with self.lock:
                leases = self._to_bind(wire)[:MAX_LIST]
                self._binding = wire if leases else None
            if not leases:
                return
            call = Call("extend", {"leases": leases, "bind": True})
            call.rebinds = True
            try:
                self.submit(call, internal=True, on=wire)
            except errors.Error:
                return  # the next connection binds them
            self.wait(call)
            if call.error is None:
                tries = 0
                continue
            tries += 1
            if wire.reader_done.wait(pause_for(call.error, tries)):
                return

    def _to_bind(self, wire: Wire) -> List[str]:
        """Returns the leases to bind, without those of a settle under way: a bind after it would find them lost."""
        settling = {lease for call in [*self.open.values(), *self.queue] if call.op in SETTLES for lease in call.leases()}
        return [lease for lease in self.leases.unbound(wire.number) if lease not in settling]

    def _bind_unsettled(self, leases: List[str]) -> None:
        wire = self.wire
        if wire is not None and self._binding is not wire and not self.leases.bound(leases, wire.number):
            self._binding = wire
            threading.Thread(target=self._resend_and_bind, args=(wire, []), name="qsidecar-bind", daemon=True).start()

    # --- replies ---

    def _handle(self, wire: Wire, message: Message) -> None:
        event = message.get("event")
        if event is not None:
            if event == "lost":
                with self.lock:
                    self._report_lost(self.leases.lose(message.get("leases") or [], message.get("reason")))
            elif event == "draining":
                self._run_callback(self._on_draining)
            return  # an event of a later version
        ok = bool(message.get("ok"))
        error = None if ok else errors.from_wire(message.get("error") or {})
        with self.lock:
            if message.get("id") is None:
                if error is None:
                    raise NoSidecar("a reply without an id")
                # The error is about the whole connection, which closes. Any open call can be the
                # cause. None is repeated, because the cause would break every later connection too.
                for call in list(self.open.values()):
                    self._finish(call, error=error)
                return
            found = self.open.get(message["id"])
            if found is None:
                return
            call = found
            outcome: Optional[Exception] = error
            if call.claim() is not None:
                self.joins = message.get("join") is True
            if call.claim():  # a settle that failed can have jobs of its claim
                self._claimed(wire, call, message)
            if call.op == "bye" and ok:
                self._ending.set()  # the sidecar closes the connection, and the client opens no other
            elif call.op in SETTLES:
                outcome = self.leases.settled(call, message, error)
            elif call.op == "extend":
                self._report_lost(self.leases.extended(wire.number, call, message, error))
            self._finish(call, message, outcome)

    def _claimed(self, wire: Wire, call: Call, message: Message) -> None:
        jobs = message.get("jobs") or []
        if not call.abandoned:
            message["jobs"] = [self._make_job(j) for j in jobs]
            self.leases.claimed(wire.number, call, message["jobs"])
        elif jobs:
            self._give_back([j["lease"] for j in jobs])

    def _report_lost(self, jobs: List[BaseJob]) -> None:
        if jobs:
            self._run_callback(lambda: self._on_lost(jobs))

    def _run_callback(self, callback: Callable[[], None]) -> None:
        """Runs a callback in another thread, because the reader must not wait for it."""

        def locked() -> None:
            with self._callback_lock:
                callback()

        threading.Thread(target=locked, name="qsidecar-callback", daemon=True).start()

    def _log(self, text: str, *args: object) -> None:
        """Logs in another thread. A log handler can wait, also for this client, and the reader must not."""

        def write() -> None:
            with self._log_lock:
                line, values = self._lines.get()
                log.warning(line, *values)

        self._lines.put((text, args))
        try:
            threading.Thread(target=write, name="qsidecar-log", daemon=True).start()
        except RuntimeError:
            pass  # no thread can start: the interpreter ends, or the process has too many

    # --- the end ---

    def wait_settled(self, deadline: float) -> bool:
        """Waits until settles and abandoned claims are answered. Returns whether they are."""
        with self.lock:
            return self.progress.wait_for(
                lambda: not self._unsent
                and not any(c.awaited_by_close or c.op in SETTLES for c in [*self.open.values(), *self.queue]),
                max(0.0, deadline - time.monotonic()),
            )

    def end(self) -> None:
        self._ending.set()
        with self.lock:
            self.closing = True
            wire, thread = self._trying, self._thread
        if wire is not None:
            wire.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_TIME)

    def close_after_fork(self) -> None:
        """After a fork, in the child: closes the copy of the parent's connection."""
        if self._trying is not None:
            self._trying.close_after_fork()
