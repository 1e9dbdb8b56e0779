"""A job to store, and a job that is claimed."""

from __future__ import annotations

import json
import math
import time
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Union

from . import errors

if TYPE_CHECKING:
    from .client import Client

Seconds = Union[float, int, timedelta]


# A run whose lease is lost so shortly before its time limit was ended by it, in seconds, at most half of it. The sidecar counts
# the run from the commit of the claim, and the client from the reply.
_ALMOST = 0.1
# The limits of the protocol, in seconds, by the name that the functions have for them.
_TEN_YEARS = 10 * 366 * 86400
_LAST_INSTANT = 253_402_300_799_999  # the end of the year 9999
_SPANS = {
    "delay": (0, _TEN_YEARS),
    "timeout": (0.001, _TEN_YEARS),
    "start_within": (0.001, _TEN_YEARS),
    "retain": (0.001, _TEN_YEARS),
    "debounce_max": (0.001, _TEN_YEARS),
    "lease": (1, 86400),
    "wait": (0, 3600),
    "key_ttl": (0, _TEN_YEARS),
    "every": (1, 366 * 86400),
    "splay": (1, 86400),
}


def millis(name: str, span: Seconds) -> int:
    """Converts a time span to milliseconds, rounded up so that a short wait does not become none.

    An error of the sidecar would name the field of the wire, in another unit.
    """
    least, most = _SPANS[name]
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"{name}={span!r}: pass a number of seconds or a timedelta")
    if not least <= seconds <= most:
        raise ValueError(f"{name}={span!r}: must be from {least} to {most} seconds")
    return math.ceil(seconds * 1000)


def instant(at: Union[datetime, float, int]) -> int:
    """Converts an instant to milliseconds since 1970. Rejects a datetime without a time zone."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"run_at={at!r} has no time zone: add one, datetime.now(timezone.utc) for example")
        return math.ceil((at - datetime(1970, 1, 1, tzinfo=timezone.utc)) / timedelta(milliseconds=1))
    if not isinstance(at, (int, float)):
        raise TypeError(f"run_at={at!r}: pass a datetime with a time zone, or seconds since 1970")
    return math.ceil(at * 1000)


def _run_at(at: Union[datetime, float, int, None], delay: Optional[Seconds]) -> Optional[int]:
    if at is None:
        return None
    if delay is not None:
        raise ValueError("delay and run_at exclude each other")
    return _wire_instant("run_at", at)


def _start_before(at: Union[datetime, float, int, None], within: Optional[Seconds]) -> Optional[int]:
    if at is None:
        return None
    if within is not None:
        raise ValueError("start_before and start_within exclude each other")
    return _wire_instant("start_before", at)


def _wire_instant(name: str, at: Union[datetime, float, int]) -> int:
    ms = instant(at)
    if _LAST_INSTANT < ms <= 1000 * _LAST_INSTANT:
        raise ValueError(f"{name}={at!r}: must be seconds since 1970, and this is probably milliseconds")
    if not 0 <= ms <= _LAST_INSTANT:
        raise ValueError(f"{name}={at!r}: must be in the years 1970 to 9999")
    return ms


def dump(payload: Any, raw: Optional[bytes], what: str) -> Optional[bytes]:
    """Returns the bytes of a payload or result: JSON, or raw unchanged. None if neither is given. Errors name it as `what`."""
    if raw is not None:
        if payload is not None:
            raise ValueError("pass a JSON value or raw=, not both")
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise TypeError(f"raw is of the type {type(raw).__name__}: pass bytes")
        return bytes(raw)
    if payload is None:
        return None
    if isinstance(payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what} can't be JSON: bytes aren't a JSON value: pass them as raw=")
    try:
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as e:  # a UnicodeEncodeError can't be created with another text
        kind, hint = TypeError if isinstance(e, TypeError) else ValueError, " (for bytes pass raw=)" if "bytes" in str(e) else ""
        advice = ": convert the value first, for example with str()" if kind is TypeError and not hint else ""
        raise kind(f"{what} can't be JSON{hint}: {e}{advice}") from None


def _headers(headers: Mapping[str, str]) -> Dict[str, str]:
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers={headers!r}: pass a dict of texts")
    return dict(headers)


class NewJob(NamedTuple):
    """A job to store. For every field that is None, the queue's config decides.

    payload is any JSON value. raw is bytes that are stored unchanged, instead of payload. delay (seconds, up to ten
    years) or run_at (a datetime with a time zone, or seconds since 1970) schedules the job. key makes the enqueue
    idempotent, so that the client can repeat it. timeout limits one run, in seconds. Jobs of the queue with the same group
    run one at a time and in order, or as many at once as the queue's group_limit allows. batch is the id of an open batch. No run starts at start_before (as
    run_at) or later, or start_within seconds after the job is ready first. on_expiry is what becomes of a job that didn't
    start in time: "dead" or "delete". The done job is kept for retain seconds at least, so that others find its result. With key_until="start" the key returns
    the job only until a worker has it, so that the client's repetition can store a second job. on_conflict is what becomes of the job if the
    key returns another one: "keep" (it isn't stored), "replace" (the other one gets its payload, headers and time; while that runs, it
    waits for the end) or "debounce" (the same, and the other one waits for delay again, but at most debounce_max seconds after it was stored).
    """

    queue: str
    payload: Any = None
    raw: Optional[bytes] = None
    priority: int = 0
    delay: Optional[Seconds] = None
    run_at: Union[datetime, float, int, None] = None
    key: Optional[str] = None
    headers: Optional[Mapping[str, str]] = None
    max_attempts: Optional[int] = None
    timeout: Optional[Seconds] = None
    group: Optional[str] = None
    batch: Optional[str] = None
    start_before: Union[datetime, float, int, None] = None
    start_within: Optional[Seconds] = None
    on_expiry: Optional[str] = None
    retain: Optional[Seconds] = None
    key_until: Optional[str] = None
    on_conflict: Optional[str] = None
    debounce_max: Optional[Seconds] = None

    def fields(self) -> Dict[str, Any]:
        """Returns the fields as the wire has them."""
        fields: Dict[str, Any] = {
            "queue": self.queue,
            "payload": dump(self.payload, self.raw, f"the payload of a job for {self.queue}"),
            "priority": self.priority or None,
            "delay_ms": None if self.delay is None else millis("delay", self.delay),
            "run_at": _run_at(self.run_at, self.delay),
            "key": self.key,
            "headers": _headers(self.headers) if self.headers else None,
            "max_attempts": self.max_attempts,
            "timeout_ms": None if self.timeout is None else millis("timeout", self.timeout),
            "group": self.group,
            "batch": self.batch,
            "start_before": _start_before(self.start_before, self.start_within),
            "start_within_ms": None if self.start_within is None else millis("start_within", self.start_within),
            "on_expiry": self.on_expiry,
            "retain_ms": None if self.retain is None else millis("retain", self.retain),
            "key_until": self.key_until,
            "on_conflict": self.on_conflict,
            "debounce_max_ms": None if self.debounce_max is None else millis("debounce_max", self.debounce_max),
        }
        return {name: value for name, value in fields.items() if value is not None}


class Enqueued(NamedTuple):
    """The result of an enqueue. For a duplicate, id and state are those of the first job with its key.

    So they are with an outcome (see NewJob.on_conflict): "replaced", or "pending" until the first job's run ends.
    """

    id: str
    duplicate: bool = False
    state: Optional[str] = None
    outcome: Optional[str] = None

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Enqueued:
        return Enqueued(str(fields["id"]), bool(fields.get("duplicate")), fields.get("state"), fields.get("outcome"))


def enqueued_of(reply: Mapping[str, Any]) -> List[Enqueued]:
    return [Enqueued.of(e) for e in reply.get("enqueued") or []]


class Progress(NamedTuple):
    """How far a job was when its worker last reported it.

    done, total: as reported, or None. raw: the bytes of its data. at: when the sidecar stored it, in milliseconds since 1970.
    """

    done: Optional[int] = None
    total: Optional[int] = None
    raw: bytes = b""
    at: int = 0

    @property
    def data(self) -> Any:
        """The data as a JSON value, None if there is none. Raises ValueError if the bytes aren't JSON in UTF-8."""
        if not self.raw:
            return None
        try:
            return json.loads(self.raw.decode())
        except (ValueError, RecursionError) as e:
            raise ValueError(f"the data of a progress isn't JSON ({e}); raw has its bytes") from e

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Progress:
        data = fields.get("data") or b""
        raw = data.encode() if isinstance(data, str) else data
        return Progress(fields.get("done"), fields.get("total"), raw, fields.get("at", 0))


class BaseJob:
    """What Job and AsyncJob have in common: the data of a job that was claimed."""

    def __init__(self, client: Any, fields: Mapping[str, Any]) -> None:
        self._client = client
        self._lost = False
        self._cancelled = False
        self._cancel: Optional[Callable[[], Any]] = None  # cancels the task that runs the job
        self._then: List[NewJob] = []
        self._claim: Optional[Dict[str, Any]] = None  # the claim that its settle carries
        self._next: List[Any] = []  # the jobs that this claim got
        self.settled = False  # by this process
        self.id: str = fields["id"]
        self.queue: str = fields["queue"]
        self.lease: str = fields["lease"]  # do not log it: a lease is the right to settle
        payload = fields.get("payload") or b""
        self.raw: bytes = payload.encode() if isinstance(payload, str) else payload
        self.attempt: int = fields["attempt"]  # from 1
        self.max_attempts: int = fields["max_attempts"]  # the job is dead if this attempt fails
        self.fence: int = fields["fence"]  # grows with each delivery of the job
        self.priority: int = fields.get("priority", 0)
        self.enqueued_at: int = fields.get("enqueued_at", 0)  # milliseconds since 1970
        self.timeout_ms: Optional[int] = fields.get("timeout_ms")
        self._began = time.monotonic() if self.timeout_ms else 0.0
        self.headers: Dict[str, str] = fields.get("headers") or {}
        self.key: Optional[str] = fields.get("key")
        self.last_error: Optional[str] = fields.get("last_error")
        progress = fields.get("progress")
        self.last_progress: Optional[Progress] = Progress.of(progress) if progress else None  # of earlier attempts: continue there

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def payload(self) -> Any:
        """The payload as a JSON value, None if it is empty.

        Raises ValueError if the bytes aren't JSON in UTF-8. `raw` has the bytes.
        """
        if not self.raw:
            return None
        try:
            return json.loads(self.raw.decode())
        except (ValueError, RecursionError) as e:
            raise ValueError(f"the payload of job {self.id} of {self.queue} isn't JSON ({e}); job.raw has its bytes") from e

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be lost. Another worker can have the job, so stop what can be stopped."""
        return self._lost

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled while it runs. Then it is also lost, and no worker gets it: stop the work."""
        return self._cancelled

    def checkpoint(self) -> None:
        """Raises Cancelled if the job was cancelled, and LeaseLost if its lease is known to be lost otherwise.

        Call it in long work, at places where it can stop. It sends nothing.
        """
        self._valid()

    def then(
        self,
        queue: str,
        payload: Any = None,
        *,
        raw: Optional[bytes] = None,
        priority: int = 0,
        delay: Optional[Seconds] = None,
        run_at: Union[datetime, float, int, None] = None,
        key: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
        max_attempts: Optional[int] = None,
        timeout: Optional[Seconds] = None,
        group: Optional[str] = None,
        batch: Optional[str] = None,
        start_before: Union[datetime, float, int, None] = None,
        start_within: Optional[Seconds] = None,
        on_expiry: Optional[str] = None,
        retain: Optional[Seconds] = None,
        key_until: Optional[str] = None,
        on_conflict: Optional[str] = None,
        debounce_max: Optional[Seconds] = None,
    ) -> None:
        """Adds a job that the ack stores in its transaction. The options are those of NewJob."""
        expiry = start_before, start_within, on_expiry
        unique = key_until, on_conflict, debounce_max
        self._then.append(NewJob(queue, payload, raw, priority, delay, run_at, key, headers, max_attempts, timeout, group, batch, *expiry, retain, *unique))

    def _ack_fields(self, result: Any = None, raw: Optional[bytes] = None, enqueue: Iterable[NewJob] = ()) -> Dict[str, Any]:
        fields: Dict[str, Any] = {"lease": self._valid()}
        data = dump(result, raw, f"the result of {self!r}")
        if data is not None:
            fields["result"] = data
        more = [job.fields() for job in (*self._then, *enqueue)]
        if more:
            fields["enqueue"] = more
        return fields

    def _nack_fields(
        self, error: str = "", delay: Optional[Seconds] = None, dead: bool = False, snooze: bool = False
    ) -> Dict[str, Any]:
        return {"lease": self._valid(), **nack_fields(error, delay, dead, snooze)}

    def _extend_fields(self, lease: Optional[Seconds]) -> Dict[str, Any]:
        fields: Dict[str, Any] = {"lease": self._valid()}
        if lease is not None:
            fields["lease_ms"] = millis("lease", lease)
        return fields

    def _progress_fields(
        self, done: Optional[int], total: Optional[int], raw: Optional[bytes], data: Mapping[str, Any]
    ) -> Dict[str, Any]:
        fields: Dict[str, Any] = {"lease": self._valid(), "done": done, "total": total}
        fields["data"] = dump(dict(data) if data else None, raw, f"the progress of {self!r}")
        return {name: value for name, value in fields.items() if value is not None}

    def _overran(self) -> str:
        """Describes a run that its time limit has ended, for a job whose lease is lost. Otherwise the text is empty."""
        limit = (self.timeout_ms or 0) / 1000
        over = limit and time.monotonic() - self._began > limit - min(_ALMOST, limit / 2)
        return f"it ran longer than its time limit of {limit:g} s" if over else ""

    def _valid(self) -> str:
        if self._cancelled:
            raise errors.Cancelled(f"job {self.id} of {self.queue} was cancelled")
        if self._lost:
            raise errors.LeaseLost(f"job {self.id}: {self._overran() or 'its lease was lost'}; another worker may have it")
        return self.lease

    @contextmanager
    def _noting(self, op: str, fields: Dict[str, Any]) -> Iterator[Any]:
        """Is around a request about this job. Gives the client that sends it."""
        if self._client is None:
            raise errors.Error(f"job {self.id} has no client: it was created for a test")
        settles = op not in ("extend", "progress")
        if self._claim and not self._next and settles:
            fields["claim"] = self._claim
        try:
            yield self._client
        except (errors.LeaseLost, errors.SettledOrLost):
            self.settled = True  # this process can do nothing more about it
            raise
        self.settled = self.settled or settles


class Job(BaseJob):
    """A job that was claimed, and the right to settle it."""

    @property
    def client(self) -> Client:
        """The client that claimed the job. In a worker it is the client of the app."""
        client: Client = self._client
        return client

    def ack(
        self,
        result: Any = None,
        *,
        raw: Optional[bytes] = None,
        enqueue: Iterable[NewJob] = (),
        request_timeout: Optional[float] = None,
    ) -> List[Enqueued]:
        """Settles the job as done. Stores the jobs in enqueue in the same transaction and returns their results.

        The result (a JSON value, or raw bytes) is stored with the job if its queue keeps done jobs. Raises
        LeaseLost, SettledOrLost, or an error of the client.
        """
        reply = self._do("ack", self._ack_fields(result, raw, enqueue), request_timeout)
        return enqueued_of(reply)

    def nack(
        self,
        error: str = "",
        *,
        delay: Optional[Seconds] = None,
        dead: bool = False,
        snooze: bool = False,
        request_timeout: Optional[float] = None,
    ) -> None:
        """Settles the job as failed. It is ready again after delay: 0 means at once, None the queue's back-off.

        dead: no more attempts. snooze: not now, this delivery uses up no attempt.
        """
        self._do("nack", self._nack_fields(error, delay, dead, snooze), request_timeout)

    def extend(self, lease: Optional[Seconds] = None, *, request_timeout: Optional[float] = None) -> None:
        """Renews the lease: for this many seconds from now, or None for the same time as before.

        A job that was claimed without a lease time does not need it.
        """
        self._do("extend", self._extend_fields(lease), request_timeout)

    def progress(
        self,
        done: Optional[int] = None,
        total: Optional[int] = None,
        *,
        raw: Optional[bytes] = None,
        request_timeout: Optional[float] = None,
        **data: Any,
    ) -> None:
        """Reports how far the job is, in any unit, with any JSON values by name, or raw bytes: 4 KiB at most.

        The sidecar stores the last report of a job about once a second. `last_progress` of the next attempt has it, so that
        it can continue there. Raises LeaseLost.
        """
        self._do("progress", self._progress_fields(done, total, raw, data), request_timeout)

    def _do(
        self, op: str, fields: Dict[str, Any], request_timeout: Optional[float], over: Optional[Callable[[], bool]] = None
    ) -> Dict[str, Any]:
        with self._noting(op, fields) as client:
            reply: Dict[str, Any] = client._call(op, fields, request_timeout, claimed=self._next, over=over)
        return reply


def nack_fields(error: Union[str, BaseException], delay: Optional[Seconds], dead: bool, snooze: bool) -> Dict[str, Any]:
    fields: Dict[str, Any] = {}
    if error:
        # Escape what the wire does not allow in a text. Cut it as the sidecar would.
        fields["error"] = str(error).replace("\0", "\\0")[:4096].encode("utf-8", "backslashreplace").decode()
    if delay is not None:
        fields["delay_ms"] = millis("delay", delay)
    if dead:
        fields["dead"] = True
    if snooze:
        fields["snooze"] = True
    return fields
