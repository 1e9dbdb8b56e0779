-- parameters: @late_ids nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @late TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @late (id)
SELECT x.id FROM OPENJSON(@late_ids) WITH (id bigint) AS x;
SELECT j.id, j.queue, CASE WHEN j.on_expiry = 'delete' THEN 1 ELSE 0 END AS removed
FROM @late AS x
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = x.id
WHERE j.claimed_at IS NULL AND j.finished_at IS NULL AND j.start_before <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
