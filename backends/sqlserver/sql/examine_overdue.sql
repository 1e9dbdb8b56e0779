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
