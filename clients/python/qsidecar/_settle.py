"""Settles a job by the result of its function."""

from __future__ import annotations

import logging
import math
from typing import Any, Callable, Dict, Optional, Tuple

from . import errors
from ._handlers import describe, for_log, text_of
from .job import Job
from .outcomes import Dead, Retry, Snooze

log = logging.getLogger("qsidecar")

# Errors that mean that the settle itself is invalid.
REJECTED = (errors.TooLarge, errors.BadRequest, errors.UnknownQueue, errors.Forbidden, errors.Unsupported)

Outcome = Tuple[str, Dict[str, Any]]


def settle(job: Job, result: Any, error: Optional[BaseException], over: Callable[[], bool]) -> None:
    """Settles a job by the result of its function. Tries for as long as the lease is not known to be lost, and until over().

    If the settle is invalid (a result that isn't JSON, a delay of a century), the attempt fails. Otherwise the job
    would stay with this worker until it ends.
    """
    op, fields = outcome(job, result, error)
    try:
        job._do(op, fields, math.inf, over)
    except Exception as refusal:
        if isinstance(refusal, errors.Error) and not isinstance(refusal, REJECTED):
            raise
        job._do("nack", refused(job, refusal), math.inf, over)


def outcome(job: Job, result: Any, error: Optional[BaseException]) -> Outcome:
    """Returns the operation that settles a job, and its fields. Logs an attempt that failed."""
    try:
        return _outcome(job, result, error)
    except errors.LeaseLost:
        raise
    except Exception as refusal:
        return "nack", refused(job, refusal)


def refused(job: Job, refusal: Exception) -> Dict[str, Any]:
    """Returns the fields of the nack that replaces an invalid settle."""
    log.error("%r: its outcome was refused, so the attempt has failed", job, exc_info=for_log(refusal))
    return job._nack_fields(describe(refusal))


def _outcome(job: Job, result: Any, error: Optional[BaseException]) -> Outcome:
    if error is None:
        if isinstance(result, (bytes, bytearray)):
            return "ack", job._ack_fields(None, bytes(result))
        return "ack", job._ack_fields(result)
    if isinstance(error, Retry):
        log.warning("%r %s: %s", job, _failure_text(job), text_of(error) or "Retry")
        return "nack", job._nack_fields(text_of(error) or "Retry", error.delay)
    if isinstance(error, Snooze):
        log.warning("%r is snoozed: %s", job, text_of(error) or "Snooze")
        return "nack", job._nack_fields(text_of(error) or "Snooze", error.delay, snooze=True)
    if isinstance(error, Dead):
        log.error("%r is dead: %s", job, text_of(error))
        return "nack", job._nack_fields(text_of(error), dead=True)
    log.error("%r %s", job, _failure_text(job), exc_info=for_log(error))
    return "nack", job._nack_fields(describe(error))


def log_loss(job: Job) -> None:
    """Logs that a lease was lost before its settle."""
    overran = job._overran()
    if overran:
        log.error("%r %s: %s", job, _failure_text(job), overran)
    else:
        log.warning("%r: its lease was lost; another worker may have done it too", job)


def _failure_text(job: Job) -> str:
    """Describes the result of a failed attempt."""
    return "is dead, after its last attempt" if job.attempt >= job.max_attempts else "will be tried again"
