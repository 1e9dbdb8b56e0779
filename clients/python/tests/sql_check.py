"""Checks qsidecar.sql on a sidecar's database: sql_check.py sqlite FILE | postgresql DSN | mysql
JSON.

It fails with an assertion, or prints its results.
"""

import json
import sys
from datetime import datetime, timedelta, timezone

import qsidecar
import test_readme
from support import client, eventually


def connect(engine, where):
    """A connection in a transaction. Its session has its own time zone."""
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


def check_keys(engine, cursor, connection, other, sidecar):
    """A key is the same whichever way a job is stored, and it depends on its transaction."""
    qsidecar.sql.enqueue(cursor, "keys", "never was", key="k")
    connection.rollback()
    first = qsidecar.sql.enqueue(cursor, "keys", "first", key="k")
    again = qsidecar.sql.enqueue(cursor, "keys", "again", key="k")
    connection.commit()
    assert (again.id, again.duplicate, again.state, first.duplicate) == (first.id, True, "ready", False), (first, again)
    by_client = sidecar.enqueue("keys", "by the client", key="k")
    assert (by_client.id, by_client.duplicate) == (first.id, True), by_client
    job = sidecar.claim("keys", wait=60)[0]
    assert (job.id, job.key, job.payload) == (first.id, "k", "first"), job
    job.ack()
    over = qsidecar.sql.enqueue(cursor, "keys", "after", key="k")
    assert (over.id, over.duplicate) == (first.id, True) and over.state in ("done", "deleted"), over  # remembered for a while
    connection.commit()
    theirs = sidecar.enqueue("keys", "theirs", key="é")
    ours = qsidecar.sql.enqueue(cursor, "keys", "ours", key="é")
    assert (ours.id, ours.duplicate) == (theirs.id, True), (theirs, ours)
    connection.commit()
    sidecar.claim("keys", wait=60)[0].ack()
    if engine == "mysql":
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")  # the following job is newer than all that a SELECT reads
    late = qsidecar.sql.enqueue(other.cursor(), "keys", "late", key="late", key_ttl=0)
    other.commit()
    again = qsidecar.sql.enqueue(cursor, "keys", "again", key="late")
    if engine == "mysql":  # a worker's ack must not wait for this transaction, which can wait for the ack
        other.cursor().execute("SELECT id FROM qsidecar_jobs WHERE id = %s FOR UPDATE NOWAIT", (late.id,))
        other.rollback()
    connection.commit()
    assert (again.id, again.duplicate, again.state) == (late.id, True, "ready"), (late, again)
    sidecar.claim("keys", wait=60)[0].ack()
    short = qsidecar.sql.enqueue(cursor, "keys", "short", key="short", key_ttl=0)
    connection.commit()
    sidecar.claim("keys", wait=60)[0].ack()
    new = qsidecar.sql.enqueue(cursor, "keys", "new", key="short")
    assert not new.duplicate and new.id != short.id, (short, new)
    connection.commit()
    sidecar.claim("keys", wait=60)[0].ack()
    # In a queue of its own, of which the sidecar claims no job ahead.
    start = sidecar.enqueue("starts", "start", key="start", key_until="start")
    waits = qsidecar.sql.enqueue(cursor, "starts", "waits", key="start")
    connection.commit()
    assert (waits.id, waits.duplicate) == (start.id, True), (start, waits)
    started = sidecar.claim("starts", wait=60)[0]
    free = qsidecar.sql.enqueue(cursor, "starts", "free", key="start")
    connection.commit()
    assert not free.duplicate and free.id != start.id, (start, free)
    started.ack()
    sidecar.claim("starts", wait=60)[0].ack()
    for needs in ({"key_until": "start"}, {"on_conflict": "replace"}, {"on_conflict": "debounce"}):
        try:
            qsidecar.sql.enqueue(cursor, "keys", "refused", key="refused", **needs)
            raise AssertionError(f"{needs} was taken")
        except ValueError as error:
            assert "use Client.enqueue" in str(error), error
    qsidecar.sql.enqueue(cursor, "keys", "defaults", key="refused", key_until="finish", on_conflict="keep")
    connection.rollback()


def check_expiry(cursor, connection, sidecar):
    """A job whose time is over doesn't start, whichever way it is stored."""
    past = datetime(2001, 2, 3, tzinfo=timezone.utc)
    dead = qsidecar.sql.enqueue(cursor, "expiring", 1, start_before=past)
    gone = qsidecar.sql.enqueue(cursor, "expiring", 2, start_before=past, on_expiry="delete")
    good = [qsidecar.sql.enqueue(cursor, "expiring", n, start_within=3600, run_at=run_at, retain=60) for n, run_at in ((3, None), (4, past))]
    connection.commit()
    jobs = []
    while len(jobs) < 2:  # MySQL makes an INSERT with a run_at ready in its maintenance
        jobs += sidecar.claim("expiring", max=10, wait=60)
    assert [job.id for job in jobs] == [job.id for job in good], jobs
    sidecar.ack_many(jobs)
    assert len(sidecar.request("peek", queue="expiring", state="done")["jobs"]) == 2
    shown = sidecar.request("peek", queue="expiring", ids=[dead.id, gone.id])["jobs"]
    assert [(job["id"], job["state"], job["errors"][0]["cause"]) for job in shown] == [(dead.id, "dead", "expired")], shown
    statement, values = qsidecar.sql.insert("mssql", "?", "expiring", start_within=0.5, on_expiry="delete")
    assert "start_before, on_expiry) VALUES (?, DATEADD(second, (? + 999) / 1000," in statement and values == ("expiring", 500, "delete"), statement
    statement, values = qsidecar.sql.insert("mssql", "?", "kept", retain=60)
    assert "(queue, retain_ms) VALUES (?, ?)" in statement and values == ("kept", 60000), statement


def check_groups(cursor, connection, sidecar):
    """A group holds for all jobs, whichever way they are stored. Names are bytes, not text that a database compares its own way."""
    stored = [qsidecar.sql.enqueue(cursor, "grouped", n, group="é", key=f"g{n}") for n in (1, 2)]
    connection.commit()
    other = sidecar.enqueue("grouped", 3, group="é")
    qsidecar.sql.enqueue(cursor, "grouped", 4, group="É")
    connection.commit()
    eventually(lambda: sidecar.stats("grouped")[0]["ready"] == 2, "the first job of each group is ready")
    again = qsidecar.sql.enqueue(cursor, "grouped", "again", group="é", key="g2")
    connection.commit()
    assert (again.id, again.duplicate, again.state) == (stored[1].id, True, "blocked"), again
    first, last = sidecar.claim("grouped", max=10, wait=60)
    assert (first.id, first.payload, last.payload) == (stored[0].id, 1, 4), (first, last)
    assert sidecar.stats("grouped")[0]["blocked"] == 2, sidecar.stats("grouped")
    sidecar.ack_many([first, last])
    for want, n in ((stored[1].id, 2), (other.id, 3)):
        job = sidecar.claim("grouped", wait=60)[0]
        assert (job.id, job.payload) == (want, n), job
        job.ack()
    for group, kept in (("g", "g"), ("g ", "g \x01"), ("g \x01", "g \x01\x01"), ("g\x01", "g\x01")):
        statement, values = qsidecar.sql.insert("mssql", "?", "grouped", group=group)
        assert "(queue, group_name) VALUES (?, ?)" in statement and values == ("grouped", kept), (statement, values)


def check_wake_up(connection, cursor, where):
    """PostgreSQL notifies listeners when the transaction commits, unless wake is False."""
    import psycopg

    with psycopg.connect(where, autocommit=True) as listener:
        listener.execute("LISTEN qsidecar_qsidecar")
        for name, options in (("quiet", {"wake": False}), ("delayed", {"delay": 3600}), ("woken", {})):
            qsidecar.sql.enqueue(cursor, name, **options)
            connection.commit()
        notifications = listener.notifies(timeout=60)
        ours = next(each.payload for each in notifications if each.payload.startswith("sql "))
        notifications.close()
        assert ours == "sql woken", ours


def check_sqlalchemy(engine, where, sidecar):
    """A Session and a Connection of SQLAlchemy, if it is installed. Asynchronous ones are
    rejected.
    """
    try:
        import sqlalchemy
        from sqlalchemy.orm import Session
    except ImportError:
        return
    module = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}[engine]
    made = sqlalchemy.create_engine(f"{module}://", creator=lambda: connect(engine, where))
    with Session(made) as session:
        qsidecar.sql.enqueue(session, "alchemy", "never was")
        session.rollback()
        stored = qsidecar.sql.enqueue(session, "alchemy", "session", key="s", headers={"a": "b"})
        session.commit()
    job = sidecar.claim("alchemy", wait=60)[0]
    assert (job.payload, job.id, job.key) == ("session", stored.id, "s"), job
    with made.begin() as connection:
        qsidecar.sql.enqueue(connection, "alchemy", "connection", delay=0.001)
    other = sidecar.claim("alchemy", wait=60)[0]
    assert other.payload == "connection", other
    sidecar.ack_many([job, other])
    made.dispose()
    try:
        qsidecar.sql.enqueue(Async(), "q")
        raise AssertionError("an AsyncSession was taken")
    except TypeError as e:
        assert "run_sync" in str(e), e
    print("SQLAlchemy", sqlalchemy.__version__, "too")


class Async:
    """An AsyncSession without SQLAlchemy's requirements for one."""

    get_bind = None

    async def connection(self):
        raise AssertionError("never awaited")


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

    check_groups(cursor, connection, sidecar)
    check_expiry(cursor, connection, sidecar)
    other = connect(engine, where)
    check_keys(engine, cursor, connection, other, sidecar)
    other.close()
    if engine == "postgresql":
        check_wake_up(connection, cursor, where)
    check_sqlalchemy(engine, where, sidecar)
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
