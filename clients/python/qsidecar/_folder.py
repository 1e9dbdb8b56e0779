"""The working folder of a worker, which a deployment can delete while the worker runs."""

from __future__ import annotations

import os
from typing import Optional

from . import errors


class Folder:
    """The working folder at the start of a run. If it is deleted, imports and relative paths of all jobs fail."""

    def __init__(self) -> None:
        try:
            self._path = os.getcwd()
            found = os.stat(".")
        except OSError as e:
            raise errors.Error(_text("of this worker", e)) from e
        self._id = found.st_dev, found.st_ino

    def gone(self) -> Optional[errors.Error]:
        """Returns an error if the folder was deleted."""
        try:
            os.getcwd()  # a stat finds a deleted folder as long as a process is in it
            os.stat(".")
        except OSError as e:
            if self._exists():  # a job went to a folder of its own, and deleted that
                return None
            return errors.Error(_text(self._path, e))
        return None

    def _exists(self) -> bool:
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._id


def _text(path: str, why: OSError) -> str:
    return (
        f"the working folder {path} was deleted or is unreachable ({why.strerror}), so no job can run: "
        "start the worker again in an existing folder"
    )
