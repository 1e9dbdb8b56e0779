-- parameters: @around_prune bigint, @around_owners bigint, @around_schedules bigint, @around_batches bigint, @around_groups bigint, @around_segments nvarchar(max), @around_queues nvarchar(max), @around_sidecar bigint
-- result sets: 5
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT @now AS now,
  (SELECT TOP (1) j.run_at FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), READPAST, READCOMMITTEDLOCK)
    WHERE j.run_at IS NOT NULL ORDER BY j.run_at) AS run_at,
  (SELECT TOP (1) j.due_at FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_due), READPAST, READCOMMITTEDLOCK)
    WHERE j.due_at IS NOT NULL ORDER BY j.due_at) AS due_at,
  (SELECT TOP (1) j.start_before FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_expiring), READPAST, READCOMMITTEDLOCK)
    WHERE j.start_before IS NOT NULL AND j.claimed_at IS NULL AND j.finished_at IS NULL ORDER BY j.start_before) AS expire_at,
  CASE WHEN EXISTS (SELECT 1 FROM [qsidecar].qsidecar_sidecars AS h WITH (READPAST, READCOMMITTEDLOCK) WHERE h.dead = 1) THEN 1 ELSE 0 END AS dead,
  (SELECT TOP (1) j.prune_at FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_prunable), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE @around_prune = 1 AND j.prune_at IS NOT NULL AND j.prune_at <= @now ORDER BY j.prune_at) AS expired,
  COALESCE((SELECT TOP (1) k.expires_at FROM [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_prunable), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE @around_prune = 1 AND k.state IS NOT NULL AND k.expires_at <= @now ORDER BY k.expires_at),
    (SELECT TOP (1) @now FROM [qsidecar].qsidecar_commits AS c WITH (READPAST, READCOMMITTEDLOCK)
    WHERE @around_prune = 1 AND c.at < DATEADD(day, -7, @now))) AS keys,
  (SELECT TOP (1) x.next_at FROM [qsidecar].qsidecar_schedules AS x WITH (INDEX (qsidecar_schedules_next), READPAST, READCOMMITTEDLOCK)
    WHERE x.next_at IS NOT NULL AND x.adopted <= @around_schedules ORDER BY x.next_at) AS fire_at,
  CASE WHEN @around_batches = 1 AND (EXISTS (SELECT 1 FROM [qsidecar].qsidecar_batch_notes AS n WITH (READPAST, READCOMMITTEDLOCK))
    OR EXISTS (SELECT 1 FROM [qsidecar].qsidecar_batches AS b WITH (INDEX (qsidecar_batches_state), FORCESEEK, READPAST, READCOMMITTEDLOCK) WHERE b.state = 'closed')
    OR EXISTS (SELECT 1 FROM [qsidecar].qsidecar_batches AS b WITH (INDEX (qsidecar_batches_state), FORCESEEK, READPAST, READCOMMITTEDLOCK) WHERE b.state = 'cancelling')
    OR EXISTS (SELECT 1 FROM [qsidecar].qsidecar_batches AS b WITH (INDEX (qsidecar_batches_expire), FORCESEEK, READPAST, READCOMMITTEDLOCK)
      WHERE b.expires_at <= DATEDIFF_BIG(millisecond, '1970-01-01', @now))) THEN 1 ELSE 0 END AS batches,
  CASE WHEN @around_groups = 1 AND (EXISTS (SELECT 1 FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
      WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue > '')
    OR EXISTS (SELECT 1 FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
      WHERE j.admitted_group IS NOT NULL AND j.queue > '')) THEN 1 ELSE 0 END AS groups
OPTION (KEEPFIXED PLAN);
DECLARE @around_owner TABLE (owner bigint NOT NULL PRIMARY KEY);
DECLARE @around_last bigint = -9223372036854775808;
DECLARE @around_next bigint = NULL;
IF @around_owners = 1
  SELECT TOP (1) @around_next = j.owner
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'claimed' AND j.owner >= @around_last
  ORDER BY j.owner
  OPTION (KEEPFIXED PLAN);
WHILE @around_next IS NOT NULL
BEGIN
  INSERT INTO @around_owner (owner) VALUES (@around_next);
  SET @around_last = @around_next;
  SET @around_next = NULL;
  SELECT TOP (1) @around_next = j.owner
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'claimed' AND j.owner > @around_last
  ORDER BY j.owner
  OPTION (KEEPFIXED PLAN);
END;
SELECT o.owner FROM @around_owner AS o
WHERE o.owner <> 0 AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_sidecars AS h WHERE h.sidecar = o.owner AND h.dead = 0);
DECLARE @around_segment TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, policy int NOT NULL,
  highest smallint NOT NULL, lowest smallint NOT NULL, low bigint NOT NULL, high bigint NOT NULL);
INSERT INTO @around_segment (n, queue, policy, highest, lowest, low, high)
SELECT x.n, x.queue, x.policy, x.highest, x.lowest, x.low, x.high
FROM OPENJSON(@around_segments) WITH (n int, queue nvarchar(4000), policy int, highest smallint, lowest smallint, low bigint, high bigint) AS x;
SELECT x.policy
FROM @around_segment AS x
CROSS APPLY (
  SELECT TOP (1) j.id
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = x.queue AND j.priority = x.highest AND j.position > x.low AND j.position <= x.high
) AS r
WHERE x.highest = x.lowest
UNION ALL
SELECT x.policy
FROM @around_segment AS x
CROSS APPLY (
  SELECT TOP (1) j.id
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = x.queue AND j.priority <= x.highest AND j.priority >= x.lowest
) AS r
WHERE x.highest > x.lowest
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @around_queue TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @around_queue (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@around_queues) WITH (n int, queue nvarchar(4000)) AS x;
SELECT x.n, r.requeues
FROM @around_queue AS x INNER JOIN [qsidecar].qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT c.token_sidecar, c.token_number
FROM [qsidecar].qsidecar_cancelled AS c WITH (FORCESEEK)
WHERE c.owner = @around_sidecar
OPTION (KEEPFIXED PLAN);
