"""Idempotency keys of jobs that are stored by a plain INSERT, in the caller's transaction.

It does what the sidecar does for an enqueue with a key. The row of the key in qsidecar_keys is locked until the
transaction ends, so only one job is stored for it. A rollback removes the key together with the job.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

# Runs a statement with its parameters and returns its first row, or None.
Run = Callable[[str, Sequence[Any]], Optional[Sequence[Any]]]


class _Engine(NamedTuple):
    """The statements of an engine. {keys} and {jobs} are the tables, {p} is a parameter."""

    lock: str  # creates the key's row if it is missing, or revives that of a deleted job, and locks it
    select: str  # returns its job (0: a new row), its state, and whether its time is expired
    assign: str  # assigns the key to a job: parameters are its id, the TTL in milliseconds, queue and key
    blocked: str  # whether a job waits for its group
    # Returns the job that the key had when the transaction's snapshot was taken. Only MySQL's default isolation needs it: a job
    # that isn't found can be newer than the snapshot. A locking read would find it, but can be a deadlock with a worker's ack.
    earlier: str = ""


_MYSQL_SELECT = "SELECT job, state, expires_at <= UTC_TIMESTAMP(6) FROM {keys} WHERE queue = {p} AND `key` = {p} FOR UPDATE"
# A job that has started doesn't have its key any more, if that is stored with key_until="start".
_JOB = "SELECT CASE WHEN key_state = 'start' AND claim_max IS NOT NULL THEN 'started' WHEN {blocked} THEN 'blocked' ELSE state END FROM {jobs} WHERE id = {p}"
_BLOCKED = "state = 'ready' AND group_name IS NOT NULL"
_SQLITE_NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

_ENGINES: Dict[str, _Engine] = {
    "postgresql": _Engine(
        "INSERT INTO {keys} AS k (queue, key, job, expires_at, state) VALUES ({p}, {p}, 0, clock_timestamp(), 'deleted') "
        "ON CONFLICT (queue, key) DO UPDATE SET job = k.job",
        "SELECT job, state, expires_at <= clock_timestamp() FROM {keys} WHERE queue = {p} AND key = {p}",
        "UPDATE {keys} SET job = {p}, state = NULL, expires_at = clock_timestamp() + {p} * interval '1 millisecond' "
        "WHERE queue = {p} AND key = {p}",
        _BLOCKED,
    ),
    "mysql": _Engine(
        "INSERT INTO {keys} (queue, `key`, job, expires_at, state) VALUES ({p}, {p}, 0, UTC_TIMESTAMP(6), 'deleted') "
        "ON DUPLICATE KEY UPDATE job = job",
        _MYSQL_SELECT,
        "UPDATE {keys} SET job = {p}, state = NULL, expires_at = UTC_TIMESTAMP(6) + INTERVAL {p} * 1000 MICROSECOND "
        "WHERE queue = {p} AND `key` = {p}",
        f"{_BLOCKED} AND run_at IS NULL",
        earlier="SELECT job FROM {keys} WHERE queue = {p} AND `key` = {p}",
    ),
    "sqlite": _Engine(
        f"INSERT INTO {{keys}} (queue, key, job, expires_at, state) VALUES ({{p}}, {{p}}, 0, {_SQLITE_NOW}, 'deleted') "
        "ON CONFLICT (queue, key) DO UPDATE SET job = job",
        f"SELECT job, state, expires_at <= {_SQLITE_NOW} FROM {{keys}} WHERE queue = {{p}} AND key = {{p}}",
        f"UPDATE {{keys}} SET job = {{p}}, state = NULL, expires_at = {_SQLITE_NOW} + {{p}} WHERE queue = {{p}} AND key = {{p}}",
        _BLOCKED,
    ),
}


class Key:
    def __init__(self, run: Run, engine: str, placeholder: str, schema: str, queue: str, key: str) -> None:
        if engine not in _ENGINES:
            raise ValueError(f"keys in your own transaction are not supported for {engine}: use Client.enqueue")
        prefix = f"{schema}." if engine == "postgresql" else ""
        self._engine = _ENGINES[engine]
        self._names = {"keys": f"{prefix}qsidecar_keys", "jobs": f"{prefix}qsidecar_jobs", "p": placeholder, "blocked": self._engine.blocked}
        self._run = run
        # MySQL's column contains bytes. It would store a text in the connection's character set.
        self._key = queue, key.encode() if engine == "mysql" else key

    def _do(self, statement: str, *values: Any) -> Optional[Sequence[Any]]:
        return self._run(statement.format(**self._names), values)

    def first(self) -> Optional[Tuple[str, str]]:
        """Returns the id and the state of the job that has the key. Returns None if the key is free. This transaction
        then holds it.
        """
        self._do(self._engine.lock, *self._key)
        row = self._do(self._engine.select, *self._key)
        assert row is not None, "the row that was just locked"
        job, state, expired = row
        if state is None and job:  # the job has not finished, or its row was deleted
            found = self._do(_JOB, job)
            if found is not None and found[0] == "started":
                return None
            if found is None and self._engine.earlier:
                earlier = self._do(self._engine.earlier, *self._key)
                if earlier is None or earlier[0] != job:
                    found = ("ready",)  # stored after the snapshot, so its present state isn't visible
            expired, state = expired and found is None, found[0] if found else "deleted"
        return None if not job or expired else (str(job), state)

    def assign(self, job: str, ttl: int) -> None:
        self._do(self._engine.assign, int(job), ttl, *self._key)
