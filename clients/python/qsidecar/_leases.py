"""The book of the session leases that are held. Whoever calls anything here holds the session's lock."""

from __future__ import annotations

from typing import Dict, List, Optional

from . import errors
from ._call import Call
from ._wire import Message
from .job import Job


class Held:
    """A session lease that is held."""

    __slots__ = ("job", "link", "settling")

    def __init__(self, job: Job, link: int) -> None:
        self.job = job
        self.link = link  # the connection that it is known to be bound to
        self.settling = 0  # settles under way


class Leases:
    def __init__(self) -> None:
        self.held: Dict[str, Held] = {}

    def claimed(self, link: int, call: Call, jobs: List[Job]) -> None:
        if "lease_ms" not in call.fields:  # those outlive the connection, and are not bound
            for job in jobs:
                self.held[job.lease] = Held(job, link)

    def settled(self, call: Call, reply: Message, error: Optional[errors.SidecarError]) -> Optional[Exception]:
        """Takes out what a settle's answer says is settled or lost. It returns the error for the caller."""
        if error is not None and not isinstance(error, errors.LeaseLost):
            return error
        for lease in call.leases():
            self.held.pop(lease, None)
        lost = call.leases() if error is not None else reply.get("lost") or []
        if lost and call.twice:
            return errors.SettledOrLost(call.op, lost)
        return error

    def extended(self, link: int, call: Call, reply: Message, error: Optional[errors.SidecarError]) -> List[Job]:
        """Notes what is bound to that connection now. It returns the jobs that are lost, to be told."""
        if isinstance(error, errors.LeaseLost):
            lost = self.drop(call.leases())
        elif error is None:
            lost = self.drop(reply.get("lost") or [])
        else:
            return []
        for lease in call.leases():
            held = self.held.get(lease)
            if held is not None and call.fields.get("bind"):
                held.link = link
            elif held is not None and "lease_ms" in call.fields:
                del self.held[lease]  # a timed lease from now on
        return lost

    def settling(self, leases: List[str], d: int) -> None:
        """Leases that are being settled are not told lost: the settle's own answer says it."""
        for lease in leases:
            held = self.held.get(lease)
            if held is not None:
                held.settling += d

    def drop(self, leases: List[str]) -> List[Job]:
        """Forgets lost leases, and returns the jobs of those that nobody is settling."""
        told = []
        for lease in leases:
            held = self.held.pop(lease, None)
            if held is not None and held.settling == 0:
                held.job._lost = True
                told.append(held.job)
        return told

    def unbound(self, link: int) -> List[str]:
        """What is held and not known to be bound to that connection."""
        return [lease for lease, held in self.held.items() if held.link != link]
