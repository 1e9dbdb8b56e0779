"""Enqueues by a plain INSERT in the caller's transaction. The job exists if the transaction commits.

    with connection.cursor() as cursor:                     # the application's own connection and transaction
        cursor.execute("INSERT INTO orders …")
        qsidecar.sql.enqueue(cursor, "mail", {"order": 17})
    connection.commit()

The database must be the sidecar's database. On PostgreSQL a waiting worker gets the job when the transaction
commits, on other engines within a second.
"""

from __future__ import annotations

import inspect
import json
import time
from datetime import datetime
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import client
from ._sql_keys import Key, Run
from .job import Enqueued, NewJob, Seconds, dump, instant, millis


class _Dialect(NamedTuple):
    table: str  # {schema} is replaced
    headers: str  # the expression for a JSON parameter; {} is the parameter
    delay: str  # for milliseconds from now
    run_at: str  # for milliseconds since 1970
    next_id: str = ""  # returns the id of the next job
    last_id: str = ""  # or returns the id of the inserted job


_DIALECTS: Dict[str, _Dialect] = {
    "postgresql": _Dialect(
        "{schema}.qsidecar_jobs",
        "CAST({} AS jsonb)",
        "clock_timestamp() + {} * interval '1 millisecond'",
        "timestamptz 'epoch' + {} * interval '1 millisecond'",
        next_id="SELECT {schema}.qsidecar_next()",
    ),
    "mysql": _Dialect(
        "qsidecar_jobs",
        "{}",
        "UTC_TIMESTAMP(6) + INTERVAL {} * 1000 MICROSECOND",
        "TIMESTAMP('1970-01-01') + INTERVAL {} * 1000 MICROSECOND",
        last_id="SELECT LAST_INSERT_ID()",
    ),
    "sqlite": _Dialect(
        "qsidecar_jobs",
        "{}",
        "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + {}",
        "{}",
        last_id="SELECT last_insert_rowid()",
    ),
    # Written from the documentation of the engine. It has not run on such a server.
    "mssql": _Dialect(
        "{schema}.qsidecar_jobs",
        "{}",
        "DATEADD(second, ({} + 999) / 1000, SYSUTCDATETIME())",
        "DATEADD(second, ({} + 999) / 1000, CONVERT(datetime2, '1970-01-01'))",
        next_id="SELECT NEXT VALUE FOR {schema}.qsidecar_sequence",
    ),
}

# The column key is a reserved word of some engines.
_KEY = {"mysql": "`key`", "mssql": "[key]"}

# By the first part of the module of a cursor's class: the engine and its parameter placeholder.
_DRIVERS: Dict[str, Tuple[str, str]] = {
    "psycopg": ("postgresql", "%s"),
    "psycopg2": ("postgresql", "%s"),
    "pg8000": ("postgresql", "%s"),
    "pymysql": ("mysql", "%s"),
    "MySQLdb": ("mysql", "%s"),
    "mysql": ("mysql", "%s"),  # mysql.connector
    "mariadb": ("mysql", "?"),
    "sqlite3": ("sqlite", "?"),
    "pyodbc": ("mssql", "?"),
    "pymssql": ("mssql", "%s"),
}


def enqueue(
    on: Any,
    queue: str,
    payload: Any = None,
    *,
    raw: Optional[bytes] = None,
    priority: int = 0,
    headers: Optional[Mapping[str, str]] = None,
    max_attempts: Optional[int] = None,
    delay: Optional[Seconds] = None,
    run_at: Union[datetime, float, int, None] = None,
    key: Optional[str] = None,
    key_ttl: Seconds = 600,
    group: Optional[str] = None,
    start_before: Union[datetime, float, int, None] = None,
    start_within: Optional[Seconds] = None,
    on_expiry: Optional[str] = None,
    retain: Optional[Seconds] = None,
    key_until: Optional[str] = None,
    on_conflict: Optional[str] = None,
    wake: bool = True,
    schema: str = "qsidecar",
    engine: Optional[str] = None,
    placeholder: Optional[str] = None,
) -> Enqueued:
    """Inserts a job, without a commit. The options have the same meaning as in NewJob.

    on is a cursor of the DB-API (also Django's), or a Session or Connection of SQLAlchemy. With a key, a second job
    with the same key is not stored, and the first one's id is returned. The key is remembered for at least key_ttl,
    which should be that of the queue's config. wake (PostgreSQL): wakes waiting workers when the transaction
    commits. Without it they find the job within a second, and the commits of many producers do not wait for the
    global lock of NOTIFY.
    The queue's start_within doesn't apply: pass the job's own.

    key_until="start", on_conflict="replace" and on_conflict="debounce" need Client.enqueue after the commit. A worker can claim the first
    job before this transaction ends, and then it has not seen its changes.

    schema is where the sidecar keeps its tables on PostgreSQL and SQL Server. The driver determines the engine
    (postgresql, mysql also for MariaDB, sqlite, mssql) and the parameter placeholder. For an unknown driver pass
    both: engine="postgresql", placeholder="%s".
    """
    if key_until not in (None, "finish"):
        raise ValueError(f"key_until={key_until!r} can't hold in your own transaction: commit it, and use Client.enqueue")
    if on_conflict not in (None, "keep"):
        raise ValueError(f"on_conflict={on_conflict!r} can't hold in your own transaction: commit it, and use Client.enqueue")
    if client._inline is not None:
        return client._inline([NewJob(queue, payload, raw, priority, delay, run_at, key, headers, max_attempts, None, group, None, start_before, start_within, on_expiry, retain)])[0]
    run, known, slot = _executor(on, engine, placeholder)
    statement, values = insert(
        known,
        slot,
        queue,
        payload,
        raw=raw,
        priority=priority,
        headers=headers,
        max_attempts=max_attempts,
        delay=delay,
        run_at=run_at,
        key=key,
        group=group,
        start_before=start_before,
        start_within=start_within,
        on_expiry=on_expiry,
        retain=retain,
        schema=schema,
    )
    claimed = None if key is None else Key(run, known, slot, schema, queue, key)
    first = claimed and claimed.first()
    if first:
        return Enqueued(first[0], True, first[1])
    dialect = _DIALECTS[known]
    if dialect.last_id:
        run(statement, values)
        row = run(dialect.last_id, ())
    else:  # get the id first: a role that can only insert can't read the inserted row
        row = run(dialect.next_id.format(schema=schema), ())
        assert row is not None
        run(statement.replace("(", "(id, ", 1).replace("VALUES (", f"VALUES ({slot}, ", 1), (row[0], *values))
    assert row is not None
    job = str(row[0])
    if claimed:
        claimed.assign(job, millis("key_ttl", key_ttl))
    if wake and known == "postgresql" and delay is None and run_at is None:
        run(f"SELECT pg_notify({slot}, {slot})", (f"qsidecar_{schema}", f"sql {queue}"))
    return Enqueued(job)


def insert(
    engine: str,
    placeholder: str,
    queue: str,
    payload: Any = None,
    *,
    raw: Optional[bytes] = None,
    priority: int = 0,
    headers: Optional[Mapping[str, str]] = None,
    max_attempts: Optional[int] = None,
    delay: Optional[Seconds] = None,
    run_at: Union[datetime, float, int, None] = None,
    key: Optional[str] = None,
    group: Optional[str] = None,
    start_before: Union[datetime, float, int, None] = None,
    start_within: Optional[Seconds] = None,
    on_expiry: Optional[str] = None,
    retain: Optional[Seconds] = None,
    schema: str = "qsidecar",
) -> Tuple[str, Tuple[Any, ...]]:
    """Returns the INSERT of enqueue and its parameters, to run by other means. It stores a key only as a column: see
    enqueue.
    """
    dialect = _DIALECTS.get(engine)
    if dialect is None:
        raise ValueError(f"engine is one of {', '.join(_DIALECTS)}, not {engine!r}")
    if not schema.isidentifier():
        raise ValueError(f"schema is a plain name, not {schema!r}")
    if delay is not None and run_at is not None:
        raise ValueError("pass delay= or run_at=, not both")
    if group is not None and engine == "mssql" and group.rstrip("\x01").endswith(" "):
        group += "\x01"  # the sidecar's form of such a name: SQL Server passes over blanks at the end when it compares texts
    if start_before is not None and start_within is not None:
        raise ValueError("pass start_before= or start_within=, not both")
    columns: List[Tuple[str, str, Any]] = [("queue", "{}", queue)]
    data = dump(payload, raw, f"the payload of a job for {queue}")
    if data is not None:
        columns.append(("payload", "{}", data))
    if priority:
        columns.append(("priority", "{}", priority))
    if headers:
        columns.append(("headers", dialect.headers, json.dumps(dict(headers))))
    if max_attempts is not None:
        columns.append(("max_attempts", "{}", max_attempts))
    if delay is not None:
        columns.append(("run_at", dialect.delay, millis("delay", delay)))
    if run_at is not None:
        columns.append(("run_at", dialect.run_at, instant(run_at)))
    if start_before is not None:
        columns.append(("start_before", dialect.run_at, instant(start_before)))
    if start_within is not None:
        within = millis("start_within", start_within)
        if run_at is not None:
            columns.append(("start_before", dialect.run_at, max(instant(run_at), instant(time.time())) + within))
        else:
            columns.append(("start_before", dialect.delay, within + (0 if delay is None else millis("delay", delay))))
    if retain is not None:
        columns.append(("retain_ms", "{}", millis("retain", retain)))
    if on_expiry is not None:
        columns.append(("on_expiry", "{}", on_expiry))
    for column, text in ((_KEY.get(engine, "key"), key), ("group_name", group)):
        if text is not None:  # MySQL's columns contain bytes: a text would be stored in the connection's character set
            columns.append((column, "{}", text.encode() if engine == "mysql" else text))
    names = ", ".join(name for name, _, _ in columns)
    slots = ", ".join(slot.format(placeholder) for _, slot, _ in columns)
    table = dialect.table.format(schema=schema)
    return f"INSERT INTO {table} ({names}) VALUES ({slots})", tuple(value for _, _, value in columns)


def _executor(on: Any, engine: Optional[str], placeholder: Optional[str]) -> Tuple[Run, str, str]:
    """Returns a function that runs statements on a cursor, Session or Connection, the engine, and its placeholder."""
    if hasattr(on, "get_bind") and callable(getattr(on, "connection", None)):  # SQLAlchemy's Session
        _refuse_async(on, on.connection)
        on = on.connection()
    alchemy = getattr(on, "exec_driver_sql", None)
    if alchemy is not None:
        _refuse_async(on, alchemy)
        name = {"mariadb": "mysql"}.get(on.dialect.name, on.dialect.name)
        return _runner(alchemy), engine or name, placeholder or ("?" if on.dialect.paramstyle == "qmark" else "%s")
    known = _driver(on, engine, placeholder)
    _refuse_async(on, on.execute)

    def run(statement: str, values: Sequence[Any]) -> Optional[Sequence[Any]]:
        on.execute(statement, values)
        return None if on.description is None else _one(on)

    return (run, *known)


def _runner(execute: Any) -> Run:
    def run(statement: str, values: Sequence[Any]) -> Optional[Sequence[Any]]:
        result = execute(statement, tuple(values))
        return _one(result) if result.returns_rows else None

    return run


def _one(result: Any) -> Optional[Sequence[Any]]:
    row: Optional[Sequence[Any]] = result.fetchone()
    return row


def _refuse_async(on: Any, method: Any) -> None:
    """Rejects coroutines: if no code awaits them, they insert nothing."""
    if inspect.iscoroutinefunction(method):
        raise TypeError(
            f"a {type(on).__qualname__} is asynchronous; SQLAlchemy: await session.run_sync(lambda s: qsidecar.sql.enqueue(s, …)); "
            "else run the statements of qsidecar.sql.insert"
        )


def _driver(cursor: Any, engine: Optional[str], placeholder: Optional[str]) -> Tuple[str, str]:
    if engine is not None and placeholder is not None:
        return engine, placeholder
    vendor = getattr(getattr(cursor, "db", None), "vendor", None)  # Django's wrapper, which uses %s on all engines
    if vendor is not None:
        return {"microsoft": "mssql"}.get(vendor, vendor), "%s"
    for base in type(cursor).__mro__:
        known = _DRIVERS.get(base.__module__.partition(".")[0])
        if known is not None:
            return engine or known[0], placeholder or known[1]
    raise TypeError(
        f"a cursor of {type(cursor).__module__}.{type(cursor).__qualname__} is of no driver that is known: "
        "name engine= and placeholder="
    )
