"""Settles that no thread waits for. The worker begins its next job before they are answered."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import queue
import threading
import time
from time import monotonic as now  # the age of settles; tests replace it
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import errors
from ._call import Call, pause_for, transient
from ._settle import REJECTED, log_loss, refused
from ._wire import Message
from .client import Client
from .job import Job

log = logging.getLogger("qsidecar")

# How many jobs can be begun and not settled. If the worker dies, they are delivered again, although most of them are
# done. One commit of the sidecar answers all settles that arrived by then, and these are enough to keep a thread busy
# until then.
MOST = 32
# The same for each thread, for workers with many threads. A thread that waits for its settles has one, so with fewer
# than two these workers would wait more than that one.
MOST_EACH = 2
# No job begins while a settle is unanswered for so long, in seconds. No commit takes that long unless the database
# is in trouble, and each further job could be delivered again.
LONGEST = 1.0
# How old an unanswered settle can be when the run drains or ends, in seconds. A sidecar that was killed and is not
# started again never answers.
LAST = 60.0
# How often a thread that waits checks whether the run ends, in seconds.
CHECK = 0.2


class Settle:
    """A settle that is not carried out yet."""

    __slots__ = ("job", "op", "fields", "tries", "resent", "refused", "internal")

    def __init__(self, job: Job, op: str, fields: Message) -> None:
        self.job = job
        self.op = op
        self.fields = fields
        self.tries = 0
        self.resent = False  # an earlier try may have been carried out
        self.refused = False  # this is the nack that replaces an invalid settle
        self.internal = False  # the last try ended with an internal error


class Behind:
    """The settles of one run. The reader notes those that succeed. One thread handles the others."""

    def __init__(self, client: Client, threads: int, drain: bool, ending: Callable[[], bool]) -> None:
        self._client = client
        self._most = max(MOST, MOST_EACH * threads)
        self._drain = drain
        self._ending = ending
        self._changed = threading.Condition(threading.Lock())  # guards the next four fields
        self._begun: Set[Job] = set()  # jobs after begin, before settle or leave
        self._unanswered: Dict[Job, float] = {}  # since when; infinity once the database has rejected it
        self._sent: Dict[Job, float] = {}  # the jobs of _unanswered: since when, also then; the oldest is the first
        self._given_up = 0  # settles that a thread has waited for
        self._failed: queue.SimpleQueue[Optional[Tuple[Settle, Exception]]] = queue.SimpleQueue()
        self._later: List[Tuple[float, int, Settle]] = []  # a heap: when to send it again
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="qsidecar-settle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def settle(self, job: Job, op: str, fields: Message, claim: Optional[Message]) -> List[Job]:
        """Sends a settle and, if further jobs can begin, a claim. Returns the jobs of the claim when it is answered.

        It waits until a settle is too old.
        """
        settle = Settle(job, op, fields)
        with self._changed:
            self._begun.discard(job)
            self._unanswered[job] = self._sent[job] = now()
            if claim is not None and not self._can_begin():
                claim = None
        session = self._client._session
        with session.lock:
            # Until the reply that ends it, so also between two tries. Then the lease is not held any more.
            session.leases.settling([job.lease], +1)
        claiming = None if claim is None else Call("claim", claim)
        if not self._send(settle, claiming) or claiming is None:
            return []
        session.wait(claiming, self._late)
        jobs: List[Job] = claiming.reply.get("jobs") or []  # if it failed, the claim of the pool fails too
        return jobs

    def can_begin(self) -> bool:
        """Waits until a job can begin. Returns False if the run ends before."""
        with self._changed:
            return self._wait_to_begin()

    def begin(self, job: Job) -> bool:
        """Waits until the job can begin, and counts it until settle or leave. Returns False if the run ends before."""
        with self._changed:
            can = self._wait_to_begin()
            if can:
                self._begun.add(job)
            return can

    def leave(self, job: Job) -> None:
        """Ends a job after begin. It does nothing after settle."""
        with self._changed:
            if job in self._begun:
                self._begun.remove(job)
                self._changed.notify_all()

    def _wait_to_begin(self) -> bool:
        while not self._can_begin():
            if self._ending() or self._late():
                return False
            self._changed.wait(CHECK)
        return True

    def _late(self) -> bool:
        """Whether the run drains or ends, and a settle is unanswered for too long."""
        since = next(iter(list(self._sent.values())), None)  # also without the lock
        return since is not None and self._over_since(since)

    def _over_since(self, since: float) -> bool:
        return now() - since >= LAST and (self._drain or self._ending())

    def limit(self) -> Callable[[], bool]:
        """Returns whether the run drains or ends, and a settle that is sent now is too old by then."""
        since = now()
        return lambda: self._over_since(since)

    def give_up(self, job: Job) -> None:
        """Notes that no thread waits for the settle of the job any more. It is unanswered."""
        log.error("%r could not be settled: no answer from the sidecar", job)
        with self._changed:
            self._given_up += 1

    def _can_begin(self) -> bool:
        unanswered = self._unanswered
        return len(self._begun) + len(unanswered) < self._most and (
            not unanswered or now() - min(unanswered.values()) < LONGEST
        )

    def idle(self) -> bool:
        return not self._unanswered

    def wait(self, job: Optional[Job] = None) -> None:
        """Waits until the settle of the job, or without a job all settles, have ended, or the run ends, or one is too old."""
        with self._changed:
            while self._unanswered and (job is None or job in self._unanswered) and not self._ending() and not self._late():
                self._changed.wait(CHECK)

    def end(self) -> Optional[errors.Unavailable]:
        """Waits until all settles have ended. Gives up if one is too old, and returns the error of those without an answer."""
        with self._changed:
            while self._unanswered and not self._late():
                self._changed.wait(CHECK)
            left = list(self._unanswered)
        for job in left:
            self.give_up(job)
        self._failed.put(None)
        self._thread.join(CHECK if left else None)  # it can wait for a sidecar that doesn't read
        if not self._given_up:
            return None
        return errors.Unavailable(
            f"no answer for a minute to the settles of finished jobs ({self._given_up}): the sidecar or its database is unavailable; "
            "check that it runs: these jobs are delivered again, after the sidecar timeout at the latest"
        )

    def _send(self, settle: Settle, claim: Optional[Call] = None) -> bool:
        call = Call(settle.op, settle.fields, on_done=lambda call: self._answered(settle, call.error))
        call.resent = settle.resent
        session = self._client._session
        try:
            session.start(math.inf)
            session.submit(*([call] if claim is None else [call, claim]))
        except errors.Error as e:
            self._answered(settle, e)
            return False
        return True

    def _answered(self, settle: Settle, error: Optional[Exception]) -> None:
        """Notes an answer, mostly in the thread that reads. It must not wait, log or call the program."""
        if error is None:
            settle.job.settled = True
            self._over(settle)
        else:
            self._failed.put((settle, error))

    def _over(self, settle: Settle) -> None:
        with self._changed:
            self._unanswered.pop(settle.job, None)
            self._sent.pop(settle.job, None)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            try:
                pause = max(0.0, min(CHECK, self._later[0][0] - time.monotonic())) if self._later else None
                failed = self._failed.get(timeout=pause)
            except queue.Empty:
                pass
            else:
                if failed is None:
                    return
                self._guarded(failed[0], lambda: self._handle(*failed))
            self._send_again()

    def _send_again(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            settle = heapq.heappop(self._later)[2]
            self._guarded(settle, lambda: self._send(settle))
        if self._ending():
            for item in [item for item in self._later if item[2].internal]:
                self._later.remove(item)
                log.error("%r could not be settled", item[2].job)
                self._over(item[2])
            heapq.heapify(self._later)

    def _guarded(self, settle: Settle, step: Callable[[], Any]) -> None:
        try:
            step()
        except Exception:
            log.exception("%r could not be settled", settle.job)
            self._over(settle)

    def _handle(self, settle: Settle, error: Exception) -> None:
        job = settle.job
        settle.internal = False
        if transient(settle.op, settle.fields, error):
            settle.tries += 1
            settle.resent = settle.resent or isinstance(error, errors.UnknownOutcome)
            self._again(settle, pause_for(error, settle.tries))
        elif isinstance(error, errors.Internal) and not self._ending():
            log.warning("%r could not be settled yet: %s", job, error)
            settle.tries += 1
            settle.internal = True
            with self._changed:
                self._unanswered[job] = math.inf  # the database works, so other jobs can begin
                self._changed.notify_all()
            self._again(settle, min(0.05 * 2 ** min(settle.tries, 10), 2.0))
        elif not settle.refused and (isinstance(error, REJECTED) or not isinstance(error, errors.Error)):
            settle.op, settle.fields = "nack", refused(job, error)
            settle.tries, settle.resent, settle.refused = 0, False, True
            self._send(settle)
        else:
            self._report(job, error)
            self._over(settle)

    def _again(self, settle: Settle, pause: float) -> None:
        heapq.heappush(self._later, (time.monotonic() + pause, next(self._numbers), settle))

    def _report(self, job: Job, error: Exception) -> None:
        if isinstance(error, errors.SettledOrLost):
            job.settled = True
            log.info("%r: %s", job, error)
        elif isinstance(error, errors.LeaseLost):
            job.settled = True
            report_lost(self._client, job)
        else:
            log.error("%r could not be settled", job, exc_info=error)


def report_lost(client: Client, job: Job) -> None:
    """Reports that the lease of a finished job was lost before its settle."""
    log_loss(job)
    job._lost = True
    client._session._report_lost([job])
