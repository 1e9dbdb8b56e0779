"""Works so many async jobs, each with a call and a cancelled one, and prints the allocated blocks after a tenth of the jobs and after all."""

import asyncio
import gc
import json
import sys

from qsidecar import App, AsyncClient, NewJob

total = int(sys.argv[1])
app = App(request_timeout=600)
done, blocks = 0, []


@app.job("memory")
async def work(job):
    global done
    call = asyncio.ensure_future(job.client.ping())
    await asyncio.sleep(0)  # it is sent
    call.cancel()
    await job.client.ping()
    done += 1
    if done % (total // 10) == 0:
        gc.collect()
        blocks.append(sys.getallocatedblocks())


async def enqueue():
    async with AsyncClient(request_timeout=600) as client:
        for _ in range(total // 1000):
            await client.enqueue_many([NewJob("memory", {"to": "ada"})] * 1000)


asyncio.run(enqueue())
app.run(100, drain=True)
print(json.dumps({"done": done, "first": blocks[0], "last": blocks[-1]}))
