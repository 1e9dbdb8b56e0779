"""Jobs of `async def` functions: one loop, the worker's connection, lost leases and the end of a worker."""

import asyncio
import threading
import unittest

from qsidecar import AsyncClient, AsyncJob, Dead, Job, NewJob, testing
from support import LIMIT, Case, app, eventually, in_thread, quiet


class AsyncWorker(Case):
    def setUp(self):
        super().setUp()
        self.app = app()
        self.addCleanup(self.app.client.close)

    def run_in_thread(self, concurrency):
        thread = in_thread(lambda: self.app.run(concurrency))
        self.addCleanup(thread.join, LIMIT)
        self.addCleanup(self.app.stop)
        return thread

    def test_the_client_of_a_job(self):
        for concurrency in (1, 3):  # in the main thread, and in the thread of the loop
            with self.subTest(concurrency):
                self.setUp()
                got = []

                @self.app.job(self.q, result=True)
                async def work(job):
                    got.append((type(job), type(job.client), job.client._client))
                    await job.extend()
                    await asyncio.gather(*(job.client.enqueue(job.payload, n) for n in range(3)))
                    job.then(job.payload, 3)

                self.app.enqueue(self.q, "next." + self.q)
                self.app.run(concurrency, drain=True)
                self.assertEqual(got, [(AsyncJob, AsyncClient, self.app.client)])
                jobs = self.client.claim("next." + self.q, max=10)
                self.assertEqual(sorted(job.payload for job in jobs), [0, 1, 2, 3])
                self.client.ack_many(jobs)

    def test_a_function_settles_its_job(self):
        @self.app.job(self.q)
        async def work(job):
            await job.nack("enough", dead=True)

        job_id = self.app.enqueue(self.q).id
        self.app.run(2, drain=True)
        self.assertEqual(self.peek(job_id)["errors"][0]["message"], "enough")

    def test_jobs_need_no_threads(self):
        ready, gate = [], []

        @self.app.job(self.q)
        async def work(job):
            if not gate:
                gate.append(asyncio.Event())
            ready.append(asyncio.get_running_loop())
            await gate[0].wait()

        self.app.client.enqueue_many([NewJob(self.q) for _ in range(300)])
        before = threading.active_count()
        thread = self.run_in_thread(300)
        eventually(lambda: len(ready) == 300, "all jobs run at once")
        self.assertLess(threading.active_count() - before, 50)
        self.app.stop()
        ready[0].call_soon_threadsafe(gate[0].set)
        thread.join(LIMIT)
        self.assertEqual([q["claimed"] + q["ready"] for q in self.client.stats(self.q)], [0])  # the running jobs have finished

    def test_a_lost_lease_cancels_the_task(self):
        for concurrency in (1, 2):
            with self.subTest(concurrency):
                self.setUp()
                began, ended = [], []

                @self.app.job(self.q)
                async def work(job):
                    if began:  # a reclaim uses up no attempt
                        return
                    began.append(job)
                    try:
                        await asyncio.Event().wait()
                    finally:
                        ended.append(job.lost)

                job_id = self.app.enqueue(self.q).id

                def reclaim():
                    eventually(lambda: began, "it runs")
                    self.client.request("reclaim", queue=self.q, ids=[job_id])
                    eventually(lambda: ended and self.peek(job_id) is None, "it is cancelled, and the worker goes on")
                    self.app.stop()

                thread = in_thread(reclaim)
                with quiet():
                    self.app.run(concurrency)  # 1: in the main thread
                thread.join(LIMIT)
                self.assertEqual(ended, [True])

    def test_a_cancelled_job_cancels_the_task(self):
        began, ended = [], []

        @self.app.job(self.q)
        async def work(job):
            began.append(job)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(job.cancelled)
                raise

        job_id = self.app.enqueue(self.q).id

        def cancel():
            eventually(lambda: began, "it runs")
            self.client.cancel(self.q, job_id)
            eventually(lambda: ended, "it is cancelled")
            self.app.stop()

        thread = in_thread(cancel)
        with quiet():
            self.app.run(2)
        thread.join(LIMIT)
        self.assertEqual(ended, [True])
        self.assertEqual(len(began), 1)

    def test_hooks_and_plain_functions_beside(self):
        calls = []

        @self.app.before_job
        def before(job):
            calls.append(("before", type(job)))

        @self.app.after_job
        async def after(job, error):
            calls.append(("after", type(job), await job.client.ping(), repr(error)))

        @self.app.job(self.q)
        async def work(job):
            raise Dead("no")

        @self.app.job("plain." + self.q)
        def plain(job):
            calls.append(("plain", type(job), job.client))

        self.app.enqueue(self.q)
        with quiet():
            self.app.run(4, drain=True)
        self.assertEqual(calls, [("before", Job), ("after", AsyncJob, None, "Dead('no')")])
        del calls[:]
        self.app.enqueue("plain." + self.q)
        self.app.run(4, drain=True)
        self.assertEqual(calls[1], ("plain", Job, self.app.client))

    def test_inline(self):
        @self.app.job(self.q)
        async def work(job):
            await job.client.enqueue("next." + self.q, job.payload)
            await job.ack()

        with testing.inline(self.app) as did:
            self.app.enqueue(self.q, 1)
            self.app.enqueue(self.q, 2)
        self.assertEqual([done.payload for done in did.of("next." + self.q)], [1, 2])


if __name__ == "__main__":
    unittest.main()
