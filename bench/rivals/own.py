"""The worker of the Python client of this repository, with its sidecar. The commands are those of harness.mjs, without flow.

The kind is threads, or async for coroutines.
"""

import asyncio
import json
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "clients" / "python"))
from qsidecar import App, AsyncClient, Client, NewJob

W = json.loads(sys.argv[1])
QUEUE, BATCH, PRODUCERS = W["queue"], W["batch"], W["producers"]
PAYLOAD = {"at": 0, "pad": "a" * W["size"]}
logging.disable(logging.CRITICAL)
client = Client(W["socket"])


def left():
    return sum(q["ready"] + q["claimed"] for q in client.stats(QUEUE))


def produce(n):
    began = time.perf_counter()
    if W["kind"] == "async":
        asyncio.run(produce_async(n))
    else:
        with ThreadPoolExecutor(PRODUCERS) as pool:
            list(pool.map(put, range(n // BATCH)))
    return {"jobs": n, "seconds": time.perf_counter() - began}


def put(_):
    if BATCH > 1:
        client.enqueue_many([NewJob(QUEUE, PAYLOAD)] * BATCH)
    else:
        client.enqueue(QUEUE, PAYLOAD)


async def produce_async(n):
    todo = iter(range(n // BATCH))
    async with AsyncClient(W["socket"]) as aio:

        async def producer():
            for _ in todo:
                if BATCH > 1:
                    await aio.enqueue_many([NewJob(QUEUE, PAYLOAD)] * BATCH)
                else:
                    await aio.enqueue(QUEUE, PAYLOAD)

        await asyncio.gather(*(producer() for _ in range(PRODUCERS)))


def consume(_):
    """The clock includes the start of the worker."""
    app, done = App(socket=W["socket"]), []

    def work(job):
        done.append(job.payload)

    async def work_async(job):
        work(job)

    app.job(QUEUE)(work_async if W["kind"] == "async" else work)
    began = time.perf_counter()
    app.run(W["workers"], drain=True)  # it returns when all are acked
    seconds = time.perf_counter() - began
    app.client.close()
    return {"jobs": len(done), "seconds": seconds}


commands = {"version": lambda: "this commit", "left": left, "produce": produce, "consume": consume}
for line in sys.stdin:
    name, *args = line.split()
    print(json.dumps(commands[name](*map(int, args))), flush=True)
