"""A complete client in both codecs: enqueue, claim, ack. Usage: first_client.py SOCKET"""
import base64, json, socket, struct, sys
SIZES = {0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h", 0xd2: ">i", 0xd3: ">q", 0xc4: ">B", 0xc5: ">H",
         0xc6: ">I", 0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xdc: ">H", 0xdd: ">I", 0xde: ">H", 0xdf: ">I"}
def pack(v):
    if isinstance(v, int): return struct.pack(">Bq", 0xd3, v)
    if isinstance(v, bytes): return struct.pack(">BI", 0xc6, len(v)) + v
    if isinstance(v, str): return struct.pack(">BI", 0xdb, len(v.encode())) + v.encode()
    return struct.pack(">BI", 0xdf, len(v)) + b"".join(pack(k) + pack(x) for k, x in v.items())
def unpack(f):
    t = f.pop(0)
    if t < 0x80 or t >= 0xe0: return t if t < 0x80 else t - 256
    if t in (0xc0, 0xc2, 0xc3): return {0xc0: None, 0xc2: False, 0xc3: True}[t]
    if t < 0xc0: t, n = (0xdf, t & 15) if t < 0x90 else (0xdd, t & 15) if t < 0xa0 else (0xdb, t & 31)
    else: n = struct.unpack(SIZES[t], take(f, struct.calcsize(SIZES[t])))[0]
    if 0xcc <= t <= 0xd3: return n
    if t <= 0xc6: return take(f, n)
    if t <= 0xdb: return take(f, n).decode()
    return [unpack(f) for _ in range(n)] if t <= 0xdd else {unpack(f): unpack(f) for _ in range(n)}
def take(f, n):
    head, f[:n] = bytes(f[:n]), b""
    return head
def call_json(s, **request):
    s.write(json.dumps(request).encode() + b"\n"); s.flush()
    return json.loads(s.readline())
def call_msgpack(s, **request):
    body = pack(request); s.write(struct.pack(">I", len(body)) + body); s.flush()
    return unpack(bytearray(s.read(struct.unpack(">I", s.read(4))[0])))
for call, payload in (call_json, "grüße"), (call_msgpack, b"\x00\xff bytes"):
    connection = socket.socket(socket.AF_UNIX); connection.connect(sys.argv[1])
    stream = connection.makefile("rwb")
    job = call(stream, op="enqueue", queue="first", payload=payload, priority=-3)["job"]
    got = call(stream, op="claim", queue="first", wait_ms=5000)["jobs"][0]
    assert (got["id"], got["attempt"]) == (job["id"], 1), got
    back = got.get("payload", base64.b64decode(got.get("payload_b64", "")))
    assert back in (payload, payload.encode() if isinstance(payload, str) else payload), back
    print(call.__name__, "acked", call(stream, op="ack", lease=got["lease"])["acked"])
