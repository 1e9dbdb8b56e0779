"""How long a call takes if the sidecar does not read. The call's limit also applies to its write."""

import contextlib
import json
import os
import socket
import tempfile
import threading
import unittest
import unittest.mock

import qsidecar
from qsidecar import _call, _wire
from support import LIMIT, eventually, in_thread

# More than the buffers of a socket.
LARGE = bytes(3 << 20)
HELLO = {"ok": True, "max_frame": 64 << 20, "max_payload": 60 << 20}


class Deaf:
    """A sidecar with JSON lines that reads only when the test lets it."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        self.listener.settimeout(LIMIT)
        self.connection = None

    def accept(self):
        """Accepts the next connection and answers its hello."""
        self.close()
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(LIMIT)
        self.file = self.connection.makefile("rwb")
        self.answer(HELLO, "hello")

    def close(self):
        if self.connection is not None:
            self.connection.close()
            with contextlib.suppress(OSError):
                self.file.close()

    def expect(self, op):
        """Reads the next request."""
        request = json.loads(self.file.readline())
        assert request["op"] == op, f"{request} came, want {op}"
        return request

    def answer(self, fields, op):
        """Reads the next request and answers it."""
        request = self.expect(op)
        self.file.write(json.dumps({"ok": True, **fields, "id": request["id"]}).encode() + b"\n")
        self.file.flush()
        return request


class Stalled(unittest.TestCase):
    def setUp(self):
        dir = tempfile.TemporaryDirectory()
        self.addCleanup(dir.cleanup)
        self.deaf = Deaf(os.path.join(dir.name, "s"))
        self.addCleanup(lambda: self.deaf.listener.close())  # the listener at that time
        patch = unittest.mock.patch.object(_wire, "STALLED", 100 * LIMIT)  # only the call's own limit ends a write
        patch.start()
        self.addCleanup(patch.stop)
        patch = unittest.mock.patch.object(qsidecar.client, "CLOSE_TIME", 0.01)
        patch.start()
        self.addCleanup(patch.stop)
        self.client = qsidecar.Client(os.path.join(dir.name, "s"), codec="json")
        self.addCleanup(self.client.close)
        self.addCleanup(self.deaf.close)
        self.call(self.client.ping, ("ping", {}), accept=True)

    def call(self, function, *answers, accept=False):
        """Calls the function in a thread, answers its requests and returns its outcome."""
        outcome = []

        def run():
            try:
                outcome.append(function())
            except BaseException as e:
                outcome.append(e)

        thread = in_thread(run)
        if accept:
            self.deaf.accept()
        for op, fields in answers:
            self.deaf.answer(fields, op)
        thread.join(LIMIT)
        self.assertFalse(thread.is_alive(), "the call did not return")
        return outcome[0]

    def hold(self):
        """Lets the client hold a job."""
        job = {"id": "7", "queue": "q", "lease": "1.a", "attempt": 1, "max_attempts": 20, "fence": 1}
        return self.call(lambda: self.client.claim("q"), ("claim", {"jobs": [job]}))[0]

    def enqueue(self, **options):
        return self.client.enqueue("q", raw=LARGE, request_timeout=0.01, **options)

    def test_an_enqueue(self):
        for options in ({}, {"key": "k"}):
            error = self.call(lambda: self.enqueue(**options))
            self.assertIsInstance(error, qsidecar.NotConnected)
            # Half of a frame is on the connection. The next request uses another connection.
            self.assertIsNone(self.call(self.client.ping, ("ping", {}), accept=True))

    def test_calls_wait_for_the_write_lock(self):
        self.hold()  # so that the write continues
        self.call(self.enqueue)
        job = self.client._session.leases.held["1.a"].job
        for call in (
            lambda: self.client.enqueue("q", request_timeout=0.01),
            lambda: job.ack(request_timeout=0.01),
            lambda: job.nack(request_timeout=0.01),
            lambda: job.extend(request_timeout=0.01),
            lambda: self.client.claim("q", request_timeout=0.01),
        ):
            self.assertIsInstance(self.call(call), qsidecar.NotConnected)
        self.assertEqual(self.deaf.expect("enqueue")["payload"], LARGE.decode())
        self.assertEqual(self.call(job.ack, ("ack", {})), [])

    def test_a_large_result(self):
        job = self.hold()
        error = self.call(lambda: job.ack(raw=LARGE, request_timeout=0.01))
        self.assertIsInstance(error, qsidecar.UnknownOutcome)
        self.assertFalse(job.settled)

    def test_claimed_jobs_stay_with_the_client(self):
        """A connection that the client closes frees its jobs and uses up an attempt. A partial
        frame must not cause that.
        """
        job = self.hold()
        error = self.call(self.enqueue)
        self.assertIsInstance(error, qsidecar.UnknownOutcome)
        self.assertEqual(self.deaf.expect("enqueue")["payload"], LARGE.decode())  # on the same connection, and complete
        self.assertEqual(self.call(job.ack, ("ack", {})), [])

    def test_abandoned_claim_behind_a_partial_frame(self):
        job = self.hold()
        self.call(self.enqueue)
        ended = self.call(lambda: self.client.claim("q", wait=0.01, request_timeout=0))
        self.assertIsInstance(ended, qsidecar.NotConnected)
        self.deaf.expect("enqueue")
        self.call(job.ack, ("ack", {}))  # neither the claim nor its cancel arrived

    def test_close(self):
        self.hold()
        self.call(self.enqueue)
        self.assertIsNone(self.call(self.client.close))

    def test_close_while_the_sidecar_restarts(self):
        """A bye returns the jobs of its connection only, so it must not be sent on the next one."""
        self.hold()
        session, ended = self.client._session, threading.Event()
        submit = session.submit

        def after_the_end(call, **options):
            if call.op == "bye":
                self.deaf.close()
                eventually(lambda: session.wire is None, "the end of the connection is noticed")
                ended.set()
            submit(call, **options)

        with unittest.mock.patch.object(session, "submit", after_the_end):
            with unittest.mock.patch.object(qsidecar.client, "CLOSE_TIME", LIMIT):
                thread = in_thread(self.client.close)
                self.assertTrue(ended.wait(LIMIT))
            self.deaf.accept()
            back = None
            while back is None:
                request = json.loads(self.deaf.file.readline())
                self.assertIn(request["op"], ("extend", "nack"))
                back = request if request["op"] == "nack" else None
                self.deaf.file.write(json.dumps({"ok": True, "id": request["id"], "lost": []}).encode() + b"\n")
                self.deaf.file.flush()
            self.assertEqual((back["leases"], back["snooze"]), (["1.a"], True))
            thread.join(LIMIT)
            self.assertFalse(thread.is_alive())

    def test_an_interrupt_in_the_middle_of_a_frame(self):
        """No frame follows half of a frame, whatever ended the write."""
        poll = _wire.Wire._writable

        def interrupted(wire, seconds):
            raise KeyboardInterrupt

        with unittest.mock.patch.object(_wire.Wire, "_writable", interrupted):
            self.assertIsInstance(self.call(self.enqueue), KeyboardInterrupt)
        self.assertIs(_wire.Wire._writable, poll)
        self.assertIsNone(self.call(self.client.ping, ("ping", {}), accept=True))

    def check_interrupted_writer(self, write):
        """A finalizer runs in the thread that writes a frame for others. Its calls would wait for that thread."""
        job = self.hold()
        write_rest, calls, results = _wire.Wire.write_rest, [], []
        for call in (lambda: self.client.enqueue("q", 1, request_timeout=1e6), job.ack, self.client.ping, self.client.cancel_claims):
            calls.append(call)

        def interrupted(wire, ends):
            while calls and threading.current_thread().name == "qsidecar-write":
                try:
                    results.append(calls.pop()())
                except qsidecar.Error as e:
                    results.append(type(e))
            write_rest(wire, ends)

        with unittest.mock.patch.object(_wire.Wire, "write_rest", interrupted):
            self.call(write)
            eventually(lambda: not calls, "the thread has made its calls")
            self.assertEqual(self.deaf.expect("enqueue")["payload"], LARGE.decode())
        self.assertEqual(results, [qsidecar.Reentrant] * 4)
        self.assertEqual(self.call(job.ack, ("ack", {})), [])

    def test_the_thread_that_writes_the_rest_of_a_call(self):
        self.check_interrupted_writer(self.enqueue)

    def test_the_thread_that_writes_calls_without_a_caller(self):
        fields = {"queue": "q", "payload": LARGE}
        call = _call.Call("enqueue", fields, on_done=lambda call: None)
        self.check_interrupted_writer(lambda: self.client._session.submit(call, waits=False))

    def test_an_outage_and_its_end_are_logged(self):
        path = self.client._socket
        with self.assertLogs("qsidecar", "WARNING") as logs:
            self.deaf.listener.close()
            os.unlink(path)
            self.deaf.close()
            eventually(lambda: logs.output, "the outage is logged")
            self.deaf.__init__(path)
            self.deaf.accept()
            eventually(lambda: len(logs.output) > 1, "its end is logged")
        logged = [record.getMessage() for record in logs.records]
        self.assertRegex(logged[0], f"^can't reach the sidecar on {path}, trying again: .*No such file")
        self.assertEqual(logged[1:], ["reconnected to the sidecar"])

    def test_hello(self):
        self.deaf.close()
        eventually(lambda: self.client._session.wire is None, "the end of the connection is noticed")
        error = self.call(lambda: self.enqueue())
        self.assertIsInstance(error, qsidecar.NotConnected)

    def test_the_error_names_the_socket_and_the_wait(self):
        path = self.client._socket
        error = self.call(lambda: self.client.enqueue("q", raw=LARGE, request_timeout=0.25))
        self.assertEqual(str(error), f"the sidecar on {path} doesn't read: enqueue was not sent (waited 0.25 s)")
        self.deaf.listener.close()
        os.unlink(path)
        self.deaf.close()
        eventually(lambda: self.client._session.wire is None, "the end of the connection is noticed")
        with self.assertRaises(qsidecar.NotConnected) as caught:
            self.client.enqueue("q", request_timeout=0.25)
        self.assertEqual(str(caught.exception), f"no sidecar answers on {path}: enqueue was not sent (waited 0.25 s)")

    def test_a_first_connection(self):
        with qsidecar.Client(self.client._socket, codec="json") as other:
            thread = in_thread(other.ping)  # waits for the reply to hello
            eventually(lambda: other._session._starting._owner, "the other thread connects")
            with self.assertRaisesRegex(qsidecar.NotConnected, f"no sidecar has answered on {other._socket} yet"):
                other.enqueue("q", request_timeout=0.01)
            self.deaf.accept()
            self.deaf.answer({}, "ping")
            thread.join(LIMIT)
            self.deaf.close()


if __name__ == "__main__":
    unittest.main()
