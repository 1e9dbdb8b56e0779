"""AsyncClient: what Client does, cancelled tasks with forced steps, and uses from the wrong place."""

import asyncio
import inspect
import os
import tempfile
import threading
import unittest
import unittest.mock

import qsidecar
from qsidecar import AsyncClient, AsyncJob, Client, Job, NewJob, WrongLoop, _wire, testing
from support import CODEC, LIMIT, client, eventually, exit_of, forked, queue
from test_stalled import LARGE, Deaf

JOB = {"id": "7", "queue": "q", "lease": "1.a", "attempt": 1, "max_attempts": 20, "fence": 1}


def a_client(**options):
    options.setdefault("request_timeout", 60)
    return AsyncClient(codec=CODEC, **options)


async def ended(task):
    """Waits for a task. Returns its result or its exception."""
    (outcome,) = await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), LIMIT)
    return outcome


def in_background(function, *args):
    return asyncio.get_running_loop().run_in_executor(None, function, *args)


class SameAsClient(unittest.TestCase):
    def test_methods_and_arguments(self):
        for sync, other in ((Client, AsyncClient), (Job, AsyncJob)):
            for name, method in inspect.getmembers(sync, inspect.isfunction):
                if name.startswith("_") and name != "__init__":
                    continue
                with self.subTest(f"{sync.__name__}.{name}"):
                    mine = getattr(other, name)
                    arguments = [
                        [(p.name, p.kind, p.default) for p in inspect.signature(m).parameters.values()] for m in (method, mine)
                    ]
                    self.assertEqual(*arguments)
                    own = name in vars(other) and name not in ("__init__", "batch")  # `async with` waits for a batch
                    self.assertEqual(inspect.iscoroutinefunction(mine), own, "each method that waits is a coroutine")


class Jobs(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.q = queue()
        self.client = a_client()
        self.addAsyncCleanup(self.client.close)

    async def one(self, of=None):
        (job,) = await (of or self.client).claim(self.q, wait=LIMIT)
        return job

    async def test_a_job(self):
        stored = await self.client.enqueue(self.q, {"to": "ada"}, key="k")
        self.assertTrue((await self.client.enqueue(self.q, 2, key="k")).duplicate)
        job = await self.one()
        self.assertEqual((job.id, job.payload, job.client), (stored.id, {"to": "ada"}, self.client))
        await job.extend()
        job.then(self.q, 3)
        self.assertEqual(len(await job.ack(enqueue=[NewJob(self.q, 4)])), 2)
        self.assertTrue(job.settled)
        with self.assertRaises(qsidecar.LeaseLost):
            await job.nack("twice")
        for n in (3, 4):
            job = await self.one()
            self.assertEqual(job.payload, n)
            await job.nack("no", dead=True)
        self.assertEqual((await self.client.stats(self.q))[0]["dead"], 2)
        self.assertEqual((await self.client.request("peek", queue=self.q, ids=[job.id]))["jobs"][0]["state"], "dead")

    async def test_group(self):
        await self.client.enqueue(self.q, 0, start_before=1, on_expiry="delete")
        replaced = [(await self.client.enqueue(self.q, n, key="r", on_conflict="replace", delay=3600)).outcome for n in (1, 2)]
        self.assertEqual(replaced, [None, "replaced"])
        await self.client.enqueue(self.q, 1, group="g")
        await self.client.enqueue(self.q, 2, group="g")
        job = await self.one()
        job.then(self.q, 3, group="g", start_within=3600)
        self.assertEqual(await self.client.claim(self.q), [], "a second job of the group")
        await job.ack()
        for n in (2, 3):
            job = await self.one()
            self.assertEqual(job.payload, n)
            await job.ack()

    async def test_limit(self):
        await self.client.limit(self.q, max_claimed=3, group_limit=2, group_on_failure="skip", group_ready=3)
        stat = (await self.client.stats(self.q))[0]
        self.assertEqual((stat["max_claimed"], stat["group_limit"], stat["group_on_failure"], stat["group_ready"]), (3, 2, "skip", 3))
        await self.client.limit(self.q, max_claimed=0)
        self.assertNotIn("max_claimed", (await self.client.stats(self.q))[0])

    async def test_many(self):
        self.assertEqual(len(await self.client.enqueue_many(NewJob(self.q, n) for n in range(10))), 10)
        jobs = []
        while len(jobs) < 10:
            jobs += await self.client.claim(self.q, max=10, wait=LIMIT)
        await jobs[0].ack()
        self.assertEqual(await self.client.ack_many(jobs[:5]), jobs[:1])
        self.assertEqual(await self.client.nack_many(jobs[5:], "no", dead=True), [])
        self.assertEqual(await self.client.enqueue_many([]), [])
        for wrong in (lambda: self.client.enqueue_many([NewJob(self.q)] * 1001), lambda: self.client.enqueue(self.q, delay=-1),
                      lambda: self.client.claim(self.q, order="random"), lambda: self.client.request("bye")):
            with self.assertRaises(ValueError):
                await wrong()

    async def test_tasks_share_a_connection(self):
        waiting = asyncio.ensure_future(self.client.claim("elsewhere-" + self.q, wait=600))

        async def work(n):
            await self.client.enqueue(self.q, n)
            job = await self.one()
            await job.ack()
            return job.id

        self.assertEqual(len(set(await asyncio.gather(*map(work, range(50))))), 50)
        self.assertEqual((self.client._client._session._connections, self.client._client._session.leases.held), (1, {}))
        await self.client.cancel_claims()
        self.assertEqual(await waiting, [])

    async def test_close_returns_jobs_and_ends_calls(self):
        async with a_client() as other:
            await self.client.enqueue(self.q, 1)
            await self.one(other)
            waiting = [asyncio.ensure_future(other.claim("elsewhere-" + self.q, wait=600)) for _ in range(3)]
            await in_background(eventually, lambda: len(other._client._session.open) == 3, "the claims wait")
        for task in waiting:
            self.assertIsInstance(await ended(task), qsidecar.Closed)
        with self.assertRaises(qsidecar.Closed):
            await other.ping()
        self.assertEqual((await self.one()).attempt, 1)

    async def test_disconnect(self):
        await self.client.enqueue(self.q, 1)
        await self.one()
        await self.client.disconnect()
        self.assertEqual((await self.one()).attempt, 1)

    async def test_claims_cancelled_after_any_number_of_steps(self):
        await self.client.enqueue(self.q, 1)
        for steps in range(30):
            task = asyncio.ensure_future(self.client.claim(self.q, wait=LIMIT))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            got = await ended(task)
            if isinstance(got, list):
                await self.client.nack_many(got, snooze=True, delay=0)
        job = await self.one()
        self.assertEqual(job.attempt, 1)
        await job.ack()
        await in_background(eventually, lambda: not self.client._client._session.open, "no call is left")
        self.assertEqual(self.client._client._session.leases.held, {})

    async def test_a_cancelled_settle_is_carried_out(self):
        await self.client.enqueue(self.q, 1)
        job = await self.one()
        task = asyncio.ensure_future(job.ack())
        await asyncio.sleep(0)  # it is sent
        task.cancel()
        self.assertIsInstance(await ended(task), asyncio.CancelledError)
        await in_background(eventually, lambda: not self.client._client._session.leases.held, "the reply arrives")
        self.assertEqual((await self.client.request("peek", queue=self.q, ids=[job.id]))["jobs"], [])

    async def test_wait_for(self):
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(self.client.claim(self.q, wait=600), 0.01)
        await self.client.enqueue(self.q, 1)
        job = await self.one()  # not the claim that was cancelled
        self.assertEqual(job.attempt, 1)

    async def test_inline(self):
        with testing.inline() as did:
            await self.client.enqueue(self.q, 1)
            await self.client.enqueue_many([NewJob(self.q, 2)])
        self.assertEqual([done.payload for done in did.jobs], [1, 2])


class Stalled(unittest.IsolatedAsyncioTestCase):
    """On a sidecar that reads and answers only what the test lets it."""

    async def asyncSetUp(self):
        dir = tempfile.TemporaryDirectory()
        self.addCleanup(dir.cleanup)
        self.deaf = Deaf(os.path.join(dir.name, "s"))
        self.addCleanup(lambda: self.deaf.listener.close())
        for module, name, value in ((_wire, "STALLED", 100 * LIMIT), (qsidecar.client, "CLOSE_TIME", 0.01)):
            patch = unittest.mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.lost, self.drains = [], []
        self.client = AsyncClient(os.path.join(dir.name, "s"), codec="json", on_lost=self.on_lost, on_draining=lambda: self.drains.append(1))
        self.session = self.client._client._session
        self.addAsyncCleanup(self.client.close)
        self.addCleanup(self.deaf.close)
        self.addAsyncCleanup(self.check_no_call_is_left)

    async def on_lost(self, jobs):
        await asyncio.sleep(0)
        self.lost += jobs

    async def check_no_call_is_left(self):
        await self.client.close()
        self.assertEqual((self.session.open, self.session.queue, list(self.session._writing)), ({}, [], []))
        self.assertEqual(asyncio.all_tasks() - {asyncio.current_task()}, set())

    async def start(self):
        task = asyncio.ensure_future(self.client.ping())
        await in_background(self.deaf.accept)
        await in_background(self.deaf.answer, {}, "ping")
        await task

    async def hold(self):
        task = asyncio.ensure_future(self.client.claim("q"))
        await in_background(self.deaf.answer, {"jobs": [JOB]}, "claim")
        return (await task)[0]

    def reply(self, request, **fields):
        self.deaf.file.write(qsidecar._wire.JsonLines().encode({"id": request["id"], "ok": True, **fields}))
        self.deaf.file.flush()

    async def cancelled(self, task):
        task.cancel()
        self.assertIsInstance(await ended(task), asyncio.CancelledError)

    async def gives_back(self):
        back = await in_background(self.deaf.answer, {}, "nack")
        self.assertEqual((back["leases"], back["snooze"], back["delay_ms"]), (["1.a"], True, 0))
        await in_background(eventually, lambda: not self.session.leases.held and not self.session.open, "nothing is held")

    async def test_claim_is_cancelled_before_its_reply(self):
        await self.start()
        task = asyncio.ensure_future(self.client.claim("q", wait=60))
        claim = await in_background(self.deaf.expect, "claim")
        await self.cancelled(task)
        cancel = await in_background(self.deaf.expect, "cancel_claim")
        self.assertEqual(cancel["request"], claim["id"])
        self.reply(claim, jobs=[JOB])
        self.reply(cancel)
        await self.gives_back()

    async def test_claim_is_cancelled_between_its_reply_and_its_task(self):
        await self.start()
        task = asyncio.ensure_future(self.client.claim("q", wait=60))
        self.reply(await in_background(self.deaf.expect, "claim"), jobs=[JOB])
        eventually(lambda: self.session.leases.held, "the reply arrives, while the loop stands still")
        await self.cancelled(task)
        await self.gives_back()

    async def test_claim_is_cancelled_after_the_loop_has_its_reply(self):
        await self.start()
        task = asyncio.ensure_future(self.client.claim("q", wait=60))
        self.reply(await in_background(self.deaf.expect, "claim"), jobs=[JOB])
        eventually(lambda: self.session.leases.held, "the reply arrives")
        wakes = self.client._home[0]
        wakes._run()  # the task's future has its result, and its next step is the claim's end
        await self.cancelled(task)
        await self.gives_back()

    async def test_claim_is_cancelled_while_the_client_connects(self):
        task = asyncio.ensure_future(self.client.claim("q"))
        await in_background(eventually, lambda: self.session._trying, "it connects")
        await self.cancelled(task)
        await self.start()  # on that connection, and no claim comes before the ping

    async def test_a_cancelled_call_that_is_half_written(self):
        await self.start()
        task = asyncio.ensure_future(self.client.enqueue("q", raw=LARGE, request_timeout=LIMIT))
        await in_background(eventually, lambda: self.session._writing, "a thread writes it")
        await self.cancelled(task)
        other = asyncio.ensure_future(self.client.ping())
        self.assertEqual(len((await in_background(self.deaf.answer, {"job": {"id": "1"}}, "enqueue"))["payload"]), len(LARGE))
        await in_background(self.deaf.answer, {}, "ping")  # the stream is intact
        await other

    async def test_request_timeout_of_a_write(self):
        await self.start()
        for options in ({}, {"key": "k"}):
            task = asyncio.ensure_future(self.client.enqueue("q", raw=LARGE, request_timeout=0.01, **options))
            self.assertIsInstance(await ended(task), qsidecar.NotConnected)
            await self.restart_ping()

    async def restart_ping(self):
        """Half of a frame is on the connection. The next request uses another one."""
        task = asyncio.ensure_future(self.client.ping())
        await in_background(self.deaf.accept)
        await in_background(self.deaf.answer, {}, "ping")
        await task

    async def test_request_timeout_of_a_reply(self):
        await self.start()
        task = asyncio.ensure_future(self.client.enqueue("q", 1, request_timeout=0.01))
        await in_background(self.deaf.expect, "enqueue")
        self.assertIsInstance(await ended(task), qsidecar.UnknownOutcome)

    async def test_request_timeout_of_a_connection(self):
        tasks = [asyncio.ensure_future(self.client.enqueue("q", n, request_timeout=0.01)) for n in range(3)]
        for task in tasks:
            self.assertIsInstance(await ended(task), qsidecar.NotConnected)

    async def test_many_calls_wait_for_one_thread(self):
        await self.start()
        job = await self.hold()  # so that the write continues after the limit
        threads = threading.active_count()
        large = asyncio.ensure_future(self.client.enqueue("q", raw=LARGE, key="k", request_timeout=LIMIT))
        calls = [asyncio.ensure_future(self.client.ping()) for _ in range(200)]
        short = asyncio.ensure_future(self.client.enqueue("q", 1, request_timeout=0.01))
        self.assertIsInstance(await ended(short), qsidecar.NotConnected)  # the others still wait
        self.assertLessEqual(threading.active_count(), threads + 2)
        await in_background(self.deaf.answer, {"job": {"id": "1"}}, "enqueue")
        for _ in calls:
            await in_background(self.deaf.answer, {}, "ping")
        await asyncio.gather(large, *calls)
        task = asyncio.ensure_future(job.ack())
        await in_background(self.deaf.answer, {}, "ack")
        await task

    async def test_close_wakes_a_call_that_is_written_and_one_that_connects(self):
        connects = asyncio.ensure_future(self.client.ping())
        await in_background(eventually, lambda: self.session._trying, "it connects")
        await self.client.close()
        self.assertIsInstance(await ended(connects), qsidecar.Closed)

    async def test_close_wakes_calls_that_are_written(self):
        await self.start()
        calls = [asyncio.ensure_future(self.client.enqueue("q", raw=LARGE, request_timeout=LIMIT)) for _ in range(2)]
        await in_background(eventually, lambda: len(self.session._writing) == 2, "a thread writes")
        await self.client.close()
        for call in calls:
            self.assertIsInstance(await ended(call), (qsidecar.Closed, qsidecar.UnknownOutcome))

    async def test_close_wakes_a_pause(self):
        await self.start()
        task = asyncio.ensure_future(self.client.claim("q", wait=600))
        claim = await in_background(self.deaf.expect, "claim")
        self.reply(claim, ok=False, error={"code": "busy", "message": "later", "retry_ms": 300_000})
        await in_background(eventually, lambda: self.session._pausing, "it pauses")
        await self.client.close()
        self.assertIsInstance(await ended(task), qsidecar.Closed)

    async def test_a_repeated_request(self):
        await self.start()
        job = await self.hold()
        task = asyncio.ensure_future(job.ack())
        ack = await in_background(self.deaf.expect, "ack")
        self.reply(ack, ok=False, error={"code": "unavailable", "message": "later", "retry_ms": 1})
        await in_background(self.deaf.answer, {}, "ack")
        await task

    async def test_events_reach_the_loop(self):
        await self.start()
        job = await self.hold()
        self.reply({"id": None}, event="lost", leases=["1.a"])
        self.reply({"id": None}, event="draining")
        await in_background(eventually, lambda: self.lost and self.drains, "the callbacks run")
        self.assertEqual((self.lost, job.lost), ([job], True))


class WrongPlaces(unittest.TestCase):
    def use(self, client):
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(client.ping())
        finally:
            loop.close()

    def test_another_loop(self):
        a = a_client()
        self.use(a)
        with self.assertRaisesRegex(WrongLoop, "another event loop"):
            self.use(a)
        asyncio.run(a.close())  # a client can be closed when its loop has ended

    def test_another_thread(self):
        async def main():
            async with a_client() as a:
                await a.ping()
                got = await in_background(lambda: asyncio.run(outcome(a.ping())))
                self.assertIsInstance(got, WrongLoop)
                await a.ping()

        async def outcome(call):
            try:
                return await call
            except Exception as e:
                return e

        asyncio.run(main())

    def test_after_a_fork(self):
        a, unused, loop = a_client(), a_client(), asyncio.new_event_loop()
        self.addCleanup(loop.close)
        loop.run_until_complete(a.ping())

        def child():
            self.use(unused)  # not used before the fork
            with self.assertRaisesRegex(WrongLoop, "forked"):
                self.use(a)

        self.assertEqual(exit_of(forked(child)), 0)
        loop.run_until_complete(a.ping())
        loop.run_until_complete(a.close())

    def test_a_loop_that_ends_during_a_call(self):
        a = a_client()

        async def leave():
            asyncio.ensure_future(a.claim(queue(), wait=600))
            await a.ping()

        asyncio.run(leave())  # it cancels the claim
        with client() as other:
            other.ping()
        asyncio.run(a.close())


if __name__ == "__main__":
    unittest.main()
