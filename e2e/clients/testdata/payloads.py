"""Enqueues a payload of each type in queues, or prints the payloads of queues. Usage: payloads.py enqueue|read QUEUE…"""
import json
import sys

from qsidecar import Client

with Client() as client:
    for queue in sys.argv[2:]:
        if sys.argv[1] == "enqueue":
            for value in ('Zoë, "☎"\n', 17, {"to": ["ada", 1.5, None]}, None):
                client.enqueue(queue, value)
            client.enqueue(queue, raw=b"\xff\xfe")
            continue
        for job in client.claim(queue, max=10):
            try:
                print(json.dumps({"queue": queue, "value": job.payload}))
            except ValueError as e:
                print(json.dumps({"queue": queue, "bytes": job.raw.hex(), "error": str(e)}))
            job.ack()
