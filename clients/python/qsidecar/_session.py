"""The connection that comes back, what its replies say, and the leases that are held.

Threads: callers write their own requests; one reader hands the replies out, and connects again when
the connection ends; after that a helper sends what was not answered, and binds what is held.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, List, Optional

from . import errors
from ._call import MAX_LIST, SETTLES, Call, backoff, pause_for, unanswered
from ._calls import Calls
from ._wire import STALLED, ClosedByPeer, Message, NoSidecar, Wire, sockets
from .job import Job

log = logging.getLogger("qsidecar")

# How long a connection must last before the pauses between tries begin anew, in seconds.
STEADY = 1.0
# How long the end waits for the reader, which may be in the middle of connecting.
JOIN_TIME = 5.0


class Session(Calls):
    def __init__(
        self,
        socket: Optional[str],
        worker: Optional[str],
        codec: Optional[str],
        make_job: Callable[[Message], Job],
        on_lost: Callable[[List[Job]], None],
        on_draining: Callable[[], None],
    ) -> None:
        super().__init__(codec)
        self._path = socket
        self._worker = worker
        self._make_job = make_job
        self._on_lost = on_lost
        self._on_draining = on_draining
        self._starting = threading.Lock()  # held while the first connection is made
        self._telling = threading.Lock()  # held while a callback runs: one at a time

        # Guarded by the lock.
        self._thread: Optional[threading.Thread] = None
        self._trying: Optional[Wire] = None  # the connection that is up, or being made
        self._links = 0  # connections so far

    # --- connections ---

    def start(self, deadline: float) -> None:
        """Makes the first connection, in the caller's thread: an error of it is the caller's."""
        if self._thread is not None:
            return
        if not self._starting.acquire(timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise errors.NotConnected("not sent: there was no connection in time")
        try:
            if self._thread is not None or self.closing:
                return
            wire = self._first(deadline)
            thread = threading.Thread(target=self._run, args=(wire,), name="qsidecar", daemon=True)
            thread.start()
            self._thread = thread
        finally:
            self._starting.release()

    def _first(self, deadline: float) -> Wire:
        first: Optional[Exception] = None
        for path in [self._path] if self._path else sockets():
            try:
                wire = self._connect(path, max(0.001, min(STALLED, deadline - time.monotonic())))
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as e:
                first = first or errors.NotConnected(f"no sidecar answers on {path}: {e}")
                continue
            except (OSError, NoSidecar) as e:
                raise errors.NotConnected(f"no sidecar answers on {path}: {e}") from e
            except Exception as e:
                if isinstance(e, errors.Error):
                    raise
                raise errors.NotConnected(f"no sidecar answers on {path}: {e}") from e
            self._path = path  # a client that connects again must not end up at another sidecar
            return wire
        assert first is not None
        raise first

    def _connect(self, path: str, patience: float = STALLED) -> Wire:
        """Connects and says hello, each of which may take so many seconds."""
        wire = self._trying = Wire(path, self._codec, self._links + 1, patience)
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
            wire.settle_in()
        except BaseException:
            wire.close()
            raise
        with self.lock:
            self.server = reply
            self._links = wire.number
            self.wire = wire
            again, self.queue = self.queue, []
            for call in again:
                self.open[call.id] = call
            busy = again or self.leases.unbound(wire.number)
        if busy:
            threading.Thread(target=self._catch_up, args=(wire, again), name="qsidecar-bind", daemon=True).start()
        return wire

    def _run(self, wire: Optional[Wire]) -> None:
        """The reader: it keeps a connection until the client is closed."""
        tries = 0
        while wire is not None:
            why = self._serve(wire)
            self._sort(wire, why)
            if time.monotonic() - wire.since >= STEADY:
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
                        log.warning("the sidecar is away, trying on: %s", e)
                    away = True
            if away and wire is not None:
                log.warning("the sidecar is back")
        with self.lock:
            self.leases.held.clear()
            for call in self.queue + list(self.open.values()):
                self._finish(call, error=errors.Closed("the client is closed"))
            self.queue = []

    def _serve(self, wire: Wire) -> Exception:
        while not self._ending.is_set():
            try:
                message = wire.read()
                self._take(wire, message)
            except (OSError, ClosedByPeer) as e:
                return e
            except Exception as e:
                log.warning("the connection to the sidecar is given up: %s", e)
                return e
        return errors.Closed("the client is closed")

    def _sort(self, wire: Wire, why: Exception) -> None:
        """Of the calls that were open when a connection ended some are sent again, the others told."""
        with self.lock:
            self.wire = None
        wire.close()
        wire.over.set()
        with self.lock:
            again = []
            for call in sorted(self.open.values(), key=lambda c: c.id):
                if call.abandoned or call.binder or (call.sent and not call.repeatable()):
                    self._finish(call, error=unanswered(call, str(why), sent=True))
                    continue
                call.twice, call.sent = call.twice or call.sent, False
                again.append(call)
            self.open.clear()
            self.queue = again + self.queue

    def _catch_up(self, wire: Wire, again: List[Call]) -> None:
        for call in again:
            self._send(wire, call)
        tries = 0
        while True:
            with self.lock:
                leases = self.leases.unbound(wire.number)[:MAX_LIST]
            if not leases:
                return
            call = Call("extend", {"leases": leases, "bind": True})
            call.binder = True
            try:
                self.submit(call, internal=True, on=wire)
            except errors.Error:
                return  # the next connection binds anew
            self.wait(call)
            if call.error is None:
                tries = 0
                continue
            tries += 1
            if wire.over.wait(pause_for(call.error, tries)):
                return

    # --- replies ---

    def _take(self, wire: Wire, message: Message) -> None:
        event = message.get("event")
        if event is not None:
            if event == "lost":
                with self.lock:
                    self._tell_lost(self.leases.drop(message.get("leases") or []))
            elif event == "draining":
                self._tell(self._on_draining)
            return  # others are a later version's
        ok = bool(message.get("ok"))
        error = None if ok else errors.from_wire(message.get("error") or {})
        with self.lock:
            if message.get("id") is None:
                if error is None:
                    raise NoSidecar("an answer without an id")
                # The whole connection's, which closes now. It may be about any of the open calls: none is
                # sent again, lest the guilty one break every connection to come.
                for call in list(self.open.values()):
                    self._finish(call, error=error)
                return
            found = self.open.get(message["id"])
            if found is None:
                return
            call = found
            outcome: Optional[Exception] = error
            if call.op == "bye" and ok:
                self._ending.set()  # the sidecar closes the connection, and there is no other
            elif call.op == "claim" and ok:
                self._claimed(wire, call, message)
            elif call.op in SETTLES:
                outcome = self.leases.settled(call, message, error)
            elif call.op == "extend":
                self._tell_lost(self.leases.extended(wire.number, call, message, error))
            self._finish(call, message, outcome)

    def _claimed(self, wire: Wire, call: Call, message: Message) -> None:
        jobs = message.get("jobs") or []
        if not call.abandoned:
            message["jobs"] = [self._make_job(j) for j in jobs]
            self.leases.claimed(wire.number, call, message["jobs"])
        elif jobs:
            back = Call("nack", {"leases": [j["lease"] for j in jobs], "charge": False, "delay_ms": 0})
            back.owed = True
            self._beside(back)

    def _tell_lost(self, jobs: List[Job]) -> None:
        if jobs:
            self._tell(lambda: self._on_lost(jobs))

    def _tell(self, callback: Callable[[], None]) -> None:
        """Runs a callback beside the reader, which must not wait for it."""

        def tell() -> None:
            with self._telling:
                callback()

        threading.Thread(target=tell, name="qsidecar-tell", daemon=True).start()

    # --- the end ---

    def settled_down(self, deadline: float) -> bool:
        """Waits until settles, and claims that nobody waits for any more, are answered; says whether they are."""
        with self.lock:
            return self.quiet.wait_for(
                lambda: not self._backs
                and not any(c.owed or c.op in SETTLES for c in [*self.open.values(), *self.queue]),
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

    def leave(self) -> None:
        """After a fork, in the child: the connection is the parent's."""
        if self._trying is not None:
            self._trying.leave()
