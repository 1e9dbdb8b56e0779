"""The decoders on bytes that are not from a sidecar. Any such bytes raise NoSidecar."""

import json
import os
import random
import socket
import struct
import unittest

import qsidecar
from qsidecar._wire import ClosedByPeer, JsonLines, NoSidecar, Wire, codec_named
from support import CODEC, LIMIT, client, in_thread


class Ended:
    """A socket without further data."""

    def recv(self, n):
        return b""


def messages(codec, data):
    """Returns the messages that a connection reads from data, and why it ended."""
    wire = Wire.__new__(Wire)
    wire.codec, wire._buffer, wire._socket = codec, bytearray(data), Ended()
    found = []
    while True:
        try:
            found.append(wire.read())
        except (ClosedByPeer, NoSidecar) as e:
            return found, e


class Decoders(unittest.TestCase):
    def setUp(self):
        self.codec = codec_named(CODEC)
        self.reply = {"id": 1, "ok": True, "jobs": [{"id": "1", "payload": bytes(range(256))}, {"id": "2", "payload": "é".encode()}]}

    def test_round_trip(self):
        found, why = messages(self.codec, self.codec.encode(self.reply) * 3)
        self.assertEqual(found, [self.reply] * 3)
        self.assertIsInstance(why, ClosedByPeer)

    def test_garbage(self):
        seed = random.randrange(1 << 32)
        dice = random.Random(seed)
        good = self.codec.encode(self.reply)
        for n in range(3000):
            data = bytearray(good if n % 3 else dice.randbytes(dice.randrange(200)))
            for _ in range(dice.randrange(1, 8)):
                at = dice.randrange(len(data) + 1)
                data[at : at + dice.randrange(4)] = dice.randbytes(dice.randrange(4))
            with self.subTest(seed=seed, n=n):
                found, _ = messages(self.codec, data)
                self.assertTrue(all(isinstance(m, dict) for m in found))

    def test_hostile(self):
        deep = b"[" * 100_000 if isinstance(self.codec, JsonLines) else struct.pack(">I", 100_000) + b"\x91" * 100_000
        lies = b'{"jobs":[7]}\n' if isinstance(self.codec, JsonLines) else b"\0\0\0\5\xdd\xff\xff\xff\xff"
        for data in (deep + b"\n", lies, b"\xff\xff\xff\xff", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            found, _ = messages(self.codec, data)
            self.assertEqual(found, [])

    def test_server_is_not_a_sidecar(self):
        path = f"/tmp/qspy-{os.getpid()}.sock"
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(os.unlink, path)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen()

        def answer():
            with listener.accept()[0] as peer:
                peer.recv(1 << 16)
                peer.sendall(json.dumps(["no", "map"]).encode() + b"\n" * 100)

        thread = in_thread(answer)
        with client(socket=path) as c, self.assertRaisesRegex(qsidecar.NotConnected, path):
            c.ping()
        thread.join(LIMIT)


if __name__ == "__main__":
    unittest.main()
