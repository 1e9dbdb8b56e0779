"""A plain INSERT is an enqueue: in the caller's own transaction, so that the job is there if that commits, and never was if not.

    with connection.cursor() as cursor:                     # the application's own connection and transaction
        cursor.execute("INSERT INTO orders …")
        qsidecar.sql.enqueue(cursor, "mail", {"order": 17})
    connection.commit()

The database is the one that the queue's sidecar works on. A waiting worker gets the job within a second.
A key against duplicates, and a wake-up within milliseconds, come with Client.enqueue.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import client
from .job import NewJob, Seconds, dump, instant, millis


class _Dialect(NamedTuple):
    table: str  # {schema} is put in
    headers: str  # the expression for a parameter with JSON, {} is the parameter
    delay: str  # for one of milliseconds from now
    run_at: str  # for one of milliseconds since 1970


_DIALECTS: Dict[str, _Dialect] = {
    "postgresql": _Dialect(
        "{schema}.qsidecar_jobs",
        "CAST({} AS jsonb)",
        "clock_timestamp() + {} * interval '1 millisecond'",
        "timestamptz 'epoch' + {} * interval '1 millisecond'",
    ),
    "mysql": _Dialect(
        "qsidecar_jobs",
        "{}",
        "UTC_TIMESTAMP(6) + INTERVAL {} * 1000 MICROSECOND",
        "TIMESTAMP('1970-01-01') + INTERVAL {} * 1000 MICROSECOND",
    ),
    "sqlite": _Dialect(
        "qsidecar_jobs", "{}", "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + {}", "{}"
    ),
    # Written by the book of the engine; no such server was at hand to run it on.
    "mssql": _Dialect(
        "{schema}.qsidecar_jobs",
        "{}",
        "DATEADD(second, {} / 1000, SYSUTCDATETIME())",
        "DATEADD(second, {} / 1000, CONVERT(datetime2, '1970-01-01'))",
    ),
}

# By the first word of the module of a cursor's class: the engine, and how a parameter is written.
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
    cursor: Any,
    queue: str,
    payload: Any = None,
    *,
    raw: Optional[bytes] = None,
    priority: int = 0,
    headers: Optional[Mapping[str, str]] = None,
    max_attempts: Optional[int] = None,
    delay: Optional[Seconds] = None,
    run_at: Union[datetime, float, int, None] = None,
    schema: str = "qsidecar",
    engine: Optional[str] = None,
    placeholder: Optional[str] = None,
) -> None:
    """Inserts a job by a cursor of the DB-API, and commits nothing. The options mean what they do for NewJob.

    schema is where the sidecar keeps its tables on PostgreSQL and SQL Server. The engine (postgresql, mysql for MariaDB
    too, sqlite, mssql) and how it takes a parameter are found by the cursor's driver, also inside of Django; name both
    for a driver that is not known: engine="postgresql", placeholder="%s".
    """
    if client._inline is not None:
        client._inline([NewJob(queue, payload, raw, priority, delay, run_at, None, headers, max_attempts)])
        return
    statement, values = insert(
        *_driver(cursor, engine, placeholder),
        queue,
        payload,
        raw=raw,
        priority=priority,
        headers=headers,
        max_attempts=max_attempts,
        delay=delay,
        run_at=run_at,
        schema=schema,
    )
    cursor.execute(statement, values)


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
    schema: str = "qsidecar",
) -> Tuple[str, Tuple[Any, ...]]:
    """The statement of enqueue and its parameters, to be run by other means."""
    dialect = _DIALECTS.get(engine)
    if dialect is None:
        raise ValueError(f"engine is one of {', '.join(_DIALECTS)}, not {engine!r}")
    if not schema.isidentifier():
        raise ValueError(f"schema is a plain name, not {schema!r}")
    if delay is not None and run_at is not None:
        raise ValueError("give delay= or run_at=, not both")
    columns: List[Tuple[str, str, Any]] = [("queue", "{}", queue)]
    data = dump(payload, raw)
    if data is not None:
        columns.append(("payload", "{}", data))
    if priority:
        columns.append(("priority", "{}", priority))
    if headers:
        columns.append(("headers", dialect.headers, json.dumps(dict(headers))))
    if max_attempts is not None:
        columns.append(("max_attempts", "{}", max_attempts))
    if delay is not None:
        columns.append(("run_at", dialect.delay, millis(delay)))
    if run_at is not None:
        columns.append(("run_at", dialect.run_at, instant(run_at)))
    names = ", ".join(name for name, _, _ in columns)
    slots = ", ".join(slot.format(placeholder) for _, slot, _ in columns)
    table = dialect.table.format(schema=schema)
    return f"INSERT INTO {table} ({names}) VALUES ({slots})", tuple(value for _, _, value in columns)


def _driver(cursor: Any, engine: Optional[str], placeholder: Optional[str]) -> Tuple[str, str]:
    if engine is not None and placeholder is not None:
        return engine, placeholder
    vendor = getattr(getattr(cursor, "db", None), "vendor", None)  # Django's wrapper, which takes %s on any engine
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
