-- Allows claims of a queue again. It answers with whether a job is ready.
-- @resume_queue varchar(128)
-- sets 1
UPDATE {s}.qsidecar_queues SET paused = 0 WHERE queue = @resume_queue AND paused = 1;
SET @wrote = @wrote + 1;
SELECT CASE WHEN EXISTS (
  SELECT 1 FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.queue = @resume_queue) THEN 1 ELSE 0 END AS ready
OPTION (KEEPFIXED PLAN);
