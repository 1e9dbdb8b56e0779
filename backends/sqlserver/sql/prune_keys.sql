-- Forgets keys whose time is over, and the commits of handles that are long closed.
-- It answers with how many keys.
-- @prune_limit bigint
-- sets 1
DECLARE @prune_key TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name varbinary(510) NOT NULL, PRIMARY KEY (queue, name));
INSERT INTO @prune_key (queue, name)
SELECT TOP (@prune_limit) k.queue, k.name
FROM {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_over), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE k.state IS NOT NULL AND k.expires_at <= @now
ORDER BY k.expires_at;
DELETE k
FROM @prune_key AS x INNER JOIN {s}.qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
WHERE k.state IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);
DECLARE @prune_gone bigint = @@ROWCOUNT;
DELETE TOP (100) FROM {s}.qsidecar_commits WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE at < DATEADD(day, -7, @now);
SET @wrote = @wrote + 1;
SELECT @prune_gone AS gone;
