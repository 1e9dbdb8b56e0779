-- parameters: @find_keys nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @find_key TABLE (id bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name varbinary(510) NOT NULL);
INSERT INTO @find_key (id, queue, name)
SELECT x.id, x.queue, CONVERT(varbinary(510), x.[key])
FROM OPENJSON(@find_keys) WITH (id bigint, queue nvarchar(4000), [key] nvarchar(4000)) AS x;
DECLARE @find_free_key TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find_free_key (id)
SELECT x.id
FROM @find_key AS x INNER JOIN [qsidecar].qsidecar_keys AS k WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON k.queue = x.queue AND k.name = x.name
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.id
FROM @find_key AS x INNER JOIN [qsidecar].qsidecar_keys AS k WITH (FORCESEEK, READUNCOMMITTED) ON k.queue = x.queue AND k.name = x.name
WHERE NOT EXISTS (SELECT 1 FROM @find_free_key AS f WHERE f.id = x.id)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
