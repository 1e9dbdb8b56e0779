"""Jobs whose functions are not plain ones. No job is acked if its work did not run."""

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import os
import sys
import threading

import qsidecar
from qsidecar import Dead, Retry, testing
from support import LIMIT, Case, app, eventually, exit_of, in_thread, quiet


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


async def a_while():
    """Lets the loop run."""
    await asyncio.get_running_loop().run_in_executor(None, int)


def failed_future():
    future: concurrent.futures.Future = concurrent.futures.Future()
    future.set_exception(Dead("in the pool"))
    return future


class Handlers(Case):
    def setUp(self):
        super().setUp()
        self.app = app()
        self.addCleanup(self.app.client.close)
        self.ran = []

    def work(self, function, times=1, hook=None, ack="behind", **options):
        """Lets the function run one job, and returns the job afterwards, or None if it was
        acked.
        """
        if hook is not None:
            self.app.before_job(hook)
        self.app.job(self.q)(function)
        options.setdefault("max_attempts", times)
        job_id = self.app.enqueue(self.q, "x", **options).id
        thread = in_thread(lambda: self.app.run(concurrency=1, ack=ack))
        self.addCleanup(thread.join, 20)
        self.addCleanup(self.app.stop)

        def ended():
            job = self.peek(job_id)
            return (job,) if job is None or job["state"] in ("dead", "scheduled") else None

        (job,) = eventually(ended, "the job is acked, dead or to be tried again")
        return job

    def why(self, job):
        self.assertIsNotNone(job, "the job was acked")
        self.assertEqual(job["state"], "dead")
        return job["errors"][-1]["message"]

    def test_a_coroutine_function_is_run(self):
        async def work(job):
            await a_while()
            self.ran.append(job.payload)

        self.assertIsNone(self.work(work))
        self.assertEqual(self.ran, ["x"])

    def test_errors_of_coroutines(self):
        for error, word in (
            (KeyError("é"), "KeyError: 'é'"),
            (Dead("no use"), "no use"),
            (SystemExit(0), "SystemExit: 0"),
            (KeyboardInterrupt(), "KeyboardInterrupt"),
            (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
            (StopIteration(), "coroutine raised StopIteration"),
        ):
            with self.subTest(repr(error)):
                self.setUp()

                async def work(job, error=error):
                    raise error

                with quiet():
                    self.assertIn(word, self.why(self.work(work)))

    def test_handler_does_not_end_the_shared_loop(self):
        async def leave():
            raise SystemExit(3)

        async def leaves(job):
            await asyncio.gather(leave())

        async def stops(job):
            asyncio.get_running_loop().stop()
            await a_while()

        with quiet():
            self.assertIn("SystemExit: 3", self.why(self.work(leaves)))
        self.setUp()
        self.assertIsNone(self.work(stops))
        self.setUp()
        self.test_a_coroutine_function_is_run()

    def test_unfinished_work_in_a_dict(self):
        for word, make in (("Future in a dict", concurrent.futures.Future), ("generator in a dict", lambda: (n for n in "x"))):
            with self.subTest(word):
                self.setUp()
                with quiet():
                    self.assertIn(word, self.why(self.work(lambda job, make=make: {"a": 1, "b": make()})))

    def test_coroutines_behind_other_callables(self):
        async def work(job, *, to):
            to.append(job.payload)

        class Callable:
            async def __call__(this, job):
                self.ran.append(job.payload)

        for function in (functools.partial(work, to=self.ran), lambda job: work(job, to=self.ran), Callable()):
            with self.subTest(repr(function)):
                ran, self.ran[:] = self.ran, []
                self.setUp()
                self.ran = ran
                self.assertIsNone(self.work(function))
                self.assertEqual(self.ran, ["x"])

    def test_all_coroutines_of_a_worker_have_one_loop(self):
        loops = []

        @self.app.job(self.q)
        async def work(job):
            loops.append(asyncio.get_running_loop())

        for _ in range(5):
            self.app.enqueue(self.q)
        self.app.run(concurrency=4, drain=True)
        self.assertEqual((len(loops), len(set(loops))), (5, 1))

    def test_coroutines_run_concurrently(self):
        both = threading.Barrier(2, timeout=60)

        @self.app.job(self.q)
        async def work(job):
            await asyncio.get_running_loop().run_in_executor(None, both.wait)
            self.ran.append(job)

        for _ in range(2):
            self.app.enqueue(self.q, max_attempts=1)
        thread = in_thread(lambda: self.app.run(concurrency=2))
        self.addCleanup(thread.join, 20)
        self.addCleanup(self.app.stop)
        eventually(lambda: len(self.ran) == 2, "each was at work while the other was")

    def test_a_hook_that_is_a_coroutine_is_run(self):
        async def before(job):
            raise Dead("not for you")

        with quiet():
            job = self.work(lambda job: self.ran.append(job.payload), hook=before)
        self.assertEqual((self.why(job), self.ran), ("not for you", []))

    def test_generator_functions_are_rejected(self):
        def generator(job):
            self.ran.append((yield))

        async def async_generator(job):
            yield self.ran.append(job)

        for function in (generator, async_generator, functools.partial(generator), functools.partial(async_generator)):
            with self.subTest(repr(function)), self.assertRaisesRegex(TypeError, "generator"):
                self.app.job(self.q)(function)
            with self.subTest(repr(function)), self.assertRaisesRegex(TypeError, "generator"):
                self.app.before_job(function)
            with self.subTest(repr(function)), self.assertRaisesRegex(TypeError, "generator"):
                self.app.after_job(function)

    def test_functions_with_other_arguments_are_rejected(self):
        class Callable:
            def __call__(self):
                pass

        for function in (lambda: None, lambda job, more: None, lambda *, job: None, Callable()):
            with self.subTest(repr(function)), self.assertRaisesRegex(TypeError, "is called with the job as its only argument"):
                self.app.job(self.q)(function)
        self.app.job(self.q)(lambda job, more=1, **rest: None)

    def test_unfinished_result_fails_the_job(self):
        def generator(job):
            yield self.ran.append(job)

        async def async_generator(job):
            yield self.ran.append(job)

        class Later:
            def __await__(this):
                yield self.ran.append(this)

        for function in (
            lambda job: generator(job),
            lambda job: async_generator(job),
            lambda job: map(self.ran.append, [job]),
            lambda job: filter(self.ran.append, [job]),
            lambda job: itertools.starmap(self.ran.append, [(job,)]),
            lambda job: contextlib.contextmanager(generator)(job),
            lambda job: contextlib.asynccontextmanager(async_generator)(job),
            lambda job: lambda: self.ran.append(job),  # like a decorator that needs arguments
            lambda job: self.ran.append,
            lambda job: functools.partial(self.ran.append, job),
            lambda job: [generator(job)],
            lambda job: (Later(), Later()),
            lambda job: {concurrent.futures.Future()},
            lambda job: frozenset([concurrent.futures.Future()]),
            lambda job: {concurrent.futures.Future(): "a URL"},
            lambda job: [1, {"b": [failed_future()]}],
            lambda job: {"a": (None, [generator(job)])},
        ):
            with self.subTest(inspect.getsource(function)):
                ran = self.ran
                self.setUp()
                with quiet():
                    self.assertIn("TypeError", self.why(self.work(function)))
                self.assertEqual(ran, [])

    def test_result_contains_itself(self):
        itself: list = [1, {"a": ["b"]}]
        itself.append(itself)
        self.assertIsNone(self.work(lambda job: itself))

    def test_a_child_that_the_function_forked_settles_nothing(self):
        def returns(job):
            pid = os.fork()
            if pid:
                self.ran.append(exit_of(pid))

        def exits(job):
            pid = os.fork()
            if not pid:
                sys.exit(7)
            self.ran.append(exit_of(pid))

        for function, code in ((returns, 0), (exits, 7)):
            with self.subTest(function.__name__):
                self.setUp()
                self.app.after_job(lambda job, error: self.ran.append(error))
                self.assertIsNone(self.work(function))
                self.assertEqual(self.ran, [code, None])

    def test_a_future_is_waited_for(self):
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)

        def bad():
            raise Dead("in the pool")

        with quiet():
            self.assertEqual(self.why(self.work(lambda job: pool.submit(bad))), "in the pool")

    def test_non_standard_exceptions(self):
        class Own(BaseException):
            pass

        def leave(job):
            sys.exit(0)

        def own(job):
            raise Own("mine")

        def interrupt(job):
            raise KeyboardInterrupt

        def generator_exit(job):
            raise GeneratorExit

        def unspeakable(job):
            raise Unspeakable

        errors = {leave: "SystemExit: 0", own: "Own: mine", interrupt: "KeyboardInterrupt", generator_exit: "GeneratorExit",
                 unspeakable: "Unspeakable"}
        for function, text in errors.items():
            with self.subTest(text):
                self.setUp()
                with quiet():
                    self.assertIn(text, self.why(self.work(function)))

    def test_rejected_outcome_fails_the_job(self):
        class Silent(Dead, Unspeakable):
            __str__ = Unspeakable.__str__

        def too_late(job):
            raise Retry("in a century", delay=100 * 365 * 86400)

        def backwards(job):
            raise Retry("yesterday", delay=-1)

        def nowhere(job):
            job.then("no queue's name!")

        def silent(job):
            raise Silent

        for function, word in ((too_late, "delay=3153600000: must"), (backwards, "delay=-1: must"), (nowhere, "queue"), (silent, "Silent")):
            with self.subTest(word), quiet():
                self.setUp()
                self.assertIn(word, self.why(self.work(function)))

    def test_inline_runs_coroutines_too(self):
        @self.app.job(self.q, result=True)
        async def work(job):
            await a_while()
            return job.payload + 1

        async def caller():
            return self.app.enqueue(self.q, 1)  # like a program with its own loop

        with testing.inline(self.app) as did:
            self.app.enqueue(self.q, 1)
            asyncio.run(caller())
        self.assertEqual([done.result for done in did.jobs], [2, 2])

    def test_inline_runs_jobs_of_coroutines(self):
        @self.app.job(self.q)
        async def work(job):
            await a_while()
            if job.payload:
                self.app.enqueue(self.q, job.payload - 1)
            self.ran.append(job.payload)

        def run():
            with testing.inline(self.app):
                self.app.enqueue(self.q, 2)

        thread = in_thread(run)
        thread.join(LIMIT)
        self.assertFalse(thread.is_alive(), "the jobs wait for each other")
        self.assertEqual(self.ran, [0, 1, 2])

    def test_error_after_an_own_settle_is_logged(self):
        @self.app.job(self.q)
        def work(job):
            job.ack()
            raise KeyError("after it")

        self.app.enqueue(self.q)
        with self.assertLogs("qsidecar", "ERROR") as logs:
            self.app.run(concurrency=1, drain=True)
        self.assertIn("after it", logs.output[0])

    def test_settle_is_retried_after_internal(self):
        do, answers = self.app.client._call, [qsidecar.Internal("a bug"), qsidecar.Internal("a bug")]

        def answered(op, *rest, **options):
            if op in ("ack", "nack") and answers:
                raise answers.pop()
            return do(op, *rest, **options)

        self.app.client._call = answered
        with quiet():
            self.assertIsNone(self.work(lambda job: self.ran.append(job.payload), ack="sync"))
        self.assertEqual((self.ran, answers), (["x"], []))
