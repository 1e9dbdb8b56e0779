"""Helpers of the tests. The tests use the sidecar on QSIDECAR_SOCKET, in queues of their own."""

import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
import unittest
from contextlib import contextmanager

import qsidecar

# How long a test waits for a condition. Go's package testwait uses the same variable.
_limit = os.environ.get("QSIDECAR_TEST_LIMIT", "3m")
LIMIT = float(_limit[:-1]) * {"s": 1, "m": 60}[_limit[-1]]
# The command of this interpreter, which can include its loader.
PYTHON = json.loads(os.environ.get("QSIDECAR_TEST_PYTHON", "null")) or [sys.executable]
CODEC = os.environ.get("QSIDECAR_CODEC") or None
_names = itertools.count()


def client(**options):
    options.setdefault("request_timeout", 60)
    return qsidecar.Client(codec=CODEC, **options)


def app(**options):
    return qsidecar.App(codec=CODEC, request_timeout=60, **options)


def queue():
    """Returns a new queue name."""
    return f"py-{os.getpid()}-{next(_names)}-{time.time_ns()}"


def eventually(fact, what):
    """Waits for a condition and returns its value."""
    end = time.monotonic() + LIMIT
    while True:
        got = fact()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT} s: {what}")
        time.sleep(0.005)


class Case(unittest.TestCase):
    def setUp(self):
        self.q = queue()
        self.client = client()
        self.addCleanup(self.client.close)

    def one(self, name=None, **options):
        """Claims and returns the only job."""
        jobs = self.client.claim(name or self.q, wait=LIMIT, **options)
        self.assertEqual(len(jobs), 1)
        return jobs[0]

    def peek(self, job_id, name=None):
        found = self.client.request("peek", queue=name or self.q, ids=[job_id])["jobs"]
        return found[0] if found else None


def forked(run):
    """Forks a child that runs run. It exits with 0 if that returns, or with the status of a SystemExit."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        run()
        code = 0
    except SystemExit as e:
        code = e.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_of(pid):
    """Waits for a child. Returns its exit code, or minus the signal that ended it."""

    def ended():
        done, status = os.waitpid(pid, os.WNOHANG)
        return (status,) if done else None

    try:
        (status,) = eventually(ended, f"the child {pid} ends")
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def in_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


@contextmanager
def quiet():
    """Silences logging inside the block and in children forked there: the errors are part of
    the test.
    """
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
