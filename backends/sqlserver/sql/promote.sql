-- Makes due jobs ready, in the order in which they are due: at most a thousand. It
-- answers with the queue of each.
-- @promote_limit bigint
-- sets 1
DECLARE @promote_base bigint;
SET @promote_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @promote TABLE (id bigint NOT NULL PRIMARY KEY, run_at datetime2(6) NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @promote (id, run_at, queue)
SELECT TOP (@promote_limit) j.id, j.run_at, j.queue
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.state = 'pending' AND j.run_at IS NOT NULL AND j.run_at <= @now
ORDER BY j.run_at, j.id;
{promote_tail}
