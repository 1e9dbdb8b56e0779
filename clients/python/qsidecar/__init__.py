"""qsidecar: a client and a worker for the job queue in the database you already have."""

from . import sql, testing
from .client import Client
from .errors import (
    BadFrame,
    BadRequest,
    Busy,
    Closed,
    Draining,
    Error,
    Forbidden,
    Internal,
    LeaseLost,
    NotConnected,
    SettledOrLost,
    SidecarError,
    TooLarge,
    Unavailable,
    UnknownOp,
    UnknownOutcome,
    UnknownQueue,
    Unsupported,
)
from .job import Enqueued, Job, NewJob
from .worker import App, Dead, Retry

__all__ = [
    "App",
    "BadFrame",
    "BadRequest",
    "Busy",
    "Client",
    "Closed",
    "Dead",
    "Draining",
    "Enqueued",
    "Error",
    "Forbidden",
    "Internal",
    "Job",
    "LeaseLost",
    "NewJob",
    "NotConnected",
    "Retry",
    "SettledOrLost",
    "SidecarError",
    "TooLarge",
    "Unavailable",
    "UnknownOp",
    "UnknownOutcome",
    "UnknownQueue",
    "Unsupported",
    "sql",
    "testing",
]
