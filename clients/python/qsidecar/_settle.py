"""Settles a job by the result of its function."""

from __future__ import annotations

import logging
import math
from typing import Any, Optional

from . import errors
from ._handlers import describe, text_of
from .job import Job
from .outcomes import Dead, Retry, Snooze

log = logging.getLogger("qsidecar")

# Errors that mean that the settle itself is invalid.
REJECTED = (errors.TooLarge, errors.BadRequest, errors.UnknownQueue, errors.Forbidden, errors.Unsupported)


def settle(job: Job, result: Any, error: Optional[BaseException]) -> None:
    """Settles a job by the result of its function. Tries for as long as the lease is not known to be lost.

    If the settle is invalid (a result that isn't JSON, a delay of a century), the attempt fails. Otherwise the job
    would stay with this worker until it ends.
    """
    try:
        return _settle(job, result, error)
    except errors.Error as e:
        if not isinstance(e, REJECTED):
            raise
        refusal: Exception = e
    except Exception as e:
        refusal = e
    log.error("%r: its outcome was refused, so the attempt has failed", job, exc_info=refusal)
    job.nack(describe(refusal), request_timeout=math.inf)


def _settle(job: Job, result: Any, error: Optional[BaseException]) -> None:
    if error is None:
        if isinstance(result, (bytes, bytearray)):
            job.ack(raw=bytes(result), request_timeout=math.inf)
        else:
            job.ack(result, request_timeout=math.inf)
    elif isinstance(error, Retry):
        log.warning("%r %s: %s", job, _failure_text(job), text_of(error) or "Retry")
        job.nack(text_of(error) or "Retry", delay=error.delay, request_timeout=math.inf)
    elif isinstance(error, Snooze):
        log.warning("%r is snoozed: %s", job, text_of(error) or "Snooze")
        job.nack(text_of(error) or "Snooze", delay=error.delay, snooze=True, request_timeout=math.inf)
    elif isinstance(error, Dead):
        log.error("%r is dead: %s", job, text_of(error))
        job.nack(text_of(error), dead=True, request_timeout=math.inf)
    else:
        log.error("%r %s", job, _failure_text(job), exc_info=error)
        job.nack(describe(error), request_timeout=math.inf)


def _failure_text(job: Job) -> str:
    """Describes the result of a failed attempt."""
    return "is dead, after its last attempt" if job.attempt >= job.max_attempts else "will be tried again"
