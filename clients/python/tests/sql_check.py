"""qsidecar.sql on the database of a sidecar: sql_check.py sqlite FILE | postgresql DSN | mysql JSON.

It ends with an assertion, or prints what it saw.
"""

import json
import sys
from datetime import datetime, timedelta, timezone

import qsidecar
import test_readme
from support import client, eventually


def connect(engine, where):
    """A connection in a transaction, whose session is in a zone of its own."""
    if engine == "sqlite":
        import sqlite3

        return sqlite3.connect(where, timeout=60)
    if engine == "postgresql":
        import psycopg

        connection = psycopg.connect(where)
        connection.execute("SET TIME ZONE 'Asia/Kolkata'")
        connection.commit()
        return connection
    import pymysql

    connection = pymysql.connect(**json.loads(where))
    connection.cursor().execute("SET time_zone = '+05:30'")
    return connection


def main(engine, where):
    connection, sidecar = connect(engine, where), client()
    cursor = connection.cursor()

    qsidecar.sql.enqueue(cursor, "q", {"n": "never was"})
    connection.rollback()
    qsidecar.sql.enqueue(cursor, "q", {"n": "é"}, priority=-5)
    raw = bytes(range(256))
    qsidecar.sql.enqueue(cursor, "q", raw=raw, priority=7, headers={"lang": "é", "a": '"\\'}, max_attempts=3)
    qsidecar.sql.enqueue(cursor, "empty")
    assert sidecar.request("peek", queue="q")["jobs"] == [], "a job is there before its transaction is committed"
    connection.commit()

    job = sidecar.claim("q", wait=60)[0]
    assert (job.raw, job.priority, job.max_attempts) == (raw, 7, 3), (job, job.raw, job.priority)
    assert job.headers == {"lang": "é", "a": '"\\'}, job.headers
    other = sidecar.claim("q", wait=60)[0]
    assert (other.payload, other.priority) == ({"n": "é"}, -5), (other, other.raw)
    assert sidecar.claim("empty", wait=60)[0].raw == b""
    assert sidecar.ack_many([job, other]) == []

    began = datetime.now().timestamp()
    at = datetime.now(timezone(timedelta(hours=-3))) + timedelta(hours=2)
    qsidecar.sql.enqueue(cursor, "later", 1, delay=3600)
    qsidecar.sql.enqueue(cursor, "later", 2, run_at=at)
    qsidecar.sql.enqueue(cursor, "later", 3, run_at=datetime.now().timestamp() - 10)
    qsidecar.sql.enqueue(cursor, "later", 4, delay=10 * 365 * 86400)
    connection.commit()
    assert sidecar.claim("later", wait=60)[0].payload == 3

    def scheduled():
        jobs = sidecar.request("peek", queue="later", state="scheduled")["jobs"]
        return jobs if len(jobs) == 3 else None

    took = datetime.now().timestamp() - began
    wanted = [(began + 3600, took), (at.timestamp(), 0), (began + 10 * 365 * 86400, took)]
    for job, (want, later) in zip(eventually(scheduled, "the others are scheduled"), wanted):
        assert want - 1 < job["run_at"] / 1000 < want + later + 1, (job, want)

    try:
        qsidecar.sql.enqueue(object(), "q")
        raise AssertionError("a cursor of no driver was taken")
    except TypeError:
        pass
    test_readme.check_transaction(connection, cursor.execute)
    eventually(lambda: sidecar.request("peek", queue="mail", state="scheduled")["jobs"], "the README's job is there")
    sidecar.close()
    connection.close()
    print("all well on", engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
