-- The beginning and end of batches and transactions, and the numbers of commits.

-- name: head
-- The beginning of every batch. It sets all that the batch needs, because the driver resets
-- sessions. sp_executesql restores the settings at its end.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = {s}.qsidecar_now();
DECLARE @wrote bigint = 0;

-- name: begin
-- Begins a transaction, in a batch without parameters: a batch with parameters has to end the
-- transaction that it begins. The first seven settings are those that filtered indexes need,
-- and they hold for the session: https://learn.microsoft.com/sql/t-sql/statements/create-index-transact-sql
-- All logins of the driver have them, so batches without a transaction do not set them. A
-- login's ARITHABORT can be OFF, but ANSI_WARNINGS implies it at compatibility level 90 and later:
-- https://learn.microsoft.com/sql/t-sql/statements/set-arithabort-transact-sql
SET ANSI_NULLS ON;
SET ANSI_PADDING ON;
SET ANSI_WARNINGS ON;
SET ARITHABORT ON;
SET CONCAT_NULL_YIELDS_NULL ON;
SET QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
SET IMPLICIT_TRANSACTIONS OFF;
SET XACT_ABORT ON;
SET NOCOUNT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;

-- name: greet
-- The server's version and its database's settings. (The database is found by its name: on
-- Azure, DB_ID() can differ from the database_id of sys.databases.)
-- sets 1
SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion')) AS version, CONVERT(nvarchar(128), SERVERPROPERTY('Edition')) AS edition,
  CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine, CONVERT(int, d.compatibility_level) AS level,
  CASE WHEN SERVERPROPERTY('babelfish') IS NULL THEN 0 ELSE 1 END AS babelfish, d.name,
  CONVERT(int, d.is_read_committed_snapshot_on) AS versions
FROM sys.databases AS d
WHERE d.name = DB_NAME();

-- name: mark
-- The end of every batch of a transaction. A transaction that wrote has the number of its
-- commit in its row of qsidecar_commits. If the row has a later number, the INSERT
-- fails, and with it the transaction: the statement seal has found that the commit did not happen.
-- @mark_handle bigint
-- @mark_lane int
-- @mark_number bigint
-- sets 1
IF @wrote > 0
BEGIN
  UPDATE {s}.qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO {s}.qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;

-- name: seal
-- Finds out whether the commit with a number happened. If the row does not have the number, a
-- later number is written, so that the commit cannot happen any more. The UPDATE comes first:
-- it waits for a transaction that has changed the row.
-- @seal_handle bigint
-- @seal_lane int
-- @seal_number bigint
-- sets 1
BEGIN TRANSACTION;
UPDATE {s}.qsidecar_commits SET number = @seal_number + 1, at = @now
WHERE handle = @seal_handle AND pipeline = @seal_lane AND number < @seal_number;
DECLARE @seal_found bigint;
SELECT @seal_found = c.number
FROM {s}.qsidecar_commits AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
WHERE c.handle = @seal_handle AND c.pipeline = @seal_lane;
IF @seal_found IS NULL
BEGIN
  INSERT INTO {s}.qsidecar_commits (handle, pipeline, number, at) VALUES (@seal_handle, @seal_lane, @seal_number + 1, @now);
  SET @seal_found = @seal_number + 1;
END;
COMMIT TRANSACTION;
SELECT @seal_found AS found;

-- name: host
-- Whether the sidecar is alive that the transaction claims for, how often jobs of the
-- claims' queues were given back, which of these queues have limits, and which have group_ready.
-- @host_id bigint
-- @host_queues nvarchar(max)
-- sets 2
SELECT CASE WHEN EXISTS (SELECT 1 FROM {s}.qsidecar_sidecars AS h WHERE h.sidecar = @host_id AND h.dead = 0 AND h.has_left = 0) THEN 1 ELSE 0 END AS alive;
DECLARE @host_queue TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @host_queue (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@host_queues) WITH (n int, queue nvarchar(4000)) AS x;
SELECT x.n, COALESCE(r.requeues, 0) AS requeues, CASE WHEN q.max_claimed IS NULL AND q.rate IS NULL THEN 0 ELSE 1 END AS gated,
  CASE WHEN q.group_ready IS NULL THEN 0 ELSE 1 END AS fair
FROM @host_queue AS x
LEFT JOIN {s}.qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = x.queue
LEFT JOIN {s}.qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
