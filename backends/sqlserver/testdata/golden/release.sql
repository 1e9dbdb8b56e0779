-- parameters: @release_queue varchar(128), @release_ids nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @release TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY);
INSERT INTO @release (n, id)
SELECT x.n, x.id FROM OPENJSON(@release_ids) WITH (n int, id bigint) AS x;
SELECT x.n, '' AS cause, j.id, j.queue, j.token_host, j.token_number, CASE WHEN j.[key] IS NULL THEN 0 ELSE 1 END AS keyed, j.priority, j.position,
  j.fence, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms, j.ahead, j.unrecorded
FROM @release AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @release_queue AND j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
