"""Keys of jobs that are stored by a plain INSERT: what the sidecar does for an enqueue with a key, in the caller's transaction.

The row of a key in qsidecar_keys is locked until the transaction ends, so that one job is stored for it, whoever
else has it in hand; a rollback forgets the key with the job.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

# Runs a statement with its parameters, and returns the first row of what it answers, if it answers.
Run = Callable[[str, Sequence[Any]], Optional[Sequence[Any]]]


class _Engine(NamedTuple):
    """{keys} and {jobs} are the tables, {p} is a parameter."""

    take: str  # makes the key's row if there is none (as that of a job that is gone), and locks it
    look: str  # its job (0: a new row), its state, whether its time is over
    own: str  # makes the key this job's: of its id, the time in milliseconds, queue and key


_MYSQL_LOOK = "SELECT job, state, expires_at <= UTC_TIMESTAMP(6) FROM {keys} WHERE queue = {p} AND `key` = {p} FOR UPDATE"
_SQLITE_NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

_ENGINES: Dict[str, _Engine] = {
    "postgresql": _Engine(
        "INSERT INTO {keys} AS k (queue, key, job, expires_at, state) VALUES ({p}, {p}, 0, clock_timestamp(), 'deleted') "
        "ON CONFLICT (queue, key) DO UPDATE SET job = k.job",
        "SELECT job, state, expires_at <= clock_timestamp() FROM {keys} WHERE queue = {p} AND key = {p}",
        "UPDATE {keys} SET job = {p}, state = NULL, expires_at = clock_timestamp() + {p} * interval '1 millisecond' "
        "WHERE queue = {p} AND key = {p}",
    ),
    "mysql": _Engine(
        "INSERT INTO {keys} (queue, `key`, job, expires_at, state) VALUES ({p}, {p}, 0, UTC_TIMESTAMP(6), 'deleted') "
        "ON DUPLICATE KEY UPDATE job = job",
        _MYSQL_LOOK,
        "UPDATE {keys} SET job = {p}, state = NULL, expires_at = UTC_TIMESTAMP(6) + INTERVAL {p} * 1000 MICROSECOND "
        "WHERE queue = {p} AND `key` = {p}",
    ),
    "sqlite": _Engine(
        f"INSERT INTO {{keys}} (queue, key, job, expires_at, state) VALUES ({{p}}, {{p}}, 0, {_SQLITE_NOW}, 'deleted') "
        "ON CONFLICT (queue, key) DO UPDATE SET job = job",
        f"SELECT job, state, expires_at <= {_SQLITE_NOW} FROM {{keys}} WHERE queue = {{p}} AND key = {{p}}",
        f"UPDATE {{keys}} SET job = {{p}}, state = NULL, expires_at = {_SQLITE_NOW} + {{p}} WHERE queue = {{p}} AND key = {{p}}",
    ),
}


class Key:
    def __init__(self, run: Run, engine: str, placeholder: str, schema: str, queue: str, key: str) -> None:
        if engine not in _ENGINES:
            raise ValueError(f"a key in a transaction of one's own is not written for {engine}: use Client.enqueue")
        prefix = f"{schema}." if engine == "postgresql" else ""
        self._words = {"keys": f"{prefix}qsidecar_keys", "jobs": f"{prefix}qsidecar_jobs", "p": placeholder}
        self._engine = _ENGINES[engine]
        self._run = run
        # MySQL's column has bytes: a text would be stored in the connection's character set.
        self._which = queue, key.encode() if engine == "mysql" else key

    def _do(self, statement: str, *values: Any) -> Optional[Sequence[Any]]:
        return self._run(statement.format(**self._words), values)

    def first(self) -> Optional[Tuple[str, str]]:
        """The id and the state of the job that has the key; None: it is free, and this transaction's."""
        self._do(self._engine.take, *self._which)
        row = self._do(self._engine.look, *self._which)
        assert row is not None, "the row that was just locked"
        job, state, over = row
        if state is None and job:  # it has not ended, or was deleted by hand
            found = self._do("SELECT state FROM {jobs} WHERE id = {p}", job)
            over, state = over and found is None, found[0] if found else "deleted"
        return None if not job or over else (str(job), state)

    def own(self, job: str, ttl: int) -> None:
        self._do(self._engine.own, int(job), ttl, *self._which)
