-- parameters: @look_leases nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @look TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, host bigint NOT NULL, number bigint NOT NULL, owner bigint NULL);
INSERT INTO @look (n, id, host, number, owner)
SELECT x.n, x.id, x.host, x.number, x.owner
FROM OPENJSON(@look_leases) WITH (n int, id bigint, host bigint, number bigint, owner bigint) AS x;
SELECT x.n, '' AS cause, j.id, j.queue, j.token_host, j.token_number, CASE WHEN j.[key] IS NULL THEN 0 ELSE 1 END AS keyed, j.priority, j.position,
  j.fence, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms, j.ahead, j.unrecorded
FROM @look AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.token_host = x.host AND j.token_number = x.number AND (x.owner IS NULL OR j.owner = x.owner)
OPTION (LOOP JOIN, FORCE ORDER);
