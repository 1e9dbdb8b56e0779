"""Calls on their way to an answer: what their callers' threads do. The session has the connection."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List, Optional

from . import errors
from ._call import SETTLES, Call, unanswered
from ._leases import Leases
from ._wire import Message, Wire, codec_named

NO_TIME = "no answer in time"


class Calls:
    def __init__(self, codec: Optional[str]) -> None:
        self._codec: Any = codec_named(codec)
        self._ending = threading.Event()

        self.lock = threading.Lock()  # guards what follows
        self.quiet = threading.Condition(self.lock)  # a settle or something owed was answered
        self.server: Message = {}  # the last answer to hello
        self.wire: Optional[Wire] = None  # the connection that is up
        self._last_id = 0
        self.open: Dict[int, Call] = {}  # not answered on the present connection
        self.queue: List[Call] = []  # waiting for one
        self.leases = Leases()
        self.closing = False  # no new calls
        self._resting: Dict[threading.Lock, str] = {}  # the ops of calls between two tries
        self._backs = 0  # calls without a caller, on their way to be sent

    def submit(self, call: Call, internal: bool = False, on: Optional[Wire] = None) -> None:
        """Sends a call, or keeps it until there is a connection; `on` is the only one it is for."""
        with self.lock:
            if self._ending.is_set() or (self.closing and not internal):
                raise errors.Closed("the client is closed")
            wire = self.wire
            if on is not None and wire is not on:
                raise errors.NotConnected(f"{call.op}: the connection has ended")
            self._last_id += 1
            call.id = self._last_id
            if call.op in SETTLES:
                self.leases.settling(call.leases(), +1)
            if wire is None:
                self.queue.append(call)
                return
            self.open[call.id] = call
        try:
            self._send(wire, call)
        except BaseException:
            self.abandon(call, "interrupted")
            raise

    def _beside(self, call: Call) -> None:
        """Submits a call without a caller, by a thread that can wait until the sidecar reads. The lock is held."""
        self._backs += 1
        threading.Thread(target=self._aside, args=(call,), name="qsidecar-back", daemon=True).start()

    def _aside(self, call: Call) -> None:
        try:
            self.submit(call, internal=True)
        except errors.Closed:
            pass  # the connection is closed, and what it held is free
        with self.lock:
            self._backs -= 1
            self.quiet.notify_all()

    def _send(self, wire: Wire, call: Call) -> None:
        try:
            frame = self._encode(call)
        except Exception as e:  # not a message: its caller's fault, and nobody else's
            with self.lock:
                self._finish(call, error=e)
            return
        if not wire.sending.acquire(timeout=call.left()):
            with self.lock:
                if not call.told:
                    self._finish(call, error=unanswered(call, NO_TIME))
            return
        goes_on = False
        try:
            if self._write(wire, call, frame):
                threading.Thread(target=self._go_on, args=(wire,), name="qsidecar-write", daemon=True).start()
                goes_on = True
        except BaseException:
            wire.end()  # half a frame may be on it, and no other must follow that
            raise
        finally:
            if not goes_on:
                wire.sending.release()

    def _write(self, wire: Wire, call: Call, frame: bytes) -> bool:
        """Writes a frame, and says whether the rest of it must be written beside its caller, whose time is over."""
        with self.lock:
            if call.told and call.id in self.open:
                self._finish(call)
            if call.told or wire.dead:
                return False  # in the latter case the reader puts it back among those to send
            call.sent = True
        broken = False
        try:
            wire.write(frame, call.ends)
        except OSError:
            broken = True
        if not wire.left:
            return False
        begun = wire.left < len(frame)
        with self.lock:
            if self.wire is not wire:
                return False
            if begun and not broken and (self.leases.held or any(c.op == "claim" for c in self.open.values())):
                return True  # a client that ends its connection loses what it holds
            call.sent = wire.left <= 1  # the sidecar reads a JSON line without its newline too; other halves of a frame it drops
            if not broken:
                self._finish(call, error=unanswered(call, NO_TIME, call.sent))
        if begun or broken:
            wire.end()  # the reader notices, and sorts what was open
        return False

    def _go_on(self, wire: Wire) -> None:
        try:
            wire.go_on(None)
        except OSError:
            wire.end()
        finally:
            wire.sending.release()

    def _encode(self, call: Call) -> bytes:
        message = {"id": call.id, "op": call.op, **call.fields}
        if call.until is not None and (call.twice or not call.until):  # the wait goes on, it does not begin again
            message["wait_ms"] = max(0, int((call.until - time.monotonic()) * 1000))
        frame: bytes = self._codec.encode(message)
        most, size = self.server.get("max_frame"), self._codec.size(frame)
        if most is not None and size > most:
            raise errors.TooLarge(
                f"{call.op} was not sent: it has {size} bytes and the sidecar takes {most} at most (max_frame)"
            )
        return frame

    def wait(self, call: Call) -> None:
        """Waits for the answer. When the time is over, or the caller is interrupted, the call is given up."""
        try:
            if not call.latch.acquire(timeout=call.left()):
                self.abandon(call, NO_TIME)
        except BaseException:
            self.abandon(call, "interrupted")
            raise

    def abandon(self, call: Call, why: str) -> None:
        with self.lock:
            if call.told:
                return
            if not call.sent:  # and it will not be
                if call in self.queue:
                    self.queue.remove(call)
                self._finish(call, error=unanswered(call, why))
                return
            call.error = unanswered(call, why, sent=True)
            call.told = call.abandoned = True
            call.latch.release()
            if call.op != "claim":
                return
            call.owed = True
            self._beside(Call("cancel", {"request": call.id}))

    def _finish(self, call: Call, reply: Optional[Message] = None, error: Optional[Exception] = None) -> None:
        """Takes a call out of all books and tells its caller."""
        self.open.pop(call.id, None)
        if call.op in SETTLES:
            self.leases.settling(call.leases(), -1)
        if not call.told:
            call.told = True
            call.reply = reply or {}
            call.error = error
            call.latch.release()
        self.quiet.notify_all()

    def rest(self, op: str, seconds: float) -> bool:
        """Waits between two tries, and says whether to go on: a claim may be cancelled meanwhile."""
        latch = threading.Lock()
        latch.acquire()
        with self.lock:
            self._resting[latch] = op
        try:
            stopped = not self.closing and latch.acquire(timeout=seconds)
        finally:
            with self.lock:
                self._resting.pop(latch, None)
        if self.closing:
            raise errors.Closed("the client is closed")
        return not stopped

    def end_claims(self, error: Optional[Exception], ends: float) -> None:
        """Ends the claims that wait: with what they get now, or if there is an error with that."""
        with self.lock:
            for call in [c for c in self.queue if c.op == "claim"]:
                self.queue.remove(call)
                self._finish(call, {"jobs": []}, error)
            for latch, op in self._resting.items():
                if op == "claim" or error is not None:
                    latch.release()
            self._resting.clear()
            waiting = [c for c in self.open.values() if c.op == "claim"]
            for call in waiting:
                call.until = 0.0  # should it be sent again
                if error is not None and not call.told:
                    call.told = call.abandoned = call.owed = True
                    call.error = error
                    call.latch.release()
        if waiting:
            self.submit(Call("cancel", {}, ends=ends), internal=True)
