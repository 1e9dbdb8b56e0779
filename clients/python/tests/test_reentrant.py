"""Calls from where the program has no control: signal handlers, finalizers, log handlers, and the interpreter's end."""

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import qsidecar
from support import LIMIT, PYTHON, Case, client, eventually, in_thread
from test_stalled import Deaf

PACKAGE = os.path.dirname(qsidecar.__file__)


class Interrupted(Case):
    """Another call of the same thread, between any two lines of a call, as a signal handler or `__del__` makes it."""

    def interrupt(self, at, outer, inner):
        """Runs outer in a thread, and inner before its line number `at` in the package. Returns how many lines it has."""
        lines, failed = [0], []

        def trace(frame, event, arg):
            if os.path.dirname(frame.f_code.co_filename) != PACKAGE:
                return None
            if event == "line":
                lines[0] += 1
                if lines[0] == at:
                    inner(frame)
            return trace

        def run():
            sys.settrace(trace)
            try:
                outer()
            except Exception as e:
                failed.append(e)
            finally:
                sys.settrace(None)

        thread = in_thread(run)
        thread.join(LIMIT)
        self.assertFalse(thread.is_alive(), f"interrupted at line {at}, the call hangs")
        self.assertEqual(failed, [], f"interrupted at line {at}")
        return lines[0]

    def every_line(self, outer, prepare=lambda: None):
        """Interrupts outer at each of its lines by an enqueue that has no limit. Returns how many were carried out."""
        lines, at, done = 1, 0, 0
        places = []
        while at <= lines:
            prepare()
            results = []

            def inner(frame):
                try:
                    results.append(self.client.enqueue("inner." + self.q, 1, request_timeout=1e6))
                except qsidecar.Reentrant as e:
                    places.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
                    results.append(e)

            lines = self.interrupt(at, outer, inner)
            done += len([r for r in results if not isinstance(r, Exception)])
            at += 1
        self.assertTrue(places, "no interruption was refused: none of the lines has a lock")
        return done

    def stored(self, name):
        return sum(q["ready"] for q in self.client.stats(name))

    def test_enqueue(self):
        outer = [0]

        def enqueue():
            self.client.enqueue(self.q, 1, request_timeout=1e6)
            outer[0] += 1

        done = self.every_line(enqueue)
        self.assertEqual((self.stored(self.q), self.stored("inner." + self.q)), (outer[0], done))

    def test_first_call(self):
        def prepare():
            self.client.close()
            self.client = client()

        self.every_line(lambda: self.client.enqueue(self.q, 1, request_timeout=1e6), prepare)

    def test_settle(self):
        def prepare():
            self.client.enqueue(self.q, 1)
            self.job = self.one()

        self.every_line(lambda: self.job.ack(), prepare)

    def test_async_call(self):
        """The handler interrupts the loop's thread, and calls the worker's Client, which has the same connection."""
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        a = qsidecar.AsyncClient._of(self.client)
        outer = [0]

        def enqueue():
            loop.run_until_complete(a.enqueue(self.q, 1, request_timeout=1e6))
            outer[0] += 1

        done = self.every_line(enqueue)
        self.assertEqual((self.stored(self.q), self.stored("inner." + self.q)), (outer[0], done))

    def test_the_thread_that_reads(self):
        """A finalizer runs in the thread that reads, which would wait for its own reply."""
        self.client.ping()
        session = self.client._session
        handle, results = session._handle, []

        def interrupted(wire, message):
            for call in (lambda: self.client.enqueue(self.q, 1), self.client.ping, self.client.cancel_claims):
                try:
                    results.append(call())
                except qsidecar.Error as e:
                    results.append(type(e))
            handle(wire, message)

        with unittest.mock.patch.object(session, "_handle", interrupted):
            self.client.ping()
        self.assertEqual(results, [qsidecar.Reentrant] * 3)
        self.client.ping()

    def test_close(self):
        """A finalizer closes the client in the thread that reads, or in the middle of a call."""
        mine = client()
        mine.enqueue(self.q, 1)
        self.assertEqual(len(mine.claim(self.q)), 1)
        with mine._session.lock:
            mine.close()
        self.assertEqual(self.one().attempt, 1)
        eventually(lambda: not mine._session._thread.is_alive(), "the client is closed")

    def test_the_message(self):
        self.client.ping()
        with self.client._session.lock, self.assertRaisesRegex(qsidecar.Reentrant, "enqueue was not sent: .*signal handler.*another thread"):
            self.client.enqueue(self.q, 1)


class Logging(unittest.TestCase):
    def test_a_log_handler_that_waits(self):
        """The client logs an outage. The handler waits for the client, which must connect again for that."""
        path = os.path.join(tempfile.mkdtemp(), "q.sock")
        sidecar = Deaf(path)
        waits, answered = threading.Event(), []

        class Handler(logging.Handler):
            def emit(self, record):
                if "can't reach" in record.getMessage():
                    waits.set()
                    answered.append(mine.enqueue("log", 1, request_timeout=LIMIT).id)

        mine = qsidecar.Client(path, codec="json", request_timeout=LIMIT)
        log, handler = logging.getLogger("qsidecar"), Handler()
        with unittest.mock.patch.object(log, "propagate", False):
            log.addHandler(handler)
            self.addCleanup(log.removeHandler, handler)
            first = in_thread(mine.ping)
            sidecar.accept()
            sidecar.answer({"ok": True}, "ping")
            first.join(LIMIT)
            sidecar.listener.close()
            os.unlink(path)
            sidecar.close()
            self.assertTrue(waits.wait(LIMIT), "the outage is logged")
            sidecar = Deaf(path)
            sidecar.accept()  # the client connects although the handler waits
            sidecar.answer({"ok": True, "job": {"id": "17"}}, "enqueue")
            eventually(lambda: answered == ["17"], "the handler's job is stored")
            closing = in_thread(mine.close)
            closing.join(LIMIT)
            sidecar.close()
            sidecar.listener.close()


class End(Case):
    """Calls while the interpreter ends."""

    def run_script(self, text):
        script = "import atexit, sys, qsidecar\nclient = qsidecar.Client(request_timeout=1e6)\n" + text
        done = subprocess.run(
            [*PYTHON, "-c", script, self.q], stderr=subprocess.PIPE, timeout=LIMIT, text=True, cwd=os.path.dirname(PACKAGE)
        )
        return done.returncode, done.stderr

    def test_atexit(self):
        code, errors = self.run_script("client.ping()\natexit.register(client.enqueue, sys.argv[1], 1)")
        self.assertEqual((code, errors), (0, ""))
        self.one().ack()

    def test_first_call_in_atexit(self):
        """Python 3.12 starts no thread then."""
        _, errors = self.run_script("atexit.register(client.enqueue, sys.argv[1], 1)")
        if errors:
            self.assertIn("qsidecar.errors.NotConnected: not sent: the client's thread can't start", errors)
        else:
            self.one().ack()

    def test_finalizer_of_a_module(self):
        code, errors = self.run_script(
            "class Last:\n"
            "    def __del__(self, client=client, queue=sys.argv[1]):\n"
            "        try:\n"
            "            client.enqueue(queue, 1)\n"
            "        finally:\n"
            "            client.close()\n"
            "client.ping()\n"
            "sys.modules['keeps it until the end'] = Last()\n"
        )
        self.assertEqual(code, 0)
        self.assertIn("qsidecar.errors.Closed: enqueue was not sent: the interpreter ends", errors)


if __name__ == "__main__":
    unittest.main()
