-- Deletes the rows of dead sidecars that own no job.
-- sets 0
DELETE h
FROM {s}.qsidecar_sidecars AS h WITH (ROWLOCK)
WHERE h.dead = 1 AND NOT EXISTS (
  SELECT 1 FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK) WHERE j.state = 'claimed' AND j.owner = h.sidecar)
OPTION (LOOP JOIN, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
