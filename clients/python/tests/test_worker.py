import asyncio
import hashlib
import logging
import os
import signal
import threading
import unittest
import unittest.mock

import qsidecar
from qsidecar import Dead, Retry, Snooze
from support import LIMIT, Case, app, eventually, exit_of, forked, in_thread, queue, quiet

KEPT = os.environ.get("QSIDECAR_KEPT", "py-not-kept")  # a queue that keeps its jobs


class Registration(unittest.TestCase):
    def test_a_job_needs_a_queue_and_a_function(self):
        registry = qsidecar.App()
        with self.assertRaisesRegex(TypeError, r'name the queue, as in @app.job\("mail"\), not <function'):

            @registry.job
            def mail(job):
                pass

        with self.assertRaisesRegex(TypeError, r"app.job\('mail'\) takes a function, not 5"):
            registry.job("mail")(5)


class Worker(Case):
    def setUp(self):
        super().setUp()
        self.app = app()
        self.addCleanup(self.app.client.close)

    def run_app(self, **options):
        """Runs the app in a thread until the test ends."""
        failed = []

        def run():
            try:
                self.app.run(**options)
            except BaseException as e:
                failed.append(e)

        thread = in_thread(run)

        def end():
            self.app.stop()
            thread.join(LIMIT)
            self.assertFalse(thread.is_alive())
            self.assertEqual(failed, [])

        self.addCleanup(end)

    def acked(self, job_id):
        eventually(lambda: self.peek(job_id) is None, "the job is done")

    def test_done_and_failed(self):
        seen = []

        @self.app.before_job
        def before(job):
            seen.append(("before", job.payload))

        @self.app.after_job
        def after(job, error):
            seen.append(("after", job.payload, type(error)))

        @self.app.job(self.q)
        def work(job):
            seen.append(("work", job.payload))
            if job.payload == "fail" and job.attempt == 1:
                raise KeyError("é")
            if job.payload == "later" and job.attempt == 1:
                raise Retry("in a moment", delay=0)
            if job.payload == "dead":
                raise Dead("no use")

        with self.assertLogs("qsidecar", "ERROR"):
            ids = {p: self.app.enqueue(self.q, p).id for p in ("ok", "fail", "later", "dead")}
            self.run_app(concurrency=1)
            self.acked(ids["ok"])
            self.acked(ids["later"])
            dead = eventually(lambda: self.dead(ids["dead"]), "the job is dead")
            self.assertEqual([e["message"] for e in dead["errors"]], ["no use"])
            failed = eventually(lambda: (self.peek(ids["fail"]) or {}).get("errors"), "the failure is kept")
        self.assertRegex(failed[0]["message"], r"^KeyError: 'é'\n  in work \(.*test_worker.py:\d+\)")
        self.assertIn(("before", "ok"), seen)
        self.assertIn(("after", "ok", type(None)), seen)
        self.assertIn(("after", "dead", Dead), seen)

    def dead(self, job_id):
        job = self.peek(job_id)
        return job if job and job["state"] == "dead" else None

    def test_hooks_that_fail(self):
        ran = []

        @self.app.before_job
        def before(job):
            if job.payload == "before":
                raise Dead("the hook before")

        @self.app.after_job
        def after(job, error):
            if job.payload == "after":
                raise Dead("the hook after")

        self.app.job(self.q)(lambda job: ran.append(job.payload))
        ids = [self.app.enqueue(self.q, p).id for p in ("before", "after")]
        with self.assertLogs("qsidecar", "ERROR"):
            self.run_app(concurrency=2)
            for job_id, word in zip(ids, ("before", "after")):
                job = eventually(lambda: self.dead(job_id), "the job is dead")
                self.assertEqual(job["errors"][0]["message"], f"the hook {word}")
        self.assertEqual(ran, ["after"])

    def test_results_and_follow_ups(self):
        after = queue()

        @self.app.job(KEPT, result=True)
        def work(job):
            job.then(after, {"from": job.id})
            return {"n": 17}

        @self.app.job("bad." + self.q, result=True)
        def bad(job):
            return {"no": object()}

        job_id = self.app.enqueue(KEPT).id
        bad_id = self.app.enqueue("bad." + self.q, max_attempts=1).id
        with self.assertLogs("qsidecar", "ERROR"):
            self.run_app()
            self.assertEqual(self.one(after).payload, {"from": job_id})
            job = eventually(lambda: self.dead_in("bad." + self.q, bad_id), "a result that is no JSON fails the job")
        self.assertIn("TypeError", job["errors"][0]["message"])
        done = self.peek(job_id, KEPT)
        if done is not None:  # if the sidecar's config keeps it
            self.assertEqual(done["result"], b'{"n":17}')
        self.assertEqual(done is not None, "QSIDECAR_KEPT" in os.environ)

    def dead_in(self, name, job_id):
        job = self.peek(job_id, name)
        return job if job and job["state"] == "dead" else None

    def test_settled_by_the_function(self):
        self.app.job(self.q)(lambda job: job.nack("by hand", dead=True))
        job_id = self.app.enqueue(self.q).id
        self.run_app()
        self.assertEqual(eventually(lambda: self.dead(job_id), "dead")["errors"][0]["message"], "by hand")

    def test_lost_while_it_runs(self):
        running, write_rest = threading.Event(), threading.Event()

        @self.app.job(self.q)
        def work(job):
            if job.fence == first_fence.setdefault("fence", job.fence):
                running.set()
                eventually(lambda: job.lost, "the job knows that it is lost")
                write_rest.wait(LIMIT)

        first_fence = {}
        job_id = self.app.enqueue(self.q).id
        with self.assertLogs("qsidecar", "WARNING") as logs:
            self.run_app(concurrency=2)
            self.assertTrue(running.wait(LIMIT))
            self.client.request("reclaim", queue=self.q, ids=[job_id])
            self.acked(job_id)  # the other thread did it
            write_rest.set()
            eventually(lambda: logs.output, "the loss is logged")

    def test_cancelled_while_it_runs(self):
        running, ended = threading.Event(), []

        @self.app.job(self.q)
        def work(job):
            running.set()
            try:
                for _ in range(int(LIMIT * 100)):
                    job.checkpoint()
                    threading.Event().wait(0.01)
            except qsidecar.Cancelled as e:
                ended.append((job.cancelled, job.lost, "was cancelled" in str(e)))
                with self.assertRaises(qsidecar.Cancelled):
                    job.ack()
                raise

        job_id = self.app.enqueue(self.q).id
        with self.assertLogs("qsidecar", "INFO") as logs:
            self.run_app(concurrency=2)
            self.assertTrue(running.wait(LIMIT))
            self.assertEqual(self.client.cancel(self.q, job_id, "no-such-job"), 1)
            eventually(lambda: ended, "the job stops")
            eventually(lambda: any("was cancelled while it ran" in line for line in logs.output), "it is logged")
        self.assertEqual(ended, [(True, True, True)])
        self.assertEqual(self.dead(job_id)["errors"][0]["cause"], "cancelled")
        self.assertEqual(self.client.cancel(self.q, job_id), 1)
        self.assertEqual(self.client.cancel(self.q, job_id, delete=True), 1)
        self.assertIsNone(self.peek(job_id))
        self.app.enqueue(self.q, key="k", delay=60)
        self.assertEqual(self.client.cancel(self.q, key="k"), 1)

    def test_a_logged_traceback_begins_in_the_function(self):
        frames = []

        @self.app.job(self.q)
        def plain(job):
            raise RuntimeError("plain")

        @self.app.job("async." + self.q)
        async def coroutine(job):
            raise RuntimeError("async")

        @self.app.job("hook." + self.q)
        def nothing(job):
            pass

        @self.app.after_job
        def after(job, error):
            if job.queue == "hook." + self.q:
                raise RuntimeError("hook")

        for name in (self.q, "async." + self.q, "hook." + self.q):
            self.app.enqueue(name, max_attempts=1)
        for concurrency in (1, 2):  # 1: in the main thread
            with self.assertLogs("qsidecar", "ERROR") as logs:
                self.app.run(concurrency, drain=True)
            for record in logs.records:
                lines = logging.Formatter().formatException(record.exc_info).splitlines()
                frames.append((lines[-1], [line.split()[-1] for line in lines if line.startswith("  File")]))
            self.assertEqual(
                sorted(frames),
                [("RuntimeError: async", ["coroutine"]), ("RuntimeError: hook", ["after"]), ("RuntimeError: hook", ["after"]), ("RuntimeError: plain", ["plain"])],
            )
            frames.clear()
            for name in (self.q, "async." + self.q, "hook." + self.q):
                self.app.enqueue(name, max_attempts=1)

    def test_a_run_over_its_time_limit_is_logged_as_such(self):
        refused = []

        @self.app.job(self.q)
        def work(job):
            eventually(lambda: job.lost, "the lease is lost")
            try:
                job.ack()
            except qsidecar.LeaseLost as e:
                refused.append(str(e))

        job_id = self.app.enqueue(self.q, timeout=0.05, max_attempts=1).id  # less than the client allows for the reply to the claim
        with self.assertLogs("qsidecar", "WARNING") as logs:
            self.app.run(drain=True)
        over = "it ran longer than its time limit of 0.05 s"
        self.assertEqual(refused, [f"job {job_id}: {over}; another worker may have it (lease_lost)"])
        self.assertEqual([r.getMessage() for r in logs.records], [f"<Job {job_id} of {self.q}, attempt 1 of 1> is dead, after its last attempt: {over}"])

    def test_drain(self):
        did = []
        self.app.job(self.q)(lambda job: did.append(job.payload))
        for n in range(30):
            self.app.enqueue(self.q, n)
        self.app.run(concurrency=4, drain=True)
        self.assertEqual(sorted(did), list(range(30)))
        self.app.enqueue(self.q, 30)  # and its client still works
        self.app.run(drain=True)
        self.assertEqual(len(did), 31)

    def test_drain_runs_jobs_of_its_last_job(self):
        """Also if the job ends between the empty reply to a claim and the check that no job
        runs.
        """
        did, claim, claimed = [], self.app.client.claim, threading.Event()

        @self.app.job(self.q)
        def work(job):
            did.append(job.payload)
            if job.payload == "first":
                claimed.wait(LIMIT)
                self.app.enqueue(self.q, "second")

        def late(*queues, **options):
            jobs = claim(*queues, **options)
            if did == ["first"] and not jobs and not claimed.is_set():
                claimed.set()
                eventually(lambda: not self.peek(first), "the first job is done")
                eventually(lambda: pools[0].busy() == 0, "its thread is free")
            return jobs

        pools, made = [], qsidecar.worker._ThreadPool
        with unittest.mock.patch.object(qsidecar.worker, "_ThreadPool", lambda *a: pools.append(made(*a)) or pools[0]):
            self.app.client.claim = late
            first = self.app.enqueue(self.q, "first").id
            self.app.run(concurrency=2, drain=True)
        self.assertEqual(did, ["first", "second"])

    def test_stop_waits_for_running_jobs(self):
        began, write_rest = threading.Event(), threading.Event()

        @self.app.job(self.q)
        def work(job):
            began.set()
            write_rest.wait(LIMIT)

        first = self.app.enqueue(self.q).id
        thread = in_thread(lambda: self.app.run(concurrency=1))
        self.assertTrue(began.wait(LIMIT))
        second = self.app.enqueue(self.q).id
        self.app.stop()
        write_rest.set()
        thread.join(LIMIT)
        self.assertIsNone(self.peek(first))
        self.assertEqual(self.peek(second)["attempt"], 0)

    def test_log_messages(self):
        self.q = "late"  # its failed jobs come back after an hour, not while this worker still runs
        @self.app.job(self.q)
        def work(job):
            if job.payload == "retry":
                raise Retry("busy there", delay=3600)
            if job.payload == "snooze":
                raise Snooze("not yet", delay=3600)
            if job.payload == "dead":
                raise Dead("no use")
            raise KeyError(job.payload)

        retry, snooze, dead, first, last = (
            self.app.enqueue(self.q, p, max_attempts=n).id
            for p, n in (("retry", 2), ("snooze", 1), ("dead", 2), ("first", 2), ("last", 1))
        )
        with self.assertLogs("qsidecar", "INFO") as logs:
            self.app.run(concurrency=1, drain=True)
        job = f"<Job %s of {self.q}, attempt 1 of %d>"
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            [
                f"worker started: queues {self.q}, concurrency 1",
                job % (retry, 2) + " will be tried again: busy there",
                job % (snooze, 1) + " is snoozed: not yet",
                job % (dead, 2) + " is dead: no use",
                job % (first, 2) + " will be tried again",
                job % (last, 1) + " is dead, after its last attempt",
                "worker stopped",
            ],
        )
        snoozed = self.peek(snooze)
        self.assertEqual((snoozed["state"], snoozed["attempt"], snoozed["errors"]), ("scheduled", 0, []))

    def test_an_outage_and_its_end_are_logged(self):
        self.app.job(self.q)(lambda job: None)
        claim, answers = self.app.client.claim, [qsidecar.Unavailable("away"), qsidecar.Unavailable("away")]

        def away(*queues, **options):
            if answers:
                raise answers.pop()
            self.app.stop()
            return claim(*queues, max=1, wait=0)

        self.app.client.claim = away
        with self.assertLogs("qsidecar", "WARNING") as logs:
            self.app.run(concurrency=1)
        logged = [record.getMessage() for record in logs.records]
        self.assertEqual(len(logged), 2, logged)
        self.assertEqual(logged[1], "jobs can be claimed again")

    def test_wrong_uses(self):
        with self.assertRaisesRegex(ValueError, "no job"):
            self.app.run()
        self.app.job(self.q)(lambda job: None)
        with self.assertRaisesRegex(ValueError, "already"):
            self.app.job(self.q)(lambda job: None)
        with self.assertRaises(ValueError):
            self.app.run(concurrency=0)


class Processes(Case):
    """Workers in processes of their own."""

    def test_killed_process_is_replaced(self):
        def run():
            worker = app()

            @worker.job(self.q)
            def work(job):
                if job.attempt == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            worker.run(concurrency=2, processes=True)

        ids = [self.client.enqueue(self.q).id for _ in range(3)]
        with quiet():
            pid = forked(run)
        for job_id in ids:
            eventually(lambda: self.peek(job_id) is None, "the job is done at its second attempt")
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(exit_of(pid), 0)

    def in_main_thread(self, function, **options):
        """Runs one job in a worker with one thread, in a process of its own. Returns the messages of its errors."""

        def run():
            logging.disable(logging.CRITICAL)
            worker = app()
            worker.job(self.q)(function)
            worker.run(drain=True, **options)

        job_id = self.client.enqueue(self.q, max_attempts=1).id
        self.assertEqual(exit_of(forked(run)), 0)
        return [e["message"] for e in (self.peek(job_id) or {"errors": []})["errors"]]

    def test_jobs_in_the_main_thread_can_handle_signals(self):
        def alarm(job):
            before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
            rung = []
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            eventually(lambda: rung, "the alarm rings")
            signal.signal(signal.SIGALRM, before)

        def time_limit(job):
            def late(number, frame):
                signal.setitimer(signal.ITIMER_REAL, 0)
                if not rung:
                    rung.append(number)
                    raise TimeoutError("the job's own limit")

            rung = []
            signal.signal(signal.SIGALRM, late)
            # Repeated, because a signal just before a call of C that waits doesn't interrupt the call.
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            threading.Event().wait()

        async def handler(job):
            loop, got = asyncio.get_running_loop(), asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, got.set)
            os.kill(os.getpid(), signal.SIGUSR1)
            await got.wait()
            loop.remove_signal_handler(signal.SIGUSR1)

        def loop_of_its_own(job):
            asyncio.run(handler(job))

        for options in ({"concurrency": 2, "processes": True}, {"concurrency": 1}):
            for job in (alarm, handler, loop_of_its_own):
                self.assertEqual(self.in_main_thread(job, **options), [], job)
            self.assertRegex(self.in_main_thread(time_limit, **options)[0], "TimeoutError: the job's own limit")

    def test_signals_after_a_handler_of_asyncio(self):
        """A job leaves asyncio's descriptor for signals behind, and a task. The worker stops in order, and the task goes on."""
        read, write = os.pipe()

        def run():
            worker = app()

            @worker.job(self.q)
            async def work(job):
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGUSR1, print)
                idle = asyncio.Event()
                left.append(loop.create_task(later(idle)))
                loop.call_later(0.001, idle.set)

            async def later(idle):
                await idle.wait()
                os.write(write, b"later")  # while the worker waits for the next job
                await asyncio.Event().wait()

            left = []
            worker.run(concurrency=1)

        pid = forked(run)
        os.close(write)
        self.client.enqueue(self.q)
        self.assertEqual(os.read(read, 5), b"later")
        for _ in range(2):  # a further job wakes the worker
            job_id = self.client.enqueue(self.q).id
            eventually(lambda: self.peek(job_id) is None, "the job is done")
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(exit_of(pid), 0)
        os.close(read)

    def test_second_signal_during_a_call_of_c(self):
        read, write = os.pipe()

        def run():
            worker = app()

            @worker.job(self.q)
            def work(job):
                os.write(write, b"began")
                hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 10**9)  # Python handles no signal before it returns

            worker.run(concurrency=1)

        self.client.enqueue(self.q)
        pid = forked(run)
        os.close(write)
        self.assertEqual(os.read(read, 5), b"began")
        os.close(read)

        def signaled():
            os.kill(pid, signal.SIGTERM)  # the system merges signals that arrive at once
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

        eventually(signaled, "a further signal ends the worker")
        self.assertEqual(exit_of(pid), 1)

    def test_fatal_error_ends_all_processes(self):
        def run():
            worker = app()
            worker.job(self.q)(lambda job: None)
            worker.jobs["no queue's name!"] = worker.jobs.pop(self.q)  # which job would reject
            worker.run(concurrency=2, processes=True)

        with quiet():
            pid = forked(run)
        self.assertEqual(exit_of(pid), 1)

    def test_processes_stop_with_their_parent(self):
        read, write = os.pipe()

        def run():
            worker = app()
            worker.job(self.q)(lambda job: None)
            worker.run(concurrency=2, processes=True)

        pid = forked(run)
        job_id = self.client.enqueue(self.q).id
        eventually(lambda: self.peek(job_id) is None, "they work")
        os.close(write)
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(exit_of(pid), -signal.SIGKILL)
        self.assertEqual(os.read(read, 1), b"")  # the last of them has ended
        os.close(read)

    def test_a_second_signal_ends_at_once(self):
        read, write = os.pipe()

        def run():
            logging.getLogger("qsidecar").addHandler(Pipe(write))
            logging.getLogger("qsidecar").setLevel(logging.INFO)
            worker = app()

            @worker.job(self.q)
            def work(job):
                os.write(write, b"began\n")
                threading.Event().wait()  # indefinitely

            worker.run(concurrency=2)

        job_id = self.client.enqueue(self.q).id
        pid = forked(run)
        os.close(write)
        with open(read) as logged:
            self.assertEqual(logged.readline(), f"worker started: queues {self.q}, concurrency 2\n")
            self.assertEqual(logged.readline(), "began\n")
            os.kill(pid, signal.SIGTERM)
            self.assertEqual(logged.readline(), "stopping; running jobs: 1; a second signal ends the worker at once\n")
            os.kill(pid, signal.SIGTERM)
            self.assertEqual(logged.readline(), "ended by a second signal; running jobs that use up an attempt: 1\n")
        self.assertEqual(exit_of(pid), 1)
        self.assertEqual(self.one().id, job_id)


class Pipe(logging.Handler):
    def __init__(self, to):
        super().__init__()
        self.to = to

    def emit(self, record):
        os.write(self.to, (record.getMessage() + "\n").encode())


if __name__ == "__main__":
    unittest.main()
