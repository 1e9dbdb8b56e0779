-- parameters: @lost_owners nvarchar(max), @lost_limit bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @lost_owner TABLE (owner bigint NOT NULL PRIMARY KEY);
INSERT INTO @lost_owner (owner)
SELECT x.owner FROM OPENJSON(@lost_owners) WITH (owner bigint) AS x;
DECLARE @lost TABLE (id bigint NOT NULL PRIMARY KEY, timed tinyint NOT NULL);
INSERT INTO @lost (id, timed)
SELECT TOP (@lost_limit) j.id, CASE WHEN j.lease_ms IS NULL THEN 0 ELSE 1 END
FROM @lost_owner AS o
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.owner = o.owner
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
UPDATE j SET owner = 0
FROM @lost AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE x.timed = 1 AND j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
SET @wrote = @wrote + @@ROWCOUNT;
SELECT 'sidecar_lost' AS cause, j.id, j.queue, COALESCE(j.[key], N'') AS name, j.priority, j.position, j.fence,
  j.token_sidecar, j.token_number, j.owner, COALESCE(j.lease_ms, 0) AS lease_ms, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms,
  j.prefetched, j.prefetch_losses, CASE WHEN j.retention_done_ms IS NULL THEN 0 ELSE 1 END AS kept, CASE WHEN j.worker IS NULL THEN 0 ELSE 1 END AS has_worker
FROM @lost AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE x.timed = 0 AND j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
SELECT COUNT_BIG(*) AS found FROM @lost AS x;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
