-- parameters: @probe_queue varchar(128), @probe_pieces nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SET LOCK_TIMEOUT 0;
DECLARE @probe TABLE (n int NOT NULL PRIMARY KEY, priority smallint NOT NULL, low bigint NOT NULL, high bigint NOT NULL);
INSERT INTO @probe (n, priority, low, high)
SELECT x.n, x.priority, x.low, x.high
FROM OPENJSON(@probe_pieces) WITH (n int, priority smallint, low bigint, high bigint) AS x;
SELECT x.n, r.position
FROM @probe AS x
CROSS APPLY (
  SELECT TOP (1) j.position
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, ROWLOCK, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @probe_queue AND j.priority = x.priority AND j.position > x.low AND j.position <= x.high
  ORDER BY j.position
) AS r
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
