"""Procrastinate, for bench/rivals_script.go; the commands are those of harness.mjs.

See https://procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html.
"""

import asyncio
import json
import logging
import sys
import time
from importlib.metadata import version

import procrastinate

W = json.loads(sys.argv[1])
logging.disable(logging.CRITICAL)
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=W["url"], min_size=W["producers"], max_size=W["producers"] + 8)
)
got = None


@app.task(name="rival")
async def rival(at, pad):
    got(at)


def payload(at):
    return {"at": at, "pad": "a" * W["size"]}


async def left():
    sql = "SELECT count(*) AS n FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    return (await app.connector.execute_query_one_async(sql))["n"]


class Work:
    """Runs a worker, and waits until the queue is empty."""

    def __init__(self):
        self.worker = asyncio.create_task(
            app.run_worker_async(concurrency=W["workers"], delete_jobs="successful", install_signal_handlers=False)
        )

    async def end(self, done, n):
        while len(done) < n or await left() > 0:
            await asyncio.sleep(0.002)
        seconds = time.perf_counter()
        self.worker.cancel()
        await asyncio.wait([self.worker])
        return seconds


async def produce(n):
    todo = iter(range(n // W["batch"]))
    batch = [payload(0)] * W["batch"]

    async def producer():
        for _ in todo:
            if len(batch) > 1:
                await rival.batch_defer_async(*batch)
            else:
                await rival.defer_async(**batch[0])

    began = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(W["producers"])))
    return {"jobs": n, "seconds": time.perf_counter() - began}


async def consume(n):
    """The clock includes the start of the worker."""
    global got
    done, began = [], time.perf_counter()
    got = done.append
    ended = await Work().end(done, n)
    return {"jobs": len(done), "seconds": ended - began}


async def flow(n, rate):
    global got
    waits = []
    got = lambda at: waits.append((time.perf_counter() - at) * 1000)
    work, began, todo = Work(), time.perf_counter(), iter(range(1, int(n) + 1))

    async def producer():
        for k in todo:
            at = began + k / rate  # if all producers were busy then, it counts from then
            if (early := at - time.perf_counter()) > 0:
                await asyncio.sleep(early)
                at = time.perf_counter()
            await rival.defer_async(**payload(at))

    await asyncio.gather(*(producer() for _ in range(W["producers"])))
    ended = await work.end(waits, n)
    return {"jobs": len(waits), "seconds": ended - began, "waits": waits}


async def main():
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        commands = {"version": lambda: version("procrastinate"), "left": left, "produce": produce, "consume": consume, "flow": flow}
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, *args = line.split()
            answer = commands[name](*(int(a) if a.isdigit() else float(a) for a in args))
            print(json.dumps(await answer if asyncio.iscoroutine(answer) else answer), flush=True)


asyncio.run(main())
