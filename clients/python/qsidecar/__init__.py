"""A client and a worker for the job queue in your database.

The application's API is in client.py (Client), aio.py (AsyncClient), job.py (NewJob, Job), worker.py (App) and sql.py (enqueue by a plain
INSERT). Start there. Modules with a leading underscore are internal: _session.py keeps the connection and _calls.py
the requests on it. The package needs only the standard library.
"""

from . import sql, testing
from ._batch import EndedBatch
from .aio import AsyncBatch, AsyncClient, AsyncJob
from .client import Batch, Client
from .errors import (
    BadFrame,
    BadRequest,
    Busy,
    Cancelled,
    Closed,
    Draining,
    Error,
    Forbidden,
    Internal,
    LeaseLost,
    NotConnected,
    Reentrant,
    SettledOrLost,
    SidecarError,
    TooLarge,
    Unavailable,
    UnknownOp,
    UnknownOutcome,
    UnknownQueue,
    Unsupported,
    WrongLoop,
)
from ._waiting import EndedJob, JobFailed, NotEnded
from .job import BaseJob, Enqueued, Job, NewJob, Progress
from .outcomes import Dead, Retry, Snooze
from .worker import App

__all__ = [
    "App",
    "AsyncBatch",
    "AsyncClient",
    "AsyncJob",
    "BadFrame",
    "BadRequest",
    "BaseJob",
    "Batch",
    "Busy",
    "Cancelled",
    "Client",
    "Closed",
    "Dead",
    "Draining",
    "EndedBatch",
    "EndedJob",
    "Enqueued",
    "Error",
    "Forbidden",
    "Internal",
    "Job",
    "JobFailed",
    "LeaseLost",
    "NewJob",
    "NotConnected",
    "NotEnded",
    "Progress",
    "Reentrant",
    "Retry",
    "SettledOrLost",
    "SidecarError",
    "Snooze",
    "TooLarge",
    "Unavailable",
    "UnknownOp",
    "UnknownOutcome",
    "UnknownQueue",
    "Unsupported",
    "WrongLoop",
    "sql",
    "testing",
]
