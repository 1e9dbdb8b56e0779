-- parameters: @find_ids nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @find TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find (id)
SELECT x.id FROM OPENJSON(@find_ids) WITH (id bigint) AS x;
DECLARE @find_free TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find_free (id)
SELECT j.id
FROM @find AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = x.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT j.id
FROM @find AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK, READUNCOMMITTED) ON j.id = x.id
WHERE j.state = 'claimed' AND NOT EXISTS (SELECT 1 FROM @find_free AS f WHERE f.id = j.id)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
