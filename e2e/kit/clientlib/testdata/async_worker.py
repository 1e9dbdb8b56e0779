"""worker.py with `async def` functions. Each job also makes a call over the worker's connection."""

import asyncio
import os

from qsidecar import App

app = App()
log = os.open(os.environ["WORKER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


async def note(job):
    await job.client.ping()
    os.write(log, f"{job.payload} {job.attempt}\n".encode())


def wait_for_gate():
    with open(os.environ["WORKER_GATE"], "rb"):
        pass


@app.job("quick")
async def quick(job):
    await note(job)


@app.job("long")
async def long(job):
    await note(job)
    await asyncio.to_thread(wait_for_gate)
