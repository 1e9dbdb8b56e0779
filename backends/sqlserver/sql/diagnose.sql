-- What qsidecar check asks the server.

-- name: examine_settings
-- What the database is set to.
SELECT CONVERT(int, d.is_read_committed_snapshot_on) AS rcsi, d.snapshot_isolation_state_desc AS snapshot, d.delayed_durability_desc AS durability,
  CONVERT(int, d.is_auto_close_on) AS auto_close, CONVERT(nvarchar(128), DATABASEPROPERTYEX(d.name, 'Updateability')) AS updateability,
  SUSER_SNAME() AS login, USER_NAME() AS who, SYSUTCDATETIME() AS now,
  CONVERT(int, d.is_parameterization_forced) AS forced
FROM sys.databases AS d
WHERE d.name = DB_NAME();

-- name: examine_rights
-- The rights that a sidecar needs and that this login has; if there are no tables,
-- whether it has the right to create them.
SELECT x.name, x.need, COALESCE(HAS_PERMS_BY_NAME(x.name, x.class, x.need), 0) AS has
FROM (VALUES
{RIGHTS}
) AS x (name, class, need);

-- name: examine_indexes
-- The indexes of the tables.
SELECT i.name, CONVERT(int, i.is_disabled) AS disabled, CONVERT(int, i.allow_row_locks) AS row_locks
FROM sys.indexes AS i
WHERE i.object_id IN (OBJECT_ID(N'{s}.qsidecar_jobs'), OBJECT_ID(N'{s}.qsidecar_keys'), OBJECT_ID(N'{s}.qsidecar_leases')) AND i.name IS NOT NULL;

-- name: examine_triggers
-- The triggers of other programs on the jobs.
SELECT t.name, CONVERT(int, t.is_instead_of_trigger) AS instead
FROM sys.triggers AS t
WHERE t.parent_id = OBJECT_ID(N'{s}.qsidecar_jobs') AND t.is_disabled = 0;

-- name: examine_overdue
-- Jobs that maintenance had to change more than a minute ago, by queue: claimed ones whose
-- claims ended, and scheduled ones whose time came. Of each kind it reads at most a thousand.
SELECT x.queue, 'claimed' AS state, COUNT_BIG(*) AS jobs, MIN(x.id) AS example
FROM (
  SELECT TOP (1000) j.id, j.queue
  FROM {s}.qsidecar_jobs AS j WITH (READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'claimed' AND (j.due_at < DATEADD(minute, -1, SYSUTCDATETIME())
    OR j.lease_ms IS NULL AND j.owner <> 0 AND j.claimed_at < DATEADD(minute, -1, SYSUTCDATETIME())
      AND NOT EXISTS (SELECT 1 FROM {s}.qsidecar_sidecars AS h WHERE h.sidecar = j.owner AND h.dead = 0))
) AS x
GROUP BY x.queue
UNION ALL
SELECT y.queue, 'scheduled' AS state, COUNT_BIG(*) AS jobs, MIN(y.id) AS example
FROM (
  SELECT TOP (1000) j.id, j.queue
  FROM {s}.qsidecar_jobs AS j WITH (READPAST, READCOMMITTEDLOCK)
  WHERE j.run_at IS NOT NULL AND j.run_at < DATEADD(minute, -1, SYSUTCDATETIME())
) AS y
GROUP BY y.queue;
