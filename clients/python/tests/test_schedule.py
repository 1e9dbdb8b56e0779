"""Declarations of schedules, by the client and at the start of an app."""

import os
import signal
import subprocess
import tempfile
import unittest

import qsidecar
from support import LIMIT, PYTHON, Case, app, eventually, in_thread, quiet
from test_stalled import Deaf


class Schedules(Case):
    def test_declaration(self):
        options = {"queue": self.q, "tz": "Europe/Berlin", "payload": {"kind": "daily"}, "headers": {"a": "b"}, "source": "app", "version": 1}
        self.addCleanup(self.client.request, "change_schedule", queue=self.q, schedule={"name": self.q}, do="delete")
        self.assertEqual(self.client.schedule(self.q, "0 6 * * *", **options), "created")
        self.assertEqual(self.client.schedule(self.q, "0 6 * * *", **options), "unchanged")
        options["version"] = 2
        self.assertEqual(self.client.schedule(self.q, "0 7 * * *", **options), "updated")
        options["version"] = 1
        self.assertEqual(self.client.schedule(self.q, "0 8 * * *", **options), "ignored")
        self.client.request("change_schedule", queue=self.q, schedule={"name": self.q}, do="run")
        job = self.one()
        self.assertEqual(job.payload, {"kind": "daily"})
        self.assertEqual((job.headers["a"], job.headers["qsidecar-schedule"]), ("b", self.q))
        job.ack()

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "cron or every"):
            self.client.schedule("s", queue=self.q)
        with self.assertRaisesRegex(ValueError, "cron or every"):
            qsidecar.App().schedule("s", "0 6 * * *", every=60, queue=self.q)
        with self.assertRaisesRegex(qsidecar.BadRequest, "61"):
            self.client.schedule("s", "61 * * * *", queue=self.q)

    def test_app_declares_at_its_start(self):
        seen = []
        worker = app()
        self.addCleanup(worker.client.close)
        self.addCleanup(self.client.request, "change_schedule", queue=self.q, schedule={"name": self.q}, do="delete")
        worker.schedule(self.q, every=1, queue=self.q, payload="tick", missed="all")

        @worker.job(self.q)
        def tick(job):
            seen.append(job.headers["qsidecar-occurrence"])

        thread = in_thread(worker.run)
        eventually(lambda: len(seen) >= 2, "two occurrences")
        worker.stop()
        thread.join(LIMIT)
        self.assertEqual(len(set(seen)), len(seen))

    def test_app_waits_for_the_sidecar(self):
        worker = app(socket="/nowhere/s.sock")
        worker.job("q")(print)
        worker.schedule("s", "@daily", queue="q")
        with quiet(), self.assertRaises(qsidecar.NotConnected):
            worker.run(drain=True)
        with self.assertLogs("qsidecar", "WARNING") as logged:
            thread = in_thread(worker.run)
            eventually(lambda: logged.output, "a warning")
            worker.stop()
            thread.join(LIMIT)
        self.assertRegex(logged.output[0], "can't declare the schedule s, trying again: no sidecar answers on /nowhere/s.sock")


APP = """
import qsidecar
app = qsidecar.App(codec="json")
app.job("q")(print)
app.schedule("s", every=60, queue="q")
"""


class Stop(unittest.TestCase):
    """A signal while the worker declares its schedules, and the sidecar or its database is away."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(folder.name, "jobs.py"), "w") as file:
            file.write(APP)

    def stops(self, socket, waits, number=signal.SIGTERM):
        """Checks that a signal ends each kind of worker with 0, once waits() has returned."""
        for more in ((), ("-j", "1"), ("--processes", "-j", "2")):
            with self.subTest(more=more, number=number):
                path = os.pathsep.join([os.path.dirname(os.path.dirname(qsidecar.__file__)), os.environ.get("PYTHONPATH", "")])
                worker = subprocess.Popen(
                    [*PYTHON, "-m", "qsidecar", "work", "jobs:app", *more],
                    cwd=self.folder,
                    env={**os.environ, "PYTHONPATH": path, "QSIDECAR_SOCKET": socket},
                    stderr=subprocess.PIPE,
                    text=True,
                )
                self.addCleanup(worker.wait)
                self.addCleanup(worker.kill)
                waits(worker)
                worker.send_signal(number)
                rest = worker.communicate(timeout=LIMIT)[1]
                self.assertEqual(worker.returncode, 0, rest)
                self.assertIn("worker stopped", rest)

    def test_without_a_sidecar(self):
        def waits(worker):
            while "can't declare the schedule s, trying again" not in worker.stderr.readline():
                self.assertIsNone(worker.poll())

        for number in (signal.SIGTERM, signal.SIGINT):
            self.stops(os.path.join(self.folder, "none"), waits, number)

    def test_without_an_answer(self):
        path = os.path.join(self.folder, "s")
        sidecar = Deaf(path)
        self.addCleanup(sidecar.listener.close)

        def waits(worker):
            sidecar.accept()
            sidecar.expect("schedule")

        self.addCleanup(sidecar.close)
        self.stops(path, waits)


if __name__ == "__main__":
    unittest.main()
