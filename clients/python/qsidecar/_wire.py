"""One connection: its codec, its frames, where its socket is."""

from __future__ import annotations

import base64
import json
import os
import selectors
import socket
import threading
import time
from typing import Any, Dict, List, Optional

try:
    import msgpack
except ImportError:
    msgpack = None

Message = Dict[str, Any]

# A reply has 8 × max_frame at most, and max_frame is 64 MiB at most; base64 is a third longer.
MAX_REPLY = 3 * 8 * 64 << 20 >> 1
# So long the sidecar may read nothing while something is written to it.
STALLED = 30.0


class NoSidecar(Exception):
    """What came on the connection is no sidecar's."""


class ClosedByPeer(Exception):
    def __str__(self) -> str:
        return "the sidecar closed the connection"


class JsonLines:
    """A JSON object a line. Bytes fields are text where they are UTF-8, else base64."""

    name = "json"

    def encode(self, message: Message) -> bytes:
        text = json.dumps(self._outgoing(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"

    def size(self, frame: bytes) -> int:
        return len(frame) - 1

    def _outgoing(self, fields: Message) -> Message:
        out = dict(fields)
        for name in ("payload", "result"):
            value = out.pop(name, None)
            if value is None:
                continue
            try:
                out[name] = value.decode()
            except UnicodeDecodeError:
                out[name + "_b64"] = base64.b64encode(value).decode()
        for name in ("jobs", "enqueue"):
            if name in out:
                out[name] = [self._outgoing(job) for job in out[name]]
        return out

    def read(self, wire: Wire) -> Message:
        while True:
            line = wire.line()
            if not line.strip():
                continue
            message = json.loads(line)
            if not isinstance(message, dict):
                raise NoSidecar(f"a line that is no JSON object: {line[:80]!r}")
            jobs = message.get("jobs")
            if isinstance(jobs, list):
                for job in jobs:
                    self._incoming(job)
            return message

    def _incoming(self, fields: Message) -> None:
        for name in ("payload", "result"):
            if name + "_b64" in fields:
                fields[name] = base64.b64decode(fields.pop(name + "_b64"), validate=True)
            elif isinstance(fields.get(name), str):
                fields[name] = fields[name].encode()


class Msgpack:
    """Four bytes of length, then a msgpack map."""

    name = "msgpack"

    def encode(self, message: Message) -> bytes:
        body: bytes = msgpack.packb(message, use_bin_type=True)
        return len(body).to_bytes(4, "big") + body

    def size(self, frame: bytes) -> int:
        return len(frame) - 4

    def read(self, wire: Wire) -> Message:
        body = wire.exactly(int.from_bytes(wire.exactly(4), "big"))
        message = msgpack.unpackb(body, raw=False)
        if not isinstance(message, dict):
            raise NoSidecar("a frame that is no map")
        return message


def codec_named(name: Optional[str]) -> Any:
    """The codec of that name; without one msgpack where the package is installed, else JSON lines."""
    if name is None:
        name = "json" if msgpack is None else "msgpack"
    if name == "json":
        return JsonLines()
    if name != "msgpack":
        raise ValueError(f"codec is 'json' or 'msgpack', not {name!r}")
    if msgpack is None:
        raise ValueError("codec='msgpack' needs the package msgpack: pip install 'qsidecar[msgpack]'")
    return Msgpack()


def sockets() -> List[str]:
    """Where a sidecar's socket is looked for when none is named, in this order."""
    named = os.environ.get("QSIDECAR_SOCKET")
    if named:
        return [named]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    first = [os.path.join(runtime, "qsidecar", "qsidecar.sock")] if runtime else []
    return first + ["/run/qsidecar/qsidecar.sock"]


class Wire:
    """One connection. One thread reads; who writes holds `sending`."""

    def __init__(self, path: str, codec: Any, number: int, patience: float) -> None:
        self.codec = codec
        self.number = number
        self.since = time.monotonic()
        self.sending = threading.Lock()
        self.over = threading.Event()  # set when its reader is done with it
        self.dead = False  # closed; guarded by sending
        self._rest = memoryview(b"")  # of the last frame, what is not written; guarded by sending
        self._buffer = bytearray()
        # Close-on-exec, as every descriptor of Python's (PEP 446): a child that outlives a worker
        # must not keep its jobs.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(patience)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def settle_in(self) -> None:
        """The handshake is over: replies may take as long as they like. Writing has limits of its own."""
        self._socket.settimeout(None)

    @property
    def left(self) -> int:
        """How many bytes of the last frame are not written."""
        return len(self._rest)

    def write(self, frame: bytes, ends: Optional[float]) -> None:
        """Writes a frame, or what can be written of it until then, by the monotonic clock."""
        self._rest = memoryview(frame)
        self.go_on(ends)

    def go_on(self, ends: Optional[float]) -> None:
        """Writes what is left. It raises OSError if the connection has ended, or the sidecar reads nothing for STALLED."""
        stalled = time.monotonic() + STALLED
        while self._rest:
            try:
                self._rest = self._rest[self._socket.send(self._rest, socket.MSG_DONTWAIT) :]
                stalled = time.monotonic() + STALLED
            except BlockingIOError:
                until = stalled if ends is None else min(stalled, ends)
                if self._writable(until - time.monotonic()):
                    continue
                if until == stalled:
                    raise TimeoutError(f"the sidecar has read nothing for {STALLED:.0f} s") from None
                return
        self._rest = memoryview(b"")  # the frame itself is not kept

    def _writable(self, seconds: float) -> bool:
        with selectors.DefaultSelector() as ready:  # select.poll is not there under eventlet
            ready.register(self._socket, selectors.EVENT_WRITE)
            return bool(ready.select(max(0.0, seconds)))

    def read(self) -> Message:
        """The next message. It raises OSError, ClosedByPeer, or NoSidecar."""
        try:
            message: Message = self.codec.read(self)
        except (OSError, ClosedByPeer, NoSidecar):
            raise
        except Exception as e:  # whatever a decoder makes of bytes that are none of its
            raise NoSidecar(f"what came is no sidecar's answer: {e}") from e
        return message

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ClosedByPeer
        self._buffer += data

    def line(self) -> bytes:
        looked = 0
        while True:
            end = self._buffer.find(b"\n", looked)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            looked = len(self._buffer)
            if looked > MAX_REPLY:
                raise NoSidecar("a line without an end")
            self._more()

    def exactly(self, n: int) -> bytes:
        if n > MAX_REPLY:
            raise NoSidecar(f"a frame of {n} bytes")
        while len(self._buffer) < n:
            self._more()
        data = bytes(self._buffer[:n])
        del self._buffer[:n]
        return data

    def end(self) -> None:
        """Ends the connection for both sides. Its reader notices, and closes it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        self.end()
        with self.sending:
            self.dead = True
            self._socket.close()

    def leave(self) -> None:
        """Closes this process's copy, after a fork: the connection is the parent's and goes on."""
        self._socket.close()
