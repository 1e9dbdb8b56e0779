-- Whether a retry of all dead jobs of a queue would give one key to two.
-- @taken_queue varchar(128)
-- sets 1
SELECT CASE
    WHEN EXISTS (
      SELECT 1
      FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK)
      INNER JOIN {s}.qsidecar_keys AS k ON k.queue = j.queue AND k.name = CONVERT(varbinary(510), j.[key])
      WHERE j.finished_at IS NOT NULL AND j.queue = @taken_queue AND j.state = 'dead' AND j.[key] IS NOT NULL
        AND k.job <> j.id AND (k.state IS NULL OR k.expires_at > @now)) THEN 1
    WHEN EXISTS (
      SELECT CONVERT(varbinary(510), j.[key])
      FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK)
      WHERE j.finished_at IS NOT NULL AND j.queue = @taken_queue AND j.state = 'dead' AND j.[key] IS NOT NULL
      GROUP BY CONVERT(varbinary(510), j.[key])
      HAVING COUNT(*) > 1) THEN 1
    ELSE 0 END AS taken
OPTION (KEEPFIXED PLAN);
