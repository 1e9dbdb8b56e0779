"""python -m qsidecar work."""

import os
import subprocess
import tempfile
import threading
import unittest

import qsidecar
from support import LIMIT, PYTHON, Case, app, eventually, in_thread

APP = """
import threading, qsidecar
app, other, empty = qsidecar.App(request_timeout=60), 17, qsidecar.App()

@app.job("MAIL")
def mail(job):
    print("mail", threading.get_ident(), flush=True)

@app.job("API")
def api(job):
    print("api", threading.get_ident(), flush=True)
"""


class Program(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.mail, self.api = "mail." + self.q, "api." + self.q
        self.write("jobs.py", APP.replace("MAIL", self.mail).replace("API", self.api))
        self.write("broken.py", "import no_such_module\n")

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(text)

    def run_program(self, *args):
        path = os.pathsep.join([os.path.dirname(os.path.dirname(qsidecar.__file__)), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*PYTHON, "-m", "qsidecar", "work", *args],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
        )
        return done.returncode, done.stdout, done.stderr

    def test_wrong_arguments_are_messages(self):
        for args, text in {
            ("no_such:app",): f"No module named 'no_such', neither in {self.folder} nor",
            ("jobs.py:app",): "a module's name has no .py: jobs:app",
            ("../jobs:app",): "name the app as MODULE:APP, mailer:app for example, not '../jobs:app'",
            ("jobs",): "name the app as MODULE:APP",
            ("jobs:ap",): "jobs has no ap; it has jobs:app, jobs:empty",
            ("jobs:other",): "jobs:other isn't a qsidecar.App, but 17; it has jobs:app",
            ("jobs:empty",): "jobs:empty: the app has no jobs",
            ("jobs:app", "--queue", "mial"): f"jobs:app: the app has no function for the queue 'mial', only for {self.mail}, {self.api}",
            ("jobs:app", "--queue", "mail=many"): "'mail=many' isn't a queue",
            ("jobs:app", "--queue", "mail=0"): "'mail=0' isn't a queue",
            ("jobs:app", "-j", "0"): "--concurrency is 1 at least",
            ("jobs:app", "-q", self.mail, "-q", f"{self.api}=2", "--weights", f"{self.api}=3"): f"weights has the queue {self.api!r}, whose jobs have a number of their own",
            ("jobs:app", "-q", f"{self.api}=2", "--weights", f"{self.api}=3"): f"weights has the queue {self.api!r}, whose jobs have a number of their own",
        }.items():
            code, _, errors = self.run_program(*args)
            self.assertEqual(code, 2, errors)
            self.assertIn(text, errors)
            self.assertNotIn("Traceback", errors)

    def test_a_missing_import_of_the_module_has_its_traceback(self):
        code, _, errors = self.run_program("broken:app")
        self.assertEqual(code, 1)
        self.assertIn('broken.py", line 1', errors)
        self.assertNotIn("importlib", errors)
        self.assertIn("qsidecar: the module broken can't be imported: its error is above\n", errors)

    def test_a_syntax_error_of_the_module_has_its_line(self):
        self.write("wrong.py", "def f(:\n")
        code, _, errors = self.run_program("wrong:app")
        self.assertEqual(code, 1)
        self.assertIn('wrong.py", line 1', errors)
        self.assertNotIn("importlib", errors)

    def test_queues(self):
        for name in (self.mail, self.api):
            self.client.enqueue(name)
        code, printed, errors = self.run_program("jobs:app", "--drain", "--queue", f"{self.mail}=3")
        self.assertEqual((code, printed.split()[0]), (0, "mail"), errors)
        self.assertIn(f"worker started: queues {self.mail}, concurrency 3\n", errors)
        self.assertEqual(self.one(self.api).attempt, 1)
        self.client.enqueue(self.api)
        code, printed, errors = self.run_program(
            "jobs:app", "--drain", "-q", self.api, "-q", f"{self.mail}=2", "-j", "1", "--weights", f"{self.api}=3"
        )
        self.assertEqual((code, printed.split()[0]), (0, "api"), errors)
        self.assertIn(f"worker started: queues {self.api}=3, concurrency 1; queues {self.mail}, concurrency 2\n", errors)


class Shares(Case):
    """Queues that have their own concurrency."""

    def work_of(self, options):
        """Runs jobs that wait until a number of them of each queue runs. Returns the most that ran at once, by queue."""
        mail, api = "mail." + self.q, "api." + self.q
        worker, lock, running, most = app(), threading.Lock(), {mail: 0, api: 0}, {mail: 0, api: 0}
        go = threading.Event()

        def job(job):
            with lock:
                running[job.queue] += 1
                most[job.queue] = max(most[job.queue], running[job.queue])
            go.wait(LIMIT)
            with lock:
                running[job.queue] -= 1

        for name in (mail, api):
            worker.job(name)(job)
            self.client.enqueue_many([qsidecar.NewJob(name) for _ in range(9)])
        thread = in_thread(lambda: worker.run(drain=True, **options(mail, api)))
        return thread, most, go, mail, api

    def left(self, *names):
        return sum(count["ready"] + count["claimed"] for name in names for count in self.client.stats(name))

    def test_each_queue_has_its_own(self):
        thread, most, go, mail, api = self.work_of(lambda mail, api: {"queues": {mail: 4, api: 2}})
        eventually(lambda: (most[mail], most[api]) == (4, 2), "as many jobs of each queue run as it has threads")
        go.set()
        thread.join(LIMIT)
        self.assertEqual((most[mail], most[api]), (4, 2))
        self.assertEqual(self.left(mail, api), 0)

    def test_the_rest_shares(self):
        thread, most, go, mail, api = self.work_of(lambda mail, api: {"queues": {mail: None, api: 2}, "concurrency": 3})
        eventually(lambda: (most[mail], most[api]) == (3, 2), "as many jobs of each queue run as it has threads")
        go.set()
        thread.join(LIMIT)
        self.assertEqual(self.left(mail, api), 0)

    def test_a_drain_waits_for_jobs_of_other_queues(self):
        """A job of one queue enqueues a job of another one, which had no job before."""
        first, second = "first." + self.q, "second." + self.q
        worker, ran = app(), []

        @worker.job(first)
        def enqueue(job):
            eventually(lambda: len(claims) >= 2, "the other queue was found empty")
            job.then(second)

        worker.job(second)(lambda job: ran.append(job.id))
        claim, claims = worker.client.claim, []

        def counted(*queues, **options):
            jobs = claim(*queues, **options)
            if queues == (second,):
                claims.append(jobs)
            return jobs

        worker.client.claim = counted
        self.client.enqueue(first)
        self.client.enqueue(second)  # so that its thread claims twice
        worker.run(queues={second: 1, first: 1}, drain=True)
        self.assertEqual(len(ran), 2)


if __name__ == "__main__":
    unittest.main()
