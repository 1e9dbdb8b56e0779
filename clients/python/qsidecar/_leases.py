"""The session leases that a client holds. The caller of every method holds the session's lock."""

from __future__ import annotations

from typing import Dict, List, Optional

from . import errors
from ._call import Call
from ._wire import Message
from .job import BaseJob


class Held:
    """A session lease that the client holds."""

    __slots__ = ("job", "connection", "settling")

    def __init__(self, job: BaseJob, connection: int) -> None:
        self.job = job
        self.connection = connection  # the connection that it is bound to, according to the client's state
        self.settling = 0  # settles in progress


class Leases:
    def __init__(self) -> None:
        self.held: Dict[str, Held] = {}

    def claimed(self, connection: int, call: Call, jobs: List[BaseJob]) -> None:
        if "lease_ms" not in (call.claim() or {}):  # timed leases outlive the connection and are not bound
            for job in jobs:
                self.held[job.lease] = Held(job, connection)

    def settled(self, call: Call, reply: Message, error: Optional[errors.SidecarError]) -> Optional[Exception]:
        """Removes the leases that a reply to a settle reports as settled or lost. Returns the caller's error."""
        if error is not None and not isinstance(error, errors.LeaseLost):
            return error
        for lease in call.leases():
            self.held.pop(lease, None)
        lost = call.leases() if error is not None else reply.get("lost") or []
        if lost and call.resent:
            return errors.SettledOrLost(call.op, lost)
        return error

    def extended(self, connection: int, call: Call, reply: Message, error: Optional[errors.SidecarError]) -> List[BaseJob]:
        """Updates the leases after a reply to an extend. Returns the jobs that are lost, for on_lost."""
        if isinstance(error, errors.LeaseLost):
            lost = self.lose(call.leases())
        elif error is None:
            lost = self.lose(reply.get("lost") or [])
        else:
            return []
        for lease in call.leases():
            held = self.held.get(lease)
            if held is not None and call.fields.get("bind"):
                held.connection = connection
            elif held is not None and "lease_ms" in call.fields:
                del self.held[lease]  # a timed lease from now on
        return lost

    def settling(self, leases: List[str], d: int) -> None:
        """Counts settles in progress. A lease with one is not reported as lost: the settle's reply reports it."""
        for lease in leases:
            held = self.held.get(lease)
            if held is not None:
                held.settling += d

    def lose(self, leases: List[str], reason: Optional[str] = None) -> List[BaseJob]:
        """Removes lost leases and returns their jobs, except those that are being settled."""
        reported = []
        for lease in leases:
            held = self.held.pop(lease, None)
            if held is not None and held.settling == 0:
                held.job._cancelled = reason == "cancelled"
                held.job._lost = True
                reported.append(held.job)
        return reported

    def bound(self, leases: List[str], connection: int) -> bool:
        """Whether the connection has those of the leases that are held."""
        return all(held is None or held.connection == connection for held in map(self.held.get, leases))

    def unbound(self, connection: int) -> List[str]:
        """Returns the held leases that are not known to be bound to that connection."""
        return [lease for lease, held in self.held.items() if held.connection != connection]
