-- Retries some of a queue's dead jobs, after a position.
-- @retry_queue varchar(128)
-- @retry_at datetime2(6)
-- @retry_id bigint
-- @retry_limit bigint
-- @retry_whole bigint
-- sets 1
{retry_head}
INSERT INTO @retry (id, n, finished_at, name, [key])
SELECT r.id, ROW_NUMBER() OVER (ORDER BY r.finished_at, r.id) - 1, r.finished_at, CONVERT(varbinary(510), r.[key]), r.[key]
FROM (
  SELECT TOP (@retry_limit) j.id, j.finished_at, j.[key]
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, UPDLOCK, ROWLOCK)
  WHERE j.finished_at IS NOT NULL AND j.queue = @retry_queue AND j.state = 'dead'
    AND j.finished_at >= @retry_at AND (j.finished_at > @retry_at OR j.id > @retry_id)
  ORDER BY j.finished_at, j.id
) AS r
OPTION (KEEPFIXED PLAN);
{retry_tail}
