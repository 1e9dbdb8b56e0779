-- parameters: @lost_owners nvarchar(max), @lost_limit bigint
-- result sets: 2
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
DECLARE @lost TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @lost (id)
SELECT TOP (@lost_limit) r.id
FROM @lost_owner AS o
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.owner = o.owner
INNER JOIN [qsidecar].qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT 'sidecar_lost' AS cause, j.id, j.queue, COALESCE(j.[key], N'') AS name, j.priority, j.position, j.fence,
  j.token_sidecar, j.token_number, j.owner, COALESCE(j.lease_ms, 0) AS lease_ms, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms,
  j.prefetched, j.prefetch_losses, CASE WHEN j.retention_done_ms IS NULL THEN 0 ELSE 1 END AS kept, CASE WHEN j.worker IS NULL THEN 0 ELSE 1 END AS has_worker,
  COALESCE(j.batch, 0) AS batch, CASE WHEN j.key_state = 'pending' THEN 1 ELSE 0 END AS pending, COALESCE(j.admitted_group, N'') AS admitted_group
FROM @lost AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT COUNT_BIG(*) AS found FROM @lost AS x;
