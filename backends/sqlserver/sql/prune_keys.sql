-- Deletes expired keys, and the commits of handles that were closed long ago. It answers with
-- how many keys.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over keys that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @prune_limit bigint
-- sets 1
DECLARE @prune_key TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name varbinary(510) NOT NULL, PRIMARY KEY (queue, name));
INSERT INTO @prune_key (queue, name)
SELECT TOP (@prune_limit) r.queue, r.name
FROM {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_expiring), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN {s}.qsidecar_keys AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.queue = k.queue AND r.name = k.name
WHERE k.state IS NOT NULL AND k.expires_at <= @now
ORDER BY k.expires_at
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DELETE k
FROM @prune_key AS x INNER JOIN {s}.qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
WHERE k.state IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @prune_gone bigint = @@ROWCOUNT;
DECLARE @prune_commit TABLE (handle bigint NOT NULL, pipeline int NOT NULL, PRIMARY KEY (handle, pipeline));
INSERT INTO @prune_commit (handle, pipeline)
SELECT TOP (100) c.handle, c.pipeline
FROM {s}.qsidecar_commits AS c WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE c.at < DATEADD(day, -7, @now);
DELETE c
FROM @prune_commit AS x INNER JOIN {s}.qsidecar_commits AS c WITH (ROWLOCK, FORCESEEK) ON c.handle = x.handle AND c.pipeline = x.pipeline
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT @prune_gone AS gone;
