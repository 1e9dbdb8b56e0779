"""The worker of the end-to-end tests of Python: see kit.ClientWorker."""

import os

from qsidecar import App

app = App()
log = os.open(os.environ["WORKER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(job):
    os.write(log, f"{job.payload} {job.attempt}\n".encode())


@app.job("quick")
def quick(job):
    note(job)


@app.job("long")
def long(job):
    note(job)
    with open(os.environ["WORKER_GATE"], "rb"):
        pass
