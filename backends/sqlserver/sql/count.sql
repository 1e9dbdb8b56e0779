-- Counts all jobs of a queue in one state.
-- @count_queue varchar(128)
-- sets 1
SELECT COUNT_BIG(*) AS n FROM {s}.qsidecar_jobs AS j WITH (INDEX ({index}), READPAST, READCOMMITTEDLOCK)
WHERE {where} AND j.queue = @count_queue
OPTION (KEEPFIXED PLAN);
