"""The exceptions that a job's function raises to choose the outcome of the attempt."""

from __future__ import annotations

from typing import Optional

from .job import Seconds


class Retry(Exception):
    """Raise it in a job's function to fail the attempt. It is tried again after delay seconds or the back-off."""

    def __init__(self, message: str = "", *, delay: Optional[Seconds] = None) -> None:
        super().__init__(message)
        self.delay = delay


class Snooze(Exception):
    """Raise it in a job's function to run the job later. It is ready again after delay seconds or the back-off.

    This delivery uses up no attempt.
    """

    def __init__(self, message: str = "", *, delay: Optional[Seconds] = None) -> None:
        super().__init__(message)
        self.delay = delay


class Dead(Exception):
    """Raise it in a job's function if the job must not be tried again. The job is then dead."""
