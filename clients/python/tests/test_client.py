import threading
import unittest
import unittest.mock
from datetime import datetime, timedelta, timezone

import qsidecar
from qsidecar import NewJob
from support import LIMIT, Case, client, eventually, exit_of, forked, in_thread


class Jobs(Case):
    def test_payloads(self):
        for value in ({"to": "ada", "n": [1, 2.5, None]}, "é😀", 17, [], False):
            self.client.enqueue(self.q, value)
            job = self.one()
            self.assertEqual(job.payload, value)
            job.ack()
        for raw in (bytes(range(256)), b"", b"\xff", "é\0".encode()):
            self.client.enqueue(self.q, raw=raw)
            job = self.one()
            self.assertEqual(job.raw, raw)
            job.ack()
        self.client.enqueue(self.q)
        self.assertIsNone(self.one().payload)

    def test_payload_is_not_json(self):
        self.client.enqueue(self.q, raw=b"\xff")
        with self.assertRaisesRegex(ValueError, "isn't JSON"):
            self.one().payload
        with self.assertRaisesRegex(TypeError, "raw="):
            self.client.enqueue(self.q, b"bytes")
        with self.assertRaisesRegex(TypeError, "for bytes pass raw="):
            self.client.enqueue(self.q, {"part": b"bytes"})
        with self.assertRaisesRegex(TypeError, r"\['a', 'b'\] isn't the name of a queue: pass each name as an argument"):
            self.client.claim(["a", "b"])
        circle = []
        circle.append(circle)
        for kind, value, why in (
            (ValueError, float("nan"), "Out of range"),
            (ValueError, circle, "Circular"),
            (ValueError, "\ud800", "surrogates"),
            (TypeError, {"at": timedelta(1)}, r"Object of type timedelta is not JSON serializable: convert the value first, for example with str\(\)$"),
        ):
            with self.assertRaisesRegex(kind, f"^the payload of a job for {self.q} can't be JSON: .*{why}"):
                self.client.enqueue_many([qsidecar.NewJob(self.q, value)])

    def test_options(self):
        stored = self.client.enqueue(
            self.q, 1, priority=5, key="k", headers={"lang": "é"}, max_attempts=3, timeout=timedelta(seconds=60)
        )
        again = self.client.enqueue(self.q, 2, key="k")
        self.assertEqual((again.id, again.duplicate, again.state), (stored.id, True, "ready"))
        job = self.one()
        self.assertEqual((job.id, job.queue, job.payload, job.attempt, job.max_attempts), (stored.id, self.q, 1, 1, 3))
        self.assertEqual((job.priority, job.key, job.headers, job.timeout_ms), (5, "k", {"lang": "é"}, 60_000))
        self.assertNotIn(job.lease, repr(job))

    def test_group(self):
        first = self.client.enqueue(self.q, 1, group="é")
        waiting = [
            self.client.enqueue(self.q, 2, group="é").id,
            self.client.enqueue_many([NewJob(self.q, 3, group="é")])[0].id,
            qsidecar.App(self.client).enqueue(self.q, 4, group="é").id,
        ]
        job = self.one()
        self.assertEqual(job.id, first.id)
        job.then(self.q, 5, group="é")
        waiting += [e.id for e in job.ack(enqueue=[NewJob(self.q, 6, group="é")])]
        for want, job_id in enumerate(waiting, 2):
            self.assertEqual(self.peek(job_id)["group"], "é")
            job = self.one()
            self.assertEqual((job.id, job.payload), (job_id, want))
            self.assertEqual(self.client.claim(self.q), [], "a second job of the group")
            job.ack()
        with self.assertRaisesRegex(qsidecar.BadRequest, "group"):
            self.client.enqueue(self.q, group="")

    def test_unique(self):
        first = self.client.enqueue(self.q, 1, key="k", on_conflict="replace")
        app = qsidecar.App(self.client)
        self.assertEqual(app.enqueue(self.q, 2, key="k", on_conflict="replace"), (first.id, False, "ready", "replaced"))
        later = {"key": "k", "on_conflict": "debounce", "delay": 0.002}
        with self.assertRaisesRegex(qsidecar.BadRequest, "debounce_max_ms .1. is below delay_ms"):
            self.client.enqueue(self.q, 3, **later, debounce_max=0.001)
        self.assertEqual(self.client.enqueue(self.q, 3, **later, debounce_max=60).outcome, "replaced")
        job = self.one()
        self.assertEqual(job.payload, 3)
        (stored,) = self.client.enqueue_many([NewJob(self.q, 4, key="k", on_conflict="replace")])
        self.assertEqual(stored, (first.id, False, "claimed", "pending"))
        job.then(self.q, 5, key="other", key_until="start")
        job.ack()
        jobs = [self.one(), self.one()]
        self.assertEqual(sorted(job.payload for job in jobs), [4, 5])
        self.assertFalse(self.client.enqueue(self.q, 6, key="other", key_until="start", delay=60).duplicate)  # no claim takes it
        self.assertTrue(self.client.enqueue(self.q, 7, key="other").duplicate)
        with self.assertRaisesRegex(qsidecar.BadRequest, "delay_ms"):
            self.client.enqueue(self.q, key="k", on_conflict="debounce")

    def test_expiry(self):
        past = datetime(2001, 2, 3, tzinfo=timezone.utc)
        dead = [
            self.client.enqueue(self.q, 1, start_before=past, on_expiry="dead").id,
            qsidecar.App(self.client).enqueue(self.q, 2, start_before=past).id,
        ]
        gone = self.client.enqueue_many([NewJob(self.q, 3, start_before=past, on_expiry="delete")])[0].id
        self.client.enqueue(self.q, 4, start_within=timedelta(hours=1))
        job = self.one()
        self.assertEqual(job.payload, 4)
        self.assertAlmostEqual(self.peek(job.id)["start_before"] - job.enqueued_at, 3_600_000, delta=60_000)
        for job_id in dead:
            self.assertEqual([error["cause"] for error in self.peek(job_id)["errors"]], ["expired"])
        self.assertEqual(self.client.request("peek", queue=self.q, ids=[gone])["jobs"], [])
        job.then(self.q, 5, start_within=3600)
        job.ack()
        self.assertEqual(self.one().payload, 5)
        with self.assertRaisesRegex(ValueError, "exclude"):
            self.client.enqueue(self.q, start_before=past, start_within=1)
        with self.assertRaisesRegex(qsidecar.BadRequest, "on_expiry"):
            self.client.enqueue(self.q, on_expiry="drop")

    def test_delays(self):
        later = datetime.now(timezone.utc) + timedelta(hours=1)
        ids = [e.id for e in self.client.enqueue_many([NewJob(self.q, 1, delay=3600), NewJob(self.q, 2, run_at=later)])]
        for job_id in ids:
            self.assertEqual(self.peek(job_id)["state"], "scheduled")
        with self.assertRaisesRegex(ValueError, "time zone"):
            self.client.enqueue(self.q, run_at=datetime(2030, 1, 1))

    def test_wrong_spans_name_the_argument(self):
        self.client.enqueue(self.q)
        job = self.one()
        for name, call in {
            "delay=-1: must be from 0 to 316224000 seconds": lambda: self.client.enqueue(self.q, delay=-1),
            "delay=datetime.timedelta.*: must be from 0": lambda: self.client.enqueue(self.q, delay=timedelta(seconds=-1)),
            "delay=nan: must": lambda: job.nack(delay=float("nan")),
            "delay='soon': pass": lambda: NewJob(self.q, delay="soon").fields(),
            "delay and run_at exclude each other": lambda: self.client.enqueue(self.q, delay=1, run_at=5),
            "run_at=-5: must be in the years": lambda: self.client.enqueue(self.q, run_at=-5),
            'weights need order="rotate"': lambda: self.client.claim(self.q, "b", weights={"b": 2}),
            "weights has the queue .c., which isn.t one of": lambda: self.client.claim(self.q, "b", order="rotate", weights={"c": 2}),
            "order is 'random', must be one of strict, rotate": lambda: self.client.claim(self.q, order="random"),
            "timeout=0: must be from 0.001": lambda: self.client.enqueue(self.q, timeout=0),
            "lease=0.5: must be from 1 to 86400": lambda: job.extend(0.5),
            "wait=-2: must be from 0 to 3600": lambda: self.client.claim(self.q, wait=-2),
        }.items():
            with self.assertRaisesRegex((ValueError, TypeError), f"^{name}"):
                call()
        job.ack()

    def test_wrong_values_name_the_argument(self):
        for name, call in {
            "run_at='tomorrow': pass a datetime": lambda: self.client.enqueue(self.q, run_at="tomorrow"),
            r"headers=\['a'\]: pass a dict of texts": lambda: self.client.enqueue(self.q, headers=["a"]),
            "headers='a=b': pass a dict of texts": lambda: self.client.enqueue(self.q, headers="a=b"),
            "raw is of the type str: pass bytes": lambda: self.client.enqueue(self.q, raw="x"),
            r"job 1 is of the type dict: pass NewJob": lambda: self.client.enqueue_many([NewJob(self.q), {"queue": self.q}]),
            "'17' is no job: pass jobs that were claimed": lambda: self.client.ack_many(["17"]),
            "socket=5: pass a path": lambda: qsidecar.Client(5).ping(),
            "request_timeout='5s': pass a number of seconds": lambda: qsidecar.Client(request_timeout="5s"),
            "request_timeout=-1: pass a number of seconds": lambda: qsidecar.Client(request_timeout=-1),
            "request_timeout='1': pass a number of seconds": lambda: self.client.claim(self.q, request_timeout="1"),
        }.items():
            with self.assertRaisesRegex((ValueError, TypeError), f"^{name}"):
                call()

    def test_an_exception_is_an_error_text(self):
        self.client.enqueue(self.q, 1)
        self.one().nack(ValueError("boom"), delay=0)
        self.assertEqual(self.one().last_error, "boom")

    def test_nack(self):
        self.client.enqueue(self.q, 1)
        self.one().nack("boom\0\ud800", delay=0)
        job = self.one()
        self.assertEqual((job.attempt, job.last_error), (2, "boom\\0\\ud800"))
        job.nack(snooze=True, delay=0)
        job = self.one()
        self.assertEqual(job.attempt, 2)
        job.nack("enough", dead=True)
        self.assertEqual(self.peek(job.id)["state"], "dead")

    def test_limit(self):
        def limits():
            stat = self.client.stats(self.q)[0]
            return {name: stat[name] for name in ("max_claimed", "rate", "burst", "group_limit", "group_on_failure", "group_ready") if name in stat}

        self.client.limit(self.q, max_claimed=3, rate="100/s", burst=5)
        self.assertEqual(limits(), {"max_claimed": 3, "rate": "100/s", "burst": 5})
        self.client.limit(self.q, rate=0)
        self.assertEqual(limits(), {"max_claimed": 3})
        self.client.limit(self.q, max_claimed=0, group_limit=2, group_on_failure="skip", group_ready=3)
        self.assertEqual(limits(), {"group_limit": 2, "group_on_failure": "skip", "group_ready": 3})
        self.client.limit(self.q, none=True)
        self.assertEqual(limits(), {})
        with self.assertRaises(qsidecar.BadRequest):
            self.client.limit(self.q, rate="5/d")

    def test_many(self):
        stored = self.client.enqueue_many(NewJob(self.q, n) for n in range(100))
        self.assertEqual(len({e.id for e in stored}), 100)
        jobs = []
        while len(jobs) < 100:
            jobs += self.client.claim(self.q, max=1000, wait=60)
        self.assertEqual([job.payload for job in jobs], list(range(100)))
        jobs[0].ack()
        lost = self.client.ack_many(jobs[:50])
        self.assertEqual(lost, jobs[:1])
        self.assertEqual(self.client.nack_many(jobs[50:], snooze=True), [])
        self.assertEqual(self.client.stats(self.q)[0]["claimed"], 0)
        self.assertEqual(self.client.enqueue_many([]), [])
        with self.assertRaises(ValueError):
            self.client.enqueue_many([NewJob(self.q)] * 1001)

    def test_follow_up(self):
        self.client.enqueue(self.q, 1)
        job = self.one()
        job.then(self.q, 2)
        self.assertEqual(len(job.ack(enqueue=[NewJob(self.q, 3)])), 2)
        self.assertEqual([self.one().payload, self.one().payload], [2, 3])

    def test_timed_lease(self):
        self.client.enqueue(self.q, 1)
        with client() as other:
            job = other.claim(self.q, wait=60, lease=60)[0]
            job.extend(120)
        self.assertEqual(self.peek(job.id)["state"], "claimed")


class Errors(Case):
    def test_a_class_for_each_code(self):
        with self.assertRaises(qsidecar.BadRequest) as caught:
            self.client.enqueue_many([NewJob(self.q), NewJob("no queue's name!")])
        self.assertEqual((caught.exception.code, caught.exception.field, caught.exception.index), ("bad_request", "queue", 1))
        with self.assertRaises(qsidecar.UnknownOp):
            self.client.request("of_a_later_version")
        with self.assertRaises(qsidecar.TooLarge):
            self.client.enqueue(self.q, raw=bytes(self.client._session.server["max_payload"] + 1))
        with self.assertRaises(qsidecar.TooLarge):
            self.client.enqueue(self.q, raw=bytes(64 << 20))
        self.client.ping()  # the client continues after all of them
        self.client.enqueue(self.q, 1)
        job = self.one()
        job.ack()
        with self.assertRaises(qsidecar.LeaseLost):
            job.ack()

    def test_invalid_text(self):
        with self.assertRaises(UnicodeEncodeError):
            self.client.enqueue(self.q, headers={"a": "\ud800"})
        self.client.ping()

    def test_no_sidecar_listens(self):
        with self.assertRaisesRegex(qsidecar.NotConnected, "/nowhere/s.sock"):
            client(socket="/nowhere/s.sock").ping()

    def test_lost_leases_are_reported(self):
        lost = []
        with client(on_lost=lost.extend) as worker:
            self.client.enqueue(self.q, 1)
            job = worker.claim(self.q, wait=60)[0]
            self.assertFalse(job.lost)
            self.client.request("reclaim", queue=self.q, ids=[job.id])
            eventually(lambda: lost == [job], "the job is reported as lost")
            self.assertTrue(job.lost)
            with self.assertRaises(qsidecar.LeaseLost):
                job.ack()


class Life(Case):
    def test_threads_share_a_client(self):
        done = []

        def work():
            for n in range(50):
                self.client.enqueue(self.q, n)
                job = self.one()
                job.ack()
                done.append(job.id)

        threads = [in_thread(work) for _ in range(8)]
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(done)), 400)
        self.assertEqual(self.client._session.leases.held, {})

    def test_close_returns_jobs(self):
        self.client.enqueue(self.q, 1)
        with client() as other:
            self.assertEqual(other.claim(self.q, wait=60)[0].attempt, 1)
        self.assertEqual(self.one().attempt, 1)
        with self.assertRaises(qsidecar.Closed):
            other.ping()

    def test_close_ends_a_waiting_claim(self):
        other, ended = client(), threading.Event()

        def wait():
            try:
                other.claim(self.q, wait=600)
            except qsidecar.Closed:
                ended.set()

        other.ping()
        in_thread(wait)
        eventually(lambda: other._session.open, "the claim waits")
        other.close()
        self.assertTrue(ended.wait(LIMIT))

    def test_cancel_claims(self):
        got = []
        thread = in_thread(lambda: got.append(self.client.claim(self.q, wait=600)))
        eventually(lambda: self.client._session.open, "the claim waits")
        self.client.cancel_claims()
        thread.join(LIMIT)
        self.assertEqual(got, [[]])
        self.client.ping()

    def test_abandoned_claim_keeps_no_job(self):
        self.client.ping()
        with self.assertRaises((qsidecar.UnknownOutcome, qsidecar.NotConnected)):  # NotConnected if it was not sent in time
            self.client.claim(self.q, wait=600, request_timeout=-599.9)
        self.client.enqueue(self.q, 1)
        with client() as other:
            self.assertEqual(other.claim(self.q, wait=60)[0].attempt, 1)

    def test_interrupted_claim_keeps_no_job(self):
        self.client.enqueue(self.q, 1)
        self.client.ping()
        session = self.client._session
        wait = session.wait

        def interrupted(call, over):
            """Waits, and raises what a signal handler raises that runs just after the reply arrived."""
            latch = unittest.mock.Mock()
            latch.acquire = lambda timeout: eventually(lambda: call.answered, "the reply arrives") and handler()
            call.latch = latch
            wait(call, over)

        def handler():
            raise KeyboardInterrupt

        with unittest.mock.patch.object(session, "wait", interrupted), self.assertRaises(KeyboardInterrupt):
            self.client.claim(self.q)
        with client() as other:
            self.assertEqual([j.attempt for j in other.claim(self.q, wait=60)], [1])

    def test_interrupt_just_before_a_write(self):
        """A signal handler raises its exception just after the thread got the lock for its write."""
        self.client.enqueue(self.q, 1)
        job = self.one()
        sending = self.client._session.wire.sending
        take = sending.take

        def interrupted(owner, timeout):
            take(owner, timeout)
            raise KeyboardInterrupt

        with unittest.mock.patch.object(sending, "take", interrupted), self.assertRaises(KeyboardInterrupt):
            self.client.ping()
        self.client.ping()  # the lock is free
        job.ack()  # on the same connection: the job is not lost

    def test_disconnect(self):
        self.client.enqueue(self.q, 1)
        self.one()
        self.client.disconnect()
        self.assertEqual(self.one().attempt, 1)


class Fork(Case):
    def in_child(self, check):
        """Runs check in a child, which must return True."""

        def run():
            raise SystemExit(0 if check() is True else 2)

        self.assertEqual(exit_of(forked(run)), 0)

    def test_child_has_its_own_connection(self):
        self.client.enqueue(self.q, 1)
        job = self.one()
        waiting = in_thread(lambda: self.client.claim("elsewhere-" + self.q, wait=600))
        eventually(lambda: self.client._session.open, "a claim waits, so that both would read its answer")

        def child():
            mine = self.client.enqueue(self.q, 2)
            got = self.client.claim(self.q, wait=60)[0]
            got.ack()
            self.client.close()
            return got.id == mine.id

        for _ in range(3):
            self.in_child(child)
        self.client.ping()
        self.assertEqual(self.peek(job.id)["state"], "claimed")  # the child's end did not affect the parent's connection
        job.ack()
        self.client.cancel_claims()
        waiting.join(LIMIT)

    def test_fork_while_threads_call(self):
        stop = threading.Event()

        def call():
            while not stop.is_set():
                self.client.ping()

        threads = [in_thread(call) for _ in range(4)]
        self.addCleanup(lambda: [thread.join(LIMIT) for thread in threads])
        self.addCleanup(stop.set)
        for _ in range(10):
            self.in_child(lambda: self.client.ping() is None)

    def test_close_on_exec(self):
        self.client.ping()
        self.assertFalse(self.client._session.wire._socket.get_inheritable())


class LossText(unittest.TestCase):
    """The text names the time limit only if the lease was lost near it: within 100 ms, or within half of a short limit."""

    def test_overran(self):
        for limit, took, want in (
            (None, 3600.0, ""),
            (1000, 0.9, ""),
            (1000, 0.9015, "it ran longer than its time limit of 1 s"),
            (50, 0.0249, ""),
            (50, 0.026, "it ran longer than its time limit of 0.05 s"),
        ):
            with unittest.mock.patch("time.monotonic", lambda: 0.0):
                job = qsidecar.Job(None, {"id": "1", "queue": "q", "lease": "1.1", "attempt": 1, "max_attempts": 20, "fence": 1, "timeout_ms": limit})
            with unittest.mock.patch("time.monotonic", lambda: took):
                self.assertEqual(job._overran(), want, (limit, took))


if __name__ == "__main__":
    unittest.main()
