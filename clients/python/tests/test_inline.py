import asyncio
import unittest

import qsidecar
from qsidecar import Dead, testing


class Inline(unittest.TestCase):
    """qsidecar.testing needs no sidecar: these clients have no socket."""

    def setUp(self):
        self.app = qsidecar.App(socket="/nowhere/s.sock")
        self.did = []

        @self.app.job("double", result=True)
        def double(job):
            self.did.append(job.payload)
            if job.payload == "bad":
                raise Dead("no number")
            job.then("note", job.payload)
            return 2 * job.payload

    def test_inline_job_that_settles_itself(self):
        app = qsidecar.App(socket="/nonexistent/qsidecar.sock")
        app.job("self.settled")(lambda job: job.ack(request_timeout=1))
        with testing.inline(app) as did:
            app.enqueue("self.settled")
        self.assertTrue(did.jobs[0].job.settled)

    def test_inline_runs_the_job_at_once(self):
        with testing.inline(self.app) as did:
            stored = self.app.enqueue("double", 21, key="k", delay=60, group="g")
            again = qsidecar.Client(socket="/nowhere/s.sock").enqueue("double", 21, key="k")
        self.assertEqual(self.did, [21])
        self.assertEqual((again.id, again.duplicate), (stored.id, True))
        self.assertEqual([(d.queue, d.payload, d.ran, d.result) for d in did.jobs], [("double", 21, True, 42), ("note", 21, False, None)])
        self.assertEqual((did.jobs[0].new.delay, did.jobs[0].new.group), (60, "g"))
        self.assertEqual(len(did.of("note")), 1)
        with self.assertRaises(qsidecar.NotConnected):
            self.app.enqueue("double", 1)

    def test_other_calls_need_a_sidecar(self):
        want = r"^stats: qsidecar.testing.inline covers enqueue only; no sidecar answers on /nowhere/s.sock"
        with testing.inline(), self.assertRaisesRegex(qsidecar.NotConnected, want):
            self.app.client.stats()

        async def stats():
            async with qsidecar.AsyncClient(socket="/nowhere/s.sock") as client:
                await client.stats()

        with testing.inline(), self.assertRaisesRegex(qsidecar.NotConnected, want):
            asyncio.run(stats())

    def test_errors_of_handlers(self):
        with testing.inline() as did, self.assertRaises(Dead):
            self.app.enqueue("double", "bad")
        with testing.inline(raises=False) as did:
            self.app.enqueue("double", "bad")
        self.assertIsInstance(did.jobs[0].error, Dead)
        with testing.inline(), self.assertRaises(ValueError):
            self.app.enqueue("double", float("nan"))  # as without it


if __name__ == "__main__":
    unittest.main()
