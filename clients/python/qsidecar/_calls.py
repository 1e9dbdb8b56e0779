"""The requests of a client: their callers' threads send them and wait. The session has the connection."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from . import errors
from ._call import SETTLES, Call, unanswered
from ._leases import Leases
from ._wire import Message, Wire, codec_named

NO_TIME = "no answer in time"
# How many bytes of frames are written at once.
BATCH = 64 << 10
# How often a call asks whether its caller's time is over, in seconds.
CHECK = 0.2


class Calls:
    def __init__(self, socket: Optional[str], codec: Optional[str]) -> None:
        self._path = socket  # that of the first connection, after it
        self._codec: Any = codec_named(codec)
        self._ending = threading.Event()

        # Guards the fields below. No thread takes it twice: reentrant checks that it has not got it.
        self.lock: Any = threading.RLock()
        self.progress = threading.Condition(self.lock)  # notified when a settle, or a call that close waits for, is answered
        self.server: Message = {}  # the last reply to hello
        self.wire: Optional[Wire] = None  # the open connection
        self._last_id = 0
        self.open: Dict[int, Call] = {}  # calls without a reply on the current connection
        self.queue: List[Call] = []  # calls that wait for a connection
        self.leases = Leases()
        self.joins = False  # the sidecar asks for a settle and the next claim in one request
        self.closing = False  # no new calls are accepted
        self._pausing: Dict[Any, str] = {}  # the ops of calls that pause between two tries, by latch
        self._writing: Deque[Tuple[Wire, Call, bool]] = deque()  # calls that a thread writes, see _write_in_thread
        self._unsent = 0  # calls without a caller that are not sent yet

    def submit(self, *calls: Call, internal: bool = False, on: Optional[Wire] = None, waits: bool = True) -> None:
        """Sends calls in one write if they are small, or queues them until there is a connection.

        With `on`, they are sent only on that connection. All have the same end of the caller's time. Without `waits` it
        doesn't wait until the sidecar reads: another thread does.
        """
        with self.lock:
            if self._ending.is_set() or (self.closing and not internal):
                raise errors.Closed("the client is closed")
            wire = self.wire
            if on is not None and wire is not on:
                raise errors.NotConnected(f"{calls[0].op}: the connection has ended")
            for call in calls:
                self._last_id += 1
                call.id = self._last_id
                if call.op in SETTLES:
                    self.leases.settling(call.leases(), +1)
                if wire is None:
                    self.queue.append(call)
                else:
                    self.open[call.id] = call
        if wire is None:
            return
        try:
            self._send(wire, *calls, waits=waits)
        except BaseException:
            for call in calls:
                self.leave(call)
            raise

    def _submit_in_thread(self, call: Call) -> None:
        """Submits a call without a caller, in a thread that can wait until the sidecar reads. The lock is held."""
        self._unsent += 1
        threading.Thread(target=self._submit_unless_closed, args=(call,), name="qsidecar-back", daemon=True).start()

    def _submit_unless_closed(self, call: Call) -> None:
        try:
            self.submit(call, internal=True)
        except errors.Closed:
            pass  # the connection is closed, so its jobs are free
        with self.lock:
            self._unsent -= 1
            self.progress.notify_all()

    def _send(self, wire: Wire, *calls: Call, waits: bool = True) -> None:
        """Writes calls. Calls that other threads have ready by then go into the same write."""
        encoded = None
        for each in calls:
            try:
                frame = self._encode(each)
            except Exception as e:  # the caller's fault: the call can't be encoded
                with self.lock:
                    self._finish(each, error=e)
                continue
            wire.pending.append((each, frame))
            encoded = each
        if encoded is None:
            return
        # The last one is written after the others.
        if waits:
            self._write_own(wire, encoded)
        else:
            self._write_now(wire, encoded)

    def _write_own(self, wire: Wire, call: Call, begun: bool = False) -> None:
        """Writes a call, and waits for that. begun: this call has `sending`, and the rest of a batch is unwritten."""
        writes = begun
        try:
            if begun:
                wire.sending.hand(call, threading.get_ident())
            elif not wire.sending.take(call, call.left()):
                with self.lock:
                    if not call.answered and not call.sent:
                        self._finish(call, error=self._late(call))
                return
            writes = True
            writes = self._write(wire, call, begun)
            if writes:
                wire.sending.hand(call, 0)
                threading.Thread(target=self._write_rest, args=(wire, call), name="qsidecar-write", daemon=True).start()
            else:
                wire.sending.give(call)
        except BaseException:
            if writes:
                wire.end()  # possibly half of a frame was sent, and no other frame must follow
            wire.sending.give(call)
            raise

    def _write_now(self, wire: Wire, call: Call) -> None:
        """Writes a call if that needs no waiting. Otherwise a thread writes it."""
        try:
            # If it took `sending` before a call of that thread, the thread would wait for the rest of this one.
            if self._writing or not wire.sending.take(call, 0):
                return self._write_in_thread(wire, call, False)
            while self._begin(wire, call):
                if wire.unwritten:
                    return self._write_in_thread(wire, call, True)
            wire.sending.give(call)
        except BaseException:
            wire.end()
            wire.sending.give(call)
            raise

    def _write_in_thread(self, wire: Wire, call: Call, begun: bool) -> None:
        """Lets a thread write a call. It is one thread for all calls, because a stopped sidecar can have thousands."""
        if begun:
            wire.sending.hand(call, 0)
        with self.lock:
            self._writing.append((wire, call, begun))
            runs = len(self._writing) > 1
        if runs:
            return
        try:
            threading.Thread(target=self._write_later, name="qsidecar-write", daemon=True).start()
        except RuntimeError as e:
            with self.lock:
                self._writing.clear()
            raise errors.NotConnected(f"{call.op}: no thread can start to write it: {e}") from e

    def _write_later(self) -> None:
        left = True
        while left:
            wire, call, begun = self._writing[0]
            try:
                self._write_own(wire, call, begun)
            except Exception:
                self.leave(call)
            with self.lock:
                self._writing.popleft()
                left, expired = bool(self._writing), call.expired
            if expired:
                self.abandon(call, NO_TIME)

    def expire(self, call: Call) -> None:
        """Ends a call at the end of its time, if no thread waits for it."""
        with self.lock:
            call.expired = True
            written = bool(self._writing) and self._writing[0][1] is call  # by a thread, which ends it
        if not written:
            self.abandon(call, NO_TIME)

    def _write(self, wire: Wire, own: Call, begun: bool) -> bool:
        """Writes pending frames until its own is written, unless another thread wrote that one already.

        begun: a batch is begun, and its rest is first. Returns True if another thread must write the rest, because the caller's time is over.
        """
        while begun or self._begin(wire, own):
            begun = broken = False
            try:
                wire.write_rest(own.ends)
            except OSError:
                broken = True
            if wire.unwritten:
                return self._give_up(wire, own, broken)
        return False

    def _begin(self, wire: Wire, own: Call) -> bool:
        """Begins to write pending frames, all at once if they are small. Returns False if its own call needs no write."""
        batch: List[Tuple[Call, bytes]] = []
        size = 0
        with self.lock:
            if own.sent or wire.closed:
                return False  # if the connection is closed, the reader queues the calls again
            while wire.pending and (not batch or size + len(wire.pending[0][1]) <= BATCH):
                call, frame = wire.pending.popleft()
                if not call.answered:
                    call.sent = True
                    batch.append((call, frame))
                    size += len(frame)
                elif call.id in self.open:
                    self._finish(call)
        if not batch:
            return False
        begun = wire.begin([frame for _, frame in batch])
        wire.current = batch[begun - 1]
        if begun < len(batch):
            with self.lock:
                self._put_back(wire, batch[begun:])
        return True

    def _put_back(self, wire: Wire, batch: List[Tuple[Call, bytes]]) -> None:
        """Undoes that frames were taken: nothing of them was written. The lock is held."""
        for call, _ in batch:
            call.sent = False
        wire.pending.extendleft(reversed(batch))

    def _give_up(self, wire: Wire, own: Call, broken: bool) -> bool:
        """Ends a write that failed or took too long. Returns True if another thread must write the rest."""
        call, frame = wire.current
        begun = wire.unwritten < len(frame)
        with self.lock:
            if self.wire is not wire:
                return False
            # a client that closes its connection loses its jobs
            goes_on = begun and not broken and bool(self.leases.held or any(c.claim() for c in self.open.values()))
            if not goes_on and not begun and not broken:
                self._put_back(wire, [wire.current])
                wire.skip()
            elif not goes_on:
                call.sent = wire.unwritten <= 1  # the sidecar accepts a JSON line without its newline; it drops any other partial frame
            if not broken and not own.answered and (call is own and not goes_on or not own.sent):
                self._finish(own, error=unanswered(own, NO_TIME) if own.sent else self._late(own))
        if not goes_on and (begun or broken):
            wire.end()  # the reader then requeues the open calls
        return goes_on

    def _write_rest(self, wire: Wire, own: Call) -> None:
        wire.sending.hand(own, threading.get_ident())
        try:
            wire.write_rest(None)
        except OSError:
            wire.end()
        finally:
            wire.sending.give(own)

    def _encode(self, call: Call) -> bytes:
        message = {"id": call.id, "op": call.op, **call.fields}
        if call.until is not None and (call.resent or not call.until):  # a claim that is sent again waits only for the rest of its time
            message["wait_ms"] = max(0, int((call.until - time.monotonic()) * 1000))
        frame: bytes = self._codec.encode(message)
        most, size = self.server.get("max_frame"), self._codec.size(frame)
        if most is not None and size > most:
            raise errors.TooLarge(
                f"{call.op} was not sent: it has {size} bytes and the sidecar takes {most} at most (max_frame)"
                ": store the data elsewhere and send its address, or raise max_frame in the sidecar's config"
            )
        return frame

    def wait(self, call: Call, over: Optional[Callable[[], bool]] = None) -> None:
        """Waits for the reply. Abandons the call if its time is over, or over() is true, or the caller is interrupted."""
        try:
            while not call.latch.acquire(timeout=call.left() if over is None else CHECK):
                if over is None or over():
                    self.abandon(call, NO_TIME)
                    return
        except BaseException:
            self.leave(call)
            raise

    def leave(self, call: Call) -> None:
        """Ends a call whose caller leaves with an exception, also if its reply has arrived by then."""
        if call.on_done is not None:  # it has no caller, so the next connection sends it
            wire = self.wire
            if wire is not None and not call.sent:
                wire.end()
            return
        self.abandon(call, "interrupted")
        with self.lock:
            if not call.abandoned and call.claim() and call.reply.get("jobs"):
                leases = [job.lease for job in call.reply["jobs"]]
                for lease in leases:
                    self.leases.held.pop(lease, None)
                self._give_back(leases)

    def _give_back(self, leases: List[str]) -> None:
        """Returns jobs that no caller gets, without using up an attempt. The lock is held."""
        back = Call("nack", {"leases": leases, "snooze": True, "delay_ms": 0})
        back.awaited_by_close = True
        self._submit_in_thread(back)

    def abandon(self, call: Call, why: str) -> None:
        with self.lock:
            if call.answered:
                return
            if not call.sent:  # and it will not be sent
                if call in self.queue:
                    self.queue.remove(call)
                self._finish(call, error=self._late(call))
                return
            call.error = unanswered(call, why)
            call.answered = call.abandoned = True
            call.latch.release()
            if call.op != "claim":
                return
            call.awaited_by_close = True
            self._submit_in_thread(Call("cancel_claim", {"request": call.id}))

    def _late(self, call: Call) -> errors.Error:
        """Returns the error of a call that was not sent within the caller's time."""
        if call.resent:
            return unanswered(call, NO_TIME)
        why = f"no sidecar answers on {self._path}" if self.wire is None else f"the sidecar on {self._path} doesn't read"
        return errors.NotConnected(f"{why}: {call.op} was not sent (waited {round(call.limit, 2):g} s)")

    def _bind_unsettled(self, leases: List[str]) -> None:
        """Binds leases whose settle failed. The lock is held."""
        raise NotImplementedError

    def _finish(self, call: Call, reply: Optional[Message] = None, error: Optional[Exception] = None) -> None:
        """Removes a call from the state of the client and wakes its caller."""
        self.open.pop(call.id, None)
        if call.op in SETTLES:
            self.leases.settling(call.leases(), -1)
            if reply is None or error is not None:
                self._bind_unsettled(call.leases())
        if not call.answered:
            call.answered = True
            call.reply = reply or {}
            call.error = error
            if call.on_done is None:
                call.latch.release()
            else:
                call.on_done(call)
        self.progress.notify_all()

    @contextmanager
    def pausing(self, call: Call, latch: Any) -> Iterator[None]:
        """Is around a pause after a try. Whatever ends the call during it, a cancelled claim for example, releases the latch."""
        settled = call.leases() if call.op in SETTLES else []
        with self.lock:
            # The reply to the second try reports a lease that is lost between two tries.
            self.leases.settling(settled, +1)
            if self.closing:
                latch.release()
            else:
                self._pausing[latch] = call.op
        try:
            yield
        finally:
            with self.lock:
                self._pausing.pop(latch, None)
                self.leases.settling(settled, -1)
        if self.closing:
            raise errors.Closed("the client is closed")

    def end_claims(self, error: Optional[Exception], ends: float) -> None:
        """Ends the waiting claims: they return what they get now, or fail with the error."""
        with self.lock:
            for call in [c for c in self.queue if c.op == "claim"]:
                self.queue.remove(call)
                self._finish(call, {"jobs": []}, error)
            for latch, op in self._pausing.items():
                if op == "claim" or error is not None:
                    latch.release()
            self._pausing.clear()
            waiting = [c for c in self.open.values() if c.op == "claim"]
            for call in waiting:
                call.until = 0.0  # if it is sent again
                if error is not None and not call.answered:
                    call.answered = call.abandoned = call.awaited_by_close = True
                    call.error = error
                    call.latch.release()
        if waiting:
            self.submit(Call("cancel_claim", {}, ends=ends), internal=True)
