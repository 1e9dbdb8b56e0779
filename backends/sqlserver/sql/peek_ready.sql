-- Ready jobs after a position: first those of its priority, then those of lower ones.
-- @peek_queue varchar(128)
-- @peek_priority smallint
-- @peek_position bigint
-- @peek_limit bigint
-- sets 2
DECLARE @peek_left bigint = @peek_limit;
SELECT TOP (@peek_left) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.queue = @peek_queue AND j.priority = @peek_priority AND j.position > @peek_position
ORDER BY j.position
OPTION (KEEPFIXED PLAN);
SET @peek_left = @peek_left - @@ROWCOUNT;
SELECT TOP (@peek_left) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.queue = @peek_queue AND j.priority < @peek_priority
ORDER BY j.priority DESC, j.position
OPTION (KEEPFIXED PLAN);
