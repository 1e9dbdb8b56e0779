"""One connection: its codec, its frames and the path of its socket."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import selectors
import socket
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional

from ._turn import Turn

try:
    import msgpack
except ImportError:
    msgpack = None

Message = Dict[str, Any]

# The largest reply: 8 times max_frame, which is at most 64 MiB. base64 adds a third.
MAX_REPLY = 3 * 8 * 64 << 20 >> 1
# How long the sidecar can read nothing while the client writes, in seconds.
STALLED = 30.0


class NoSidecar(Exception):
    """The bytes on the connection are not from a sidecar."""


class ClosedByPeer(Exception):
    def __str__(self) -> str:
        return "the sidecar closed the connection"


BYTES = ("payload", "result", "data")  # fields that are bytes


class JsonLines:
    """A JSON object a line. Bytes fields are text if they are UTF-8, otherwise base64."""

    name = "json"

    def encode(self, message: Message) -> bytes:
        text = json.dumps(self._outgoing(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"

    def size(self, frame: bytes) -> int:
        return len(frame) - 1

    def _outgoing(self, fields: Message) -> Message:
        out = dict(fields)
        for name in BYTES:
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
        if isinstance(out.get("schedule"), dict):
            out["schedule"] = self._outgoing(out["schedule"])
        return out

    def read(self, wire: Wire) -> Message:
        while True:
            line = wire.line()
            if not line.strip():
                continue
            message = json.loads(line)
            if not isinstance(message, dict):
                raise NoSidecar(f"a line that isn't a JSON object: {line[:80]!r}")
            for name in ("jobs", "ended"):
                if isinstance(message.get(name), list):
                    for job in message[name]:
                        self._incoming(job)
            return message

    def _incoming(self, fields: Message) -> None:
        if isinstance(fields.get("progress"), dict):
            self._incoming(fields["progress"])
        for name in BYTES:
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
            raise NoSidecar("a frame that isn't a map")
        return message


def codec_named(name: Optional[str]) -> Any:
    """Returns the codec of that name. The default is msgpack if the package is installed, otherwise JSON lines."""
    if name is None:
        name = "json" if msgpack is None else "msgpack"
    if name == "json":
        return JsonLines()
    if name != "msgpack":
        raise ValueError(f"codec is 'json' or 'msgpack', not {name!r}")
    if msgpack is None:
        raise ValueError("codec='msgpack' needs the package msgpack: pip install 'qsidecar[msgpack]'")
    return Msgpack()


_SOCKET_URL = re.compile(r"(?:unix:(?://)?(.*)|[A-Za-z][A-Za-z0-9+.-]*://.*|[^/]+:[0-9]+)")


def sockets(named: Optional[str] = None) -> List[str]:
    """Returns the paths of a sidecar's socket to try, in order: the given one, or that of the environment, or the usual ones.

    Raises ValueError for a URL, or a host and port: no socket has such a name, and the system would only report that.
    """
    named = named or os.environ.get("QSIDECAR_SOCKET")
    if named:
        if not isinstance(named, (str, os.PathLike)):
            raise TypeError(f"socket={named!r}: pass a path")
        named = os.fspath(named)
        url = _SOCKET_URL.fullmatch(named)
        if url is not None:
            raise ValueError(f"the socket {named} is not a path: write {url[1] or '/run/qsidecar/qsidecar.sock'}")
        if named.startswith("~"):
            raise ValueError(f"the socket {named}: ~ isn't replaced here: write the whole path")
        return [named]
    found = []
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not (os.geteuid() == 0 and any(map(_foreign, (runtime, os.path.join(runtime, "qsidecar"))))):
        found.append(os.path.join(runtime, "qsidecar", "qsidecar.sock"))
    state, home = os.environ.get("XDG_STATE_HOME"), os.environ.get("HOME")
    if not state and home:
        state = os.path.join(home, ".local", "state")
    if state and os.geteuid() != 0 and os.path.isdir(os.path.join(state, "qsidecar")):
        found.append(os.path.join(state, "qsidecar", "qsidecar.sock"))
    return [*found, "/run/qsidecar/qsidecar.sock"]


def _foreign(directory: str) -> bool:
    """Returns whether another user than root owns the directory. That user could serve a socket of its own there."""
    try:
        return os.stat(directory).st_uid != 0
    except OSError:
        return False


def why_not(path: str, e: Exception) -> str:
    """Describes an error of a path. The system reports a file or a folder as a socket on which nothing listens."""
    if os.path.isdir(path):
        return "it is a folder: name the socket in it"
    if os.path.isfile(path):
        return "it is a file, and not a socket"
    return str(e)


def not_listening(e: OSError) -> bool:
    """Returns whether no sidecar that this process can reach listens on a socket. A client then tries the next path."""
    if e.errno is None:
        return "too long" in str(e)  # the path: Python doesn't ask the system
    return e.errno in _NOT_LISTENING


_NOT_LISTENING = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ECONNREFUSED,
    errno.EACCES,
    errno.EPERM,
    errno.EPROTOTYPE,
    errno.ENOTSOCK,
    errno.EINVAL,
    errno.ENAMETOOLONG,
}


class Wire:
    """One connection. One thread reads. A thread that writes holds `sending`."""

    def __init__(self, path: str, codec: Any, number: int, limit: float) -> None:
        self.codec = codec
        self.number = number
        self.since = time.monotonic()
        self.sending = Turn()
        self.reader_done = threading.Event()  # set when its reader has ended
        self.closed = False  # closed; guarded by sending
        self._unwritten = memoryview(b"")  # the unwritten rest of the last frame; guarded by sending
        self.current: Any = None  # the call of that frame, and the frame; guarded by sending
        self.pending: Deque[Any] = deque()  # calls to write, each with its frame; appended to without a lock
        self._buffer = bytearray()
        # The socket is close-on-exec, as every descriptor of Python (PEP 446). A child that
        # outlives a worker must not keep its jobs.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(limit)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def end_handshake(self) -> None:
        """Ends the handshake. From now on a reply can take any time. Writes have their own limits."""
        self._socket.settimeout(None)

    @property
    def unwritten(self) -> int:
        """How many bytes of the last frame are not written."""
        return len(self._unwritten)

    def write(self, frame: bytes, ends: Optional[float]) -> None:
        """Writes a frame, or as much of it as it can until `ends`, by the monotonic clock."""
        self._unwritten = memoryview(frame)
        self.write_rest(ends)

    def begin(self, frames: List[bytes]) -> int:
        """Writes as much of the frames as it can without waiting, in one system call.

        Returns how many of them are begun, at least one. The rest of the last one is unwritten.
        """
        try:
            n = self._socket.send(b"".join(frames), socket.MSG_DONTWAIT)
        except OSError:
            n = 0  # write_rest waits, or raises the error
        begun = 1
        while begun < len(frames) and n >= len(frames[begun - 1]):
            n -= len(frames[begun - 1])
            begun += 1
        self._unwritten = memoryview(frames[begun - 1])[n:]
        return begun

    def skip(self) -> None:
        """Forgets a frame of which nothing was written."""
        self._unwritten = memoryview(b"")

    def write_rest(self, ends: Optional[float]) -> None:
        """Writes the rest. Raises OSError if the connection has ended, or if the sidecar reads nothing for STALLED."""
        stalled = time.monotonic() + STALLED
        while self._unwritten:
            try:
                self._unwritten = self._unwritten[self._socket.send(self._unwritten, socket.MSG_DONTWAIT) :]
                stalled = time.monotonic() + STALLED
            except BlockingIOError:
                until = stalled if ends is None else min(stalled, ends)
                if self._writable(until - time.monotonic()):
                    continue
                if until == stalled:
                    raise TimeoutError(f"the sidecar has read nothing for {STALLED:.0f} s") from None
                return
        self._unwritten = memoryview(b"")  # do not keep the frame

    def _writable(self, seconds: float) -> bool:
        with selectors.DefaultSelector() as ready:  # eventlet has no select.poll
            ready.register(self._socket, selectors.EVENT_WRITE)
            return bool(ready.select(max(0.0, seconds)))

    def read(self) -> Message:
        """Returns the next message. Raises OSError, ClosedByPeer or NoSidecar."""
        try:
            message: Message = self.codec.read(self)
        except (OSError, ClosedByPeer, NoSidecar):
            raise
        except Exception as e:  # a decoder can raise anything for invalid bytes
            raise NoSidecar(f"the reply isn't from a sidecar: {e}") from e
        return message

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ClosedByPeer
        self._buffer += data

    def line(self) -> bytes:
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            searched = len(self._buffer)
            if searched > MAX_REPLY:
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
        """Ends the connection for both sides. The reader then closes it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has already ended

    def close(self) -> None:
        self.end()
        try:
            self.sending.take(self, -1)
            self.closed = True
            self._socket.close()
        finally:
            self.sending.give(self)

    def close_after_fork(self) -> None:
        """Closes this process's copy after a fork. The parent still uses the connection."""
        self._socket.close()
