"""The claim that a settle of the worker carries if the worker waits for it (ack="sync", or the sidecar's `join`)."""

import unittest

import qsidecar
from support import Case, app


class NextClaim(Case):
    def setUp(self):
        super().setUp()
        self.app = app()
        self.addCleanup(self.app.client.close)
        self.sent = []  # the operations of the app's client, and whether each claims
        call = self.app.client._call

        def record(op, fields, *args, **options):
            self.sent.append((op, "claim" in fields))
            return call(op, fields, *args, **options)

        self.app.client._call = record

    def test_a_job_costs_one_request(self):
        did = []
        self.app.job(self.q)(lambda job: did.append(job.payload))
        self.client.enqueue_many([qsidecar.NewJob(self.q, n) for n in range(10)])
        self.app.run(concurrency=1, drain=True, ack="sync")
        self.assertEqual(did, list(range(10)))
        self.assertEqual(self.sent, [("claim", False), *[("ack", True)] * 10, ("claim", False)])

    def test_next_job_of_a_lost_job(self):
        did = []

        @self.app.job(self.q)
        def work(job):
            did.append(job.payload)
            self.assertIn(job.lease, self.app.client._session.leases.held)
            if job.payload == "lost":  # as another client would while the worker is suspended
                self.client.request("nack", lease=job.lease, dead=True)

        self.client.enqueue_many([qsidecar.NewJob(self.q, p) for p in ("lost", "next")])
        with self.assertLogs("qsidecar", "WARNING") as logs:
            self.app.run(concurrency=1, drain=True, ack="sync")
        self.assertIn("its lease was lost", logs.output[0])
        self.assertEqual(did, ["lost", "next"])
        self.assertEqual(self.sent, [("claim", False), ("ack", True), ("ack", True), ("claim", False)])

    def test_stop_during_the_settle(self):
        """The job that comes with the reply goes back and uses up no attempt."""
        did, call = [], self.app.client._call

        def stopping(op, fields, *args, **options):
            reply = call(op, fields, *args, **options)
            if op == "ack":
                self.app.stop()
            return reply

        self.app.client._call = stopping
        self.app.job(self.q)(lambda job: did.append(job.payload))
        ids = [e.id for e in self.client.enqueue_many([qsidecar.NewJob(self.q, n) for n in range(2)])]
        self.app.run(concurrency=1, ack="sync")
        self.assertEqual(did, [0])
        self.assertEqual(self.sent[:3], [("claim", False), ("ack", True), ("nack", False)])
        left = self.peek(ids[1])
        self.assertEqual((left["state"], left["attempt"]), ("ready", 0))

    def test_stopping_worker_claims_no_more(self):
        self.app.job(self.q)(lambda job: self.app.stop())
        self.client.enqueue(self.q)
        self.app.run(concurrency=1, ack="sync")
        self.assertIn(("ack", False), self.sent)
        self.assertNotIn(("ack", True), self.sent)

    def test_jobs_of_an_earlier_try(self):
        """A settle that is repeated does not claim again if it has got a job. It keeps that job."""
        self.client.enqueue_many([qsidecar.NewJob(self.q, n) for n in range(3)])
        job = self.one()
        job._claim, session, claims = {"queue": self.q}, self.client._session, []
        settled = session.leases.settled

        def unavailable_once(call, message, error):
            claims.append(call.claim())
            return qsidecar.Unavailable("again", retry_ms=0) if len(claims) == 1 else settled(call, message, error)

        session.leases.settled = unavailable_once
        with self.assertRaises(qsidecar.LeaseLost):  # the first try settled it
            job.ack()
        self.assertEqual(claims, [{"queue": self.q}, None])
        self.assertEqual([j.payload for j in job._next], [1])
        self.assertIn(job._next[0].lease, session.leases.held)

    def test_an_abandoned_settle_returns_its_jobs(self):
        ids = [e.id for e in self.client.enqueue_many([qsidecar.NewJob(self.q, n) for n in range(2)])]
        job = self.one()
        job._claim, session = {"queue": self.q}, self.client._session
        handle = session._handle

        def abandon_first(wire, message):
            """Handles the reply as if the settle's caller had given up just before it came."""
            call = session.open.get(message.get("id"))
            if call is not None and call.op == "ack":
                session.abandon(call, "interrupted")
            handle(wire, message)

        session._handle = abandon_first
        with self.assertRaises(qsidecar.UnknownOutcome):
            job.ack()
        back = self.one()
        self.assertEqual((back.id, back.attempt), (ids[1], 1))
        self.assertEqual(job._next, [])


if __name__ == "__main__":
    unittest.main()
