"""Ack behind: the worker begins its next job before the settle of the last one is answered."""

import contextlib
import itertools
import json
import math
import os
import tempfile
import threading
import unittest
import unittest.mock

import qsidecar
from qsidecar import _behind, _calls
from qsidecar.worker import exit_code
from support import LIMIT, Case, app, eventually, in_thread
from test_stalled import Deaf


class Holding(Deaf):
    """A sidecar whose claims always have a job. It leaves the answers to settles to the test."""

    def __init__(self, path):
        super().__init__(path)
        self.numbers = itertools.count(1)
        self.settles = []  # settles without an answer
        self.claims = []  # settles and claims, in the order of their arrival
        self.extra = {}  # further fields of replies to claims
        self.ready = math.inf  # how many jobs are ready

    def serve(self):
        with contextlib.suppress(OSError):  # the connection has ended
            for line in self.file:
                self.handle(json.loads(line))

    def handle(self, request):
        if request["op"] in ("ack", "nack"):
            self.claims.append(request)
            if request.get("snooze"):  # a job that a worker that ends gives back
                self.reply(request)
            elif "claim" in request:
                self.reply(request, jobs=self.jobs(1), **self.extra)
            else:
                self.settles.append(request)
        elif request["op"] == "claim":
            self.claims.append(request)
            self.reply(request, jobs=self.jobs(request.get("max", 1)), **self.extra)
        else:
            self.reply(request, lost=[])

    def jobs(self, most):
        count = min(most, self.ready)
        self.ready -= count
        return [self.job() for _ in range(count)]

    def job(self):
        n = next(self.numbers)
        return {"id": str(n), "queue": "q", "lease": f"1.{n}", "attempt": 1, "max_attempts": 20, "fence": n}

    def reply(self, request, **fields):
        self.file.write(json.dumps({"ok": True, "id": request["id"], **fields}).encode() + b"\n")
        self.file.flush()

    def refuse(self, request, code, **fields):
        self.reply(request, ok=False, error={"code": code, "message": "no", **fields})


class Forced(unittest.TestCase):
    def setUp(self):
        dir = tempfile.TemporaryDirectory()
        self.addCleanup(dir.cleanup)
        self.sidecar = Holding(os.path.join(dir.name, "s"))
        self.addCleanup(self.sidecar.listener.close)
        self.clock = 0.0  # stands still, so that a slow machine doesn't reach LONGEST
        self.checks = 0  # how often the worker has read it

        def now():
            self.checks += 1
            return self.clock

        for patch in (unittest.mock.patch.object(_behind, "now", now), unittest.mock.patch.object(_behind, "CHECK", 0.01), unittest.mock.patch.object(_calls, "CHECK", 0.01)):
            patch.start()
            self.addCleanup(patch.stop)
        self.lost = []
        self.app = qsidecar.App(socket=os.path.join(dir.name, "s"), codec="json", on_lost=self.lost.extend)
        self.began = []
        self.work = lambda job: None
        self.app.job("q", result=True)(lambda job: self.began.append(job.id) or self.work(job))

    def start(self, **options):
        self.failed = None

        def run():
            try:
                self.app.run(**{"concurrency": 1, **options})
            except qsidecar.Error as e:
                self.failed = e

        self.run = in_thread(run)
        self.sidecar.accept()
        self.server = in_thread(self.sidecar.serve)

    def end(self):
        """Answers all settles until the worker has ended."""
        self.app.stop()

        def ended():
            while self.sidecar.settles:
                self.sidecar.reply(self.sidecar.settles.pop(0))
            return not self.run.is_alive()

        eventually(ended, "the worker ends")
        self.sidecar.close()
        self.server.join(LIMIT)

    def test_next_job_begins_before_the_answer_and_the_33rd_does_not(self):
        self.start()
        eventually(lambda: len(self.sidecar.settles) == _behind.MOST, "so many settles are unanswered")
        self.assertEqual([r["op"] for r in self.sidecar.claims[:4]], ["claim", "ack", "claim", "ack"])
        self.app.client.ping()  # what the worker sent before is answered
        self.assertEqual(len(self.began), _behind.MOST)
        self.sidecar.reply(self.sidecar.settles.pop(5))
        eventually(lambda: len(self.began) == _behind.MOST + 1, "the next job begins")
        self.end()

    def test_running_jobs_count_as_not_settled(self):
        gate = threading.Semaphore(0)
        self.work = lambda job: gate.acquire(timeout=LIMIT) and None
        self.start(concurrency=8)
        gate.release(24)
        eventually(lambda: len(self.sidecar.settles) == 24 and len(self.began) == 32, "32 jobs are not settled")
        gate.release()
        eventually(lambda: len(self.sidecar.settles) == 25, "one more settle is sent")
        self.app.client.ping()
        self.assertEqual(len(self.began), 32)
        self.sidecar.reply(self.sidecar.settles.pop(0))
        eventually(lambda: len(self.began) == 33, "the next job begins")
        gate.release(1000)
        self.end()

    def test_no_job_begins_while_a_settle_is_unanswered_for_long(self):
        gate = threading.Semaphore(0)
        self.work = lambda job: gate.acquire(timeout=LIMIT) and None
        self.start()
        gate.release()
        eventually(lambda: len(self.began) == 2, "the next job begins")
        self.clock = _behind.LONGEST
        gate.release()
        eventually(lambda: len(self.sidecar.settles) == 2, "the second settle is sent")
        self.app.client.ping()
        self.assertEqual(len(self.began), 2)
        self.sidecar.reply(self.sidecar.settles.pop(0))
        eventually(lambda: len(self.began) == 3, "the next job begins")
        gate.release(1000)
        self.end()

    def test_job_that_is_lost_while_it_waits_does_not_begin(self):
        handle = self.sidecar.handle

        def late(request):  # the second job arrives when the settle of the first one is old
            if request["op"] == "claim" and self.sidecar.settles:
                self.clock = _behind.LONGEST
            handle(request)

        self.sidecar.handle = late
        self.start()
        eventually(lambda: self.clock, "the second claim has arrived")
        self.app.client.ping()
        self.sidecar.file.write(b'{"event":"lost","leases":["1.2"]}\n')
        self.sidecar.reply(self.sidecar.settles.pop(0))
        eventually(lambda: len(self.began) > 1, "another job begins")
        self.assertEqual(self.began[:2], ["1", "3"])
        eventually(lambda: [job.id for job in self.lost] == ["2"], "the lost job is reported")  # by another thread
        self.end()

    def test_stop_waits_for_the_answers(self):
        self.start()
        eventually(lambda: len(self.sidecar.settles) == _behind.MOST, "settles are unanswered")
        self.app.stop()
        while len(self.sidecar.settles) > 1:
            self.sidecar.reply(self.sidecar.settles.pop(0))
        eventually(lambda: len(self.app.client._session.open) == 1, "one settle is open")
        self.assertTrue(self.run.is_alive())
        self.end()
        self.assertFalse(self.app.client._session.leases.held)

    def unanswered(self, **options):
        """Runs a worker until a settle is unanswered for a while."""
        handle = self.sidecar.handle

        def hold(request):
            if request["op"] in ("ack", "nack") and not request.get("snooze"):
                self.sidecar.settles.append(request)
            else:
                handle(request)

        self.sidecar.handle = hold
        self.sidecar.ready = 1
        self.start(**options)
        eventually(lambda: self.sidecar.settles, "a settle is unanswered")
        self.clock = _behind.LAST / 2

    def kill(self):
        """Ends the sidecar. No other one starts."""
        self.sidecar.listener.close()
        os.remove(self.sidecar.path)
        self.sidecar.connection.shutdown(2)
        self.server.join(LIMIT)
        self.sidecar.close()
        eventually(lambda: self.app.client._session.wire is None, "the worker sees it")

    def ends_without_an_answer(self):
        """Checks that the worker ends only when the settle is too old."""
        self.clock = _behind.LAST - 0.001
        checks = self.checks
        eventually(lambda: self.checks > checks + 3, "the worker checks the time")
        self.assertTrue(self.run.is_alive())
        with self.assertLogs("qsidecar", "ERROR") as logs:
            self.clock = _behind.LAST
            eventually(lambda: not self.run.is_alive(), "the worker ends")
        self.assertIn("<Job 1 of q, attempt 1 of 20> could not be settled: no answer from the sidecar", [r.getMessage() for r in logs.records])
        self.assertRegex(str(self.failed), r"no answer for a minute to the settles of finished jobs \(1\): the sidecar or its database is unavailable")
        self.assertIsInstance(self.failed, qsidecar.Unavailable)
        self.assertEqual(exit_code(self.failed), 5)

    def test_drain_and_stop_end_without_a_sidecar(self):
        """If the sidecar was killed and does not come back, the worker ends a minute after the oldest unanswered settle."""
        for options in ({"drain": True}, {"drain": True, "ack": "sync"}, {}, {"ack": "sync"}):
            with self.subTest(**options):
                self.setUp()
                impatient = unittest.mock.patch("qsidecar.client.REQUEST_TIME", 0.1)
                self.addCleanup(impatient.stop)
                # Not before the job: a drain on a busy machine would end without one.
                self.work = lambda job, impatient=impatient: impatient.start() and None
                with unittest.mock.patch("qsidecar.client.CLOSE_TIME", 0.1):
                    self.unanswered(**options)
                    self.kill()
                    if "drain" not in options:
                        self.app.stop()
                    self.ends_without_an_answer()
                impatient.stop()

    def test_drain_ends_if_its_sidecar_dies_during_a_job(self):
        for ack in ("behind", "sync"):
            with self.subTest(ack=ack):
                self.setUp()
                gate = threading.Event()
                self.work = lambda job: gate.wait(LIMIT) and None
                self.sidecar.ready = 1
                self.start(drain=True, concurrency=8, ack=ack)
                eventually(lambda: self.began, "a job runs")
                with unittest.mock.patch("qsidecar.client.REQUEST_TIME", 0.1), unittest.mock.patch("qsidecar.client.CLOSE_TIME", 0.1):
                    self.kill()
                    gate.set()
                    eventually(lambda: any(call.op == "ack" for call in self.app.client._session.queue), "its ack waits for a connection")
                    self.ends_without_an_answer()

    def test_stop_ends_without_a_database(self):
        for ack in ("behind", "sync"):
            with self.subTest(ack=ack):
                self.setUp()
                with unittest.mock.patch("qsidecar.client.CLOSE_TIME", 0.1):
                    self.unanswered(ack=ack)
                    self.app.stop()

                    def refuse():
                        while self.run.is_alive() and self.sidecar.settles:
                            self.sidecar.refuse(self.sidecar.settles.pop(0), "unavailable", retry_ms=1)
                        return not self.run.is_alive()

                    refusing = in_thread(lambda: eventually(refuse, "the worker ends"))
                    self.ends_without_an_answer()
                    refusing.join(LIMIT)
                    self.sidecar.close()

    def test_run_waits_for_its_sidecar(self):
        """A worker that neither drains nor stops waits. When it is stopped, its settle is too old already."""
        with unittest.mock.patch("qsidecar.client.CLOSE_TIME", 0.1):
            self.unanswered()
            self.kill()
            self.clock = 3600.0
            self.assertTrue(self.run.is_alive())
            self.app.stop()
            eventually(lambda: not self.run.is_alive(), "the worker ends")
        self.assertIsInstance(self.failed, qsidecar.Unavailable)

    def test_drain_waits_for_the_answers(self):
        """An unanswered ack can store a job, so that an empty claim before its answer doesn't end the worker."""
        self.sidecar.ready = 1
        self.start(drain=True, concurrency=2)
        eventually(lambda: len(self.sidecar.settles) == 1, "a settle is unanswered")
        eventually(lambda: len([r for r in self.sidecar.claims if r["op"] == "claim"]) > 2, "an empty claim is answered")
        self.app.client.ping()
        self.sidecar.ready = 1  # the ack's follow-up
        self.sidecar.reply(self.sidecar.settles.pop(0))
        eventually(lambda: len(self.began) == 2, "the follow-up runs")
        self.end()

    def test_refused_and_lost(self):
        self.start()
        eventually(lambda: len(self.sidecar.settles) == _behind.MOST, "settles are unanswered")
        refused, lost, twice, later = self.sidecar.settles[:4]
        del self.sidecar.settles[:4]
        with self.assertLogs("qsidecar", "WARNING") as logs:
            self.sidecar.refuse(lost, "lease_lost")
            eventually(lambda: self.lost, "the loss is reported")
            self.sidecar.refuse(refused, "bad_request")
            self.sidecar.refuse(twice, "bad_request")

            def nacks():
                return [r for r in self.sidecar.settles if r["op"] == "nack"]

            eventually(lambda: len(nacks()) == 2, "the attempts have failed")
            self.sidecar.refuse(later, "internal")
            eventually(lambda: len(logs.records) == 4, "the internal error is logged")
            eventually(lambda: any(r["lease"] == later["lease"] for r in self.sidecar.settles), "it is sent again")
            for nack in nacks():
                self.sidecar.settles.remove(nack)
                if nack["lease"] == twice["lease"]:
                    self.sidecar.refuse(nack, "bad_request")
                else:
                    self.sidecar.reply(nack)
            eventually(lambda: len(logs.records) == 5, "the second refusal is logged")
        said = [record.getMessage() for record in logs.records]
        self.assertEqual([job.id for job in self.lost], ["2"])
        self.assertTrue(self.lost[0].lost)
        for text, (number, what) in zip(
            said,
            [(2, "its lease was lost"), (1, "was refused"), (3, "was refused"), (4, "not be settled yet"), (3, "could not be settled")],
        ):
            self.assertIn(f"<Job {number} of q, ", text)
            self.assertIn(what, text)
        self.end()

    def test_an_unavailable_database(self):
        """A settle that the database could not carry out is sent again, and holds the other jobs back as before."""
        self.start()
        eventually(lambda: len(self.sidecar.settles) == _behind.MOST, "settles are unanswered")
        first = self.sidecar.settles.pop(0)
        self.sidecar.refuse(first, "unavailable", retry_ms=0)
        eventually(lambda: self.sidecar.settles[-1]["lease"] == first["lease"], "it is sent again")
        self.app.client.ping()
        self.assertEqual(len(self.began), _behind.MOST)
        self.end()
        self.assertEqual(self.lost, [])

    def test_reconnect(self):
        """A settle that is sent again and finds its lease lost was done, or is delivered again: no loss is reported."""
        self.start()
        eventually(lambda: len(self.sidecar.settles) == _behind.MOST, "settles are unanswered")
        first, self.sidecar.settles = self.sidecar.settles, []
        self.sidecar.connection.shutdown(2)
        self.server.join(LIMIT)
        with self.assertLogs("qsidecar", "INFO") as logs:
            self.sidecar.accept()
            self.server = in_thread(self.sidecar.serve)
            eventually(lambda: len(self.sidecar.settles) == _behind.MOST, "all are sent again")
            self.assertEqual({r["lease"] for r in first}, {r["lease"] for r in self.sidecar.settles})
            self.sidecar.refuse(self.sidecar.settles.pop(0), "lease_lost")
            eventually(lambda: logs.output, "it is logged")
            self.assertEqual(logs.records[0].levelname, "INFO")
            self.end()
        self.assertEqual(self.lost, [])

    def test_join(self):
        """If the sidecar asks for one request, the worker waits for the reply to each settle."""
        self.sidecar.extra = {"join": True}
        self.start()
        eventually(lambda: len(self.began) > 3, "jobs run")
        self.sidecar.extra = {}
        eventually(lambda: len(self.sidecar.settles) > 1, "settles without an answer")
        self.assertEqual(["claim" in r for r in self.sidecar.claims[1:4]], [True] * 3)
        self.end()

    def test_sync(self):
        self.start(ack="sync")
        eventually(lambda: len(self.began) > 3, "jobs run")
        self.end()
        self.assertEqual({"claim" in r for r in self.sidecar.claims[1:-2]}, {True})


class Real(Case):
    def setUp(self):
        super().setUp()
        self.app = app()
        self.addCleanup(self.app.client.close)

    def test_drain_sees_follow_ups_of_unanswered_acks(self):
        did = []

        @self.app.job(self.q)
        def work(job):
            did.append(job.payload)
            if job.payload:
                job.then(self.q, job.payload - 1)

        self.client.enqueue(self.q, 50)
        self.app.run(concurrency=4, drain=True)
        self.assertEqual(did, list(range(50, -1, -1)))

    def test_nothing_grows(self):
        jobs, seen = int(os.environ.get("QSIDECAR_BEHIND_JOBS", "500")), []
        self.app.job(self.q)(lambda job: seen.append(threading.active_count()))
        for _ in range(0, jobs, 500):
            self.client.enqueue_many([qsidecar.NewJob(self.q) for _ in range(500)])
        before = threading.active_count()
        self.app.run(concurrency=8, drain=True)
        self.assertEqual(len(seen), jobs)
        self.assertLessEqual(max(seen), before + 8 + 3)  # the jobs, the claims, the settles and the reader
        self.assertLessEqual(threading.active_count(), before)

    def test_wrong_ack(self):
        self.app.job(self.q)(lambda job: None)
        with self.assertRaisesRegex(ValueError, "ack is 'later', must be one of behind, sync"):
            self.app.run(ack="later")


if __name__ == "__main__":
    unittest.main()
