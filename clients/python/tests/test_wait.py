"""Waits for the ends of jobs, and calls."""

import asyncio
import threading
import unittest

import qsidecar
from support import CODEC, LIMIT, Case, client


class Waits(Case):
    def setUp(self):
        super().setUp()
        self.q = "waited"  # its done jobs are kept, so that a job which ends before its wait begins has a result

    def answer(self, settle):
        """Settles the next job in a thread."""

        def work():
            with client() as worker:
                (job,) = worker.claim(self.q, wait=LIMIT)
                settle(job)

        thread = threading.Thread(target=work)
        thread.start()
        self.addCleanup(thread.join)

    def test_call(self):
        self.answer(lambda job: job.ack(result={"sum": sum(job.payload)}))
        self.assertEqual(self.client.call(self.q, [1, 2], wait=LIMIT), {"sum": 3})

    def test_jobs_of_a_queue_that_keeps_none(self):
        self.q = "unkept"
        self.answer(lambda job: job.ack(result=17))
        self.assertEqual(self.client.call(self.q, wait=LIMIT), 17)
        self.assertEqual(len(self.client.request("peek", queue=self.q, state="done")["jobs"]), 1, "a call keeps its job")
        job = self.client.enqueue(self.q, retain=60)
        self.client.claim(self.q, wait=LIMIT)[0].ack(result=18)
        (ended,) = self.client.wait(self.q, job.id)
        self.assertEqual((ended.state, ended.result), ("done", 18))

    def test_call_of_a_job_that_dies(self):
        self.answer(lambda job: job.nack("no such address", dead=True))
        with self.assertRaisesRegex(qsidecar.JobFailed, "is dead: no such address") as raised:
            self.client.call(self.q, wait=LIMIT)
        self.assertEqual(raised.exception.job.state, "dead")

    def test_call_without_an_end(self):
        with self.assertRaisesRegex(TimeoutError, "has not ended within 0 s") as raised:
            self.client.call(self.q, wait=0)
        self.client.cancel(self.q, raised.exception.job.id, delete=True)  # it can be prefetched, so a delete can fail
        (gone,) = self.client.wait(self.q, raised.exception.job.id)
        self.assertEqual((gone.state, gone.result, gone.raw), ("deleted", None, None))

    def test_any_and_all(self):
        one, two = self.client.enqueue(self.q).id, self.client.enqueue(self.q).id
        self.answer(lambda job: job.ack(raw=b"\xff"))
        (first,) = self.client.wait(self.q, one, two, any=True, wait=LIMIT)
        self.assertEqual((first.id, first.state, first.raw), (one, "done", b"\xff"))
        with self.assertRaisesRegex(ValueError, "isn't JSON"):
            first.result
        self.answer(lambda job: job.ack())
        self.assertEqual([e.id for e in self.client.wait(self.q, two, wait=LIMIT)], [two])

    def test_coroutines(self):
        async def calls():
            async with qsidecar.AsyncClient(codec=CODEC, request_timeout=60) as asynchronous:
                return await asyncio.gather(*(asynchronous.call(self.q, n, wait=LIMIT) for n in range(2)))

        for _ in range(2):
            self.answer(lambda job: job.ack(result=job.payload * 10))
        self.assertEqual(asyncio.run(calls()), [0, 10])


if __name__ == "__main__":
    unittest.main()
