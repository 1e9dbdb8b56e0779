-- parameters: @locking_ids nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @locking TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @locking (id)
SELECT x.id FROM OPENJSON(@locking_ids) WITH (id bigint) AS x;
SELECT j.id, CASE WHEN j.run_at IS NOT NULL THEN 'scheduled' WHEN j.state = 'ready' AND j.group_name IS NOT NULL THEN 'blocked' ELSE j.state END AS state, COALESCE(j.group_name, j.admitted_group, N'') AS group_name
FROM @locking AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = x.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
