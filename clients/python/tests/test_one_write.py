"""What several threads send at the same time goes into one write."""

import os
import tempfile
import threading
import unittest
import unittest.mock

import qsidecar
from qsidecar import _wire
from support import LIMIT, eventually, in_thread
from test_stalled import Deaf

THREADS = 20


class OneWrite(unittest.TestCase):
    def setUp(self):
        dir = tempfile.TemporaryDirectory()
        self.addCleanup(dir.cleanup)
        self.sidecar = Deaf(os.path.join(dir.name, "s"))
        self.addCleanup(self.sidecar.listener.close)
        self.client = qsidecar.Client(os.path.join(dir.name, "s"), codec="json")
        self.addCleanup(self.sidecar.close)
        self.addCleanup(self.client.close)
        thread = in_thread(self.client.ping)
        self.sidecar.accept()
        self.sidecar.answer({}, "ping")
        thread.join(LIMIT)

    def writes(self, payload):
        """Sends a job of each thread while another thread writes. Returns how many frames each write had."""
        first, proceed = threading.Event(), threading.Event()
        self.addCleanup(proceed.set)
        begin, frames = _wire.Wire.begin, []

        def counted(wire, batch):
            frames.append(len(batch))
            if not first.is_set():
                first.set()
                proceed.wait(LIMIT)
            return begin(wire, batch)

        wire, done = self.client._session.wire, []

        def enqueue():
            self.client.enqueue("q", raw=payload, key="k", request_timeout=LIMIT)
            done.append(True)

        with unittest.mock.patch.object(_wire.Wire, "begin", counted):
            threads = [in_thread(enqueue)]
            self.assertTrue(first.wait(LIMIT))
            threads += [in_thread(enqueue) for _ in range(THREADS)]
            eventually(lambda: len(wire.pending) == THREADS, "all threads have a frame to write")
            proceed.set()
            for _ in threads:
                self.sidecar.answer({"job": {"id": "1", "duplicate": False}}, "enqueue")
            for thread in threads:
                thread.join(LIMIT)
        self.assertEqual(len(done), 1 + THREADS)
        self.assertFalse(wire.pending)
        return frames

    def test_small_frames(self):
        self.assertEqual(self.writes(b"x"), [1, THREADS])

    def test_large_frames(self):
        """Frames that the socket does not accept at once are written whole and once."""
        frames = self.writes(b"x" * (qsidecar._calls.BATCH // 3))
        self.assertLess(len(frames), 1 + THREADS)


if __name__ == "__main__":
    unittest.main()
