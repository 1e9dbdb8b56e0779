#!/usr/bin/env python3
"""Connects Client, or with --async AsyncClient, to the conformance kit (clients/kit), which sends it one command a line."""

import asyncio
import base64
import inspect
import json
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import qsidecar  # noqa: E402

lost = []  # jobs
jobs = {}
writing = threading.Lock()
ASYNC = "--async" in sys.argv
client = (qsidecar.AsyncClient if ASYNC else qsidecar.Client)(
    worker="kit",
    codec=os.environ.get("QSIDECAR_CODEC") or None,
    request_timeout=60,  # the kit breaks connections during an enqueue too
    on_lost=lost.extend,
)


def raw(c, name):
    return None if c.get(name) is None else base64.b64decode(c[name])


def claimed(job):
    jobs[job.id] = job
    payload = base64.b64encode(job.raw).decode()
    last, progress = job.last_progress, {}
    if last is not None:
        progress = {"progress": {"done": last.done, "total": last.total, "data_b64": base64.b64encode(last.raw).decode()}}
    return {"id": job.id, "payload_b64": payload, "attempt": job.attempt, "fence": job.fence, **progress}


def expiry(c):
    within = c.get("start_within_ms")
    return {"start_within": None if within is None else within / 1000, "on_expiry": c.get("on_expiry")}


async def done(value):
    return await value if inspect.isawaitable(value) else value


async def do(c):
    what = c["do"]
    if what == "enqueue":
        stored = await done(client.enqueue(c["queue"], raw=raw(c, "payload_b64"), key=c.get("key"), group=c.get("group"), on_conflict=c.get("on_conflict"), **expiry(c)))
        return {"id": stored.id, "duplicate": stored.duplicate, "outcome": stored.outcome}
    if what == "claim":
        got = await done(client.claim(c["queue"], max=c["max"], wait=c["wait_ms"] / 1000))
        return {"jobs": [claimed(job) for job in got]}
    if what == "ack":
        await done(jobs[c["id"]].ack(raw=raw(c, "result_b64")))
    elif what == "nack":
        delay = None if c.get("delay_ms") is None else c["delay_ms"] / 1000
        await done(jobs[c["id"]].nack(c.get("error", ""), delay=delay, dead=c.get("dead", False)))
    elif what == "extend":
        await done(jobs[c["id"]].extend(c["lease_ms"] / 1000))
    elif what == "progress":
        await done(jobs[c["id"]].progress(c.get("done"), c.get("total"), raw=raw(c, "data_b64")))
    elif what == "lost":
        return {"ids": [job.id for job in lost], "cancelled": [job.id for job in lost if job.cancelled]}
    elif what == "exec":
        return {"pid": subprocess.Popen(["sleep", "1000"], close_fds=False).pid}
    elif what == "close":
        await done(client.close())
    return {}


async def answer(c):
    try:
        got = {"ok": True, **await do(c)}
    except qsidecar.SettledOrLost as e:
        got = {"ok": False, "error": "SETTLED_OR_LOST", "message": str(e)}
    except qsidecar.UnknownOutcome as e:
        got = {"ok": False, "error": "unknown_outcome" if e.reported else "UNKNOWN_OUTCOME", "message": str(e)}
    except qsidecar.SidecarError as e:
        got = {"ok": False, "error": e.code, "message": str(e)}
    except Exception as e:
        got = {"ok": False, "error": repr(e)}
    if "tag" in c:
        got["tag"] = c["tag"]
    with writing:
        print(json.dumps(got), flush=True)


def main():
    for line in sys.stdin:
        command = json.loads(line)
        if "tag" in command:  # runs during the commands that follow
            threading.Thread(target=lambda c=command: asyncio.run(answer(c)), daemon=True).start()
        else:
            asyncio.run(answer(command))


async def async_main():
    loop, tasks = asyncio.get_running_loop(), set()
    while True:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        if not line:
            return
        command = json.loads(line)
        if "tag" in command:
            task = loop.create_task(answer(command))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        else:
            await answer(command)


if ASYNC:
    asyncio.run(async_main())
else:
    main()
