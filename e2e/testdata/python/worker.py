"""A worker of client_python_worker_test.go: it writes down what it did."""

import os
import time

from qsidecar import App

app = App()
log = os.open(os.environ["WORKER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(job):
    os.write(log, f"{job.payload} {job.attempt}\n".encode())


@app.job("quick")
def quick(job):
    time.sleep(0.002)
    note(job)


@app.job("long")
def long(job):
    note(job)
    time.sleep(float(os.environ["WORKER_SECONDS"]))
