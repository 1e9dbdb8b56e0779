"""How long producers and draining workers wait for a sidecar that is down."""

import os
import socket
import subprocess
import tempfile
import unittest
import unittest.mock

import qsidecar
from support import CODEC, LIMIT, PYTHON

APP = """
import qsidecar
app = qsidecar.App()
app.job("q")(print)
"""


class RequestTimeout(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.path = os.path.join(self.dir.name, "s")

    def silent(self):
        """A stopped sidecar: it accepts connections and never reads."""
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(self.path)
        listener.listen(8)

    def test_enqueue_timeout_is_two_seconds(self):
        with unittest.mock.patch.dict(os.environ, {"QSIDECAR_ENQUEUE_TIMEOUT": "7"}):
            self.assertEqual(qsidecar.Client()._time_limit("enqueue"), 7)
            del os.environ["QSIDECAR_ENQUEUE_TIMEOUT"]
            self.check_two_seconds()

    def check_two_seconds(self):
        client = qsidecar.Client()
        self.assertEqual((client._time_limit("enqueue"), client._time_limit("ack")), (2.0, 60.0))
        self.assertEqual(qsidecar.Client(request_timeout=5)._time_limit("ack"), 5)

    def test_invalid_enqueue_timeout_is_rejected(self):
        for text in ("2s", "nan", "inf", "0", "-1"):
            with self.subTest(text), unittest.mock.patch.dict(os.environ, {"QSIDECAR_ENQUEUE_TIMEOUT": text}):
                with self.assertRaisesRegex(ValueError, "QSIDECAR_ENQUEUE_TIMEOUT"):
                    qsidecar.Client(self.path).enqueue("q")

    def test_sidecar_without_hello(self):
        self.silent()
        with qsidecar.Client(self.path, codec=CODEC) as client:
            for _ in range(2):
                with self.assertRaises(qsidecar.NotConnected):
                    client.enqueue("q", request_timeout=0.01)

    def work(self, *options, app=APP):
        with open(os.path.join(self.dir.name, "mine.py"), "w") as file:
            file.write(app)
        package = os.path.dirname(os.path.dirname(os.path.abspath(qsidecar.__file__)))
        return subprocess.run(
            [*PYTHON, "-m", "qsidecar", "work", "mine:app", "--drain", *options],
            cwd=self.dir.name,
            env={**os.environ, "QSIDECAR_SOCKET": self.path, "PYTHONPATH": package},
            stderr=subprocess.PIPE,
            timeout=LIMIT,
        )

    def test_a_drain_without_a_sidecar_ends(self):
        for options in ((), ("--processes", "-j", "2")):
            with self.subTest(options):
                done = self.work(*options)
                self.assertEqual(done.returncode, 5, done.stderr)
                self.assertIn(b"no sidecar answers", done.stderr)
                self.assertIn(b" INFO qsidecar: worker started", done.stderr)

    def test_logging_of_the_application_is_kept(self):
        done = self.work(app="import logging\nlogging.basicConfig(level=logging.INFO, format='mine: %(message)s')\n" + APP)
        self.assertIn(b"mine: worker started", done.stderr)
        self.assertNotIn(b"INFO", done.stderr)


if __name__ == "__main__":
    unittest.main()
