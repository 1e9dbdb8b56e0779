"""Works so many jobs, and prints the allocated blocks after a tenth of them and after all. Usage: memory.py JOBS ACK KIND

The kind is "threads", or "async" for coroutines, each with a call and a cancelled one.
"""

import asyncio
import gc
import json
import sys
import threading

from qsidecar import App, AsyncClient, NewJob

total, ack, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
app = App(request_timeout=600)
lock = threading.Lock()
done, blocks = 0, []


def count():
    global done
    with lock:
        done += 1
        if done % (total // 10) == 0:
            gc.collect()
            blocks.append(sys.getallocatedblocks())


def work(job):
    count()


async def work_async(job):
    call = asyncio.ensure_future(job.client.ping())
    await asyncio.sleep(0)  # it is sent
    call.cancel()
    await job.client.ping()
    count()


app.job("memory")(work if kind == "threads" else work_async)


async def enqueue():
    async with AsyncClient(request_timeout=600) as client:
        for _ in range(total // 1000):
            await client.enqueue_many([NewJob("memory", {"to": "ada"})] * 1000)


asyncio.run(enqueue())
app.run(8 if kind == "threads" else 100, drain=True, ack=ack)
print(json.dumps({"done": done, "first": blocks[0], "last": blocks[-1]}))
