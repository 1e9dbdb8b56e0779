"""Reports of progress, and how the next attempt continues."""

import asyncio
import unittest

import qsidecar
from support import CODEC, LIMIT, Case


class Reports(Case):
    def claim(self):
        (job,) = self.client.claim(self.q, wait=LIMIT)
        return job

    def test_next_attempt_continues(self):
        self.client.enqueue(self.q)
        job = self.claim()
        self.assertIsNone(job.last_progress)
        job.progress(1)
        job.progress(6, 10, note="page 6", rows=[1, 2])
        self.assertFalse(job.settled)
        job.nack("boom", delay=0)
        job = self.claim()
        got = job.last_progress
        self.assertEqual((got.done, got.total, got.data), (6, 10, {"note": "page 6", "rows": [1, 2]}))
        self.assertGreater(got.at, job.enqueued_at - 1)
        job.progress(raw=b"\xff")
        job.nack(snooze=True, delay=0)
        job = self.claim()
        self.assertEqual(job.last_progress[:3], (None, None, b"\xff"))
        with self.assertRaisesRegex(ValueError, "isn't JSON"):
            job.last_progress.data
        with self.assertRaisesRegex(qsidecar.BadRequest, "at most 4096"):
            job.progress(note="x" * 5000)
        with self.assertRaises(qsidecar.BadRequest):
            job.progress()
        with self.assertRaises(TypeError):
            job.progress(note=b"bytes")
        job.ack()
        with self.assertRaises(qsidecar.LeaseLost):
            job.progress(7)

    def test_coroutines(self):
        async def work():
            async with qsidecar.AsyncClient(codec=CODEC, request_timeout=60) as client:
                (job,) = await client.claim(self.q, wait=LIMIT)
                await job.progress(3, 4, note="half")
                await job.nack(delay=0)
                (job,) = await client.claim(self.q, wait=LIMIT)
                await job.ack()
                return job.last_progress

        self.client.enqueue(self.q)
        got = asyncio.run(work())
        self.assertEqual((got.done, got.total, got.data), (3, 4, {"note": "half"}))


if __name__ == "__main__":
    unittest.main()
