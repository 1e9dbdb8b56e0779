-- Schema version 2: the leases of jobs whose rows are in tables that another
-- application owns. Nothing is added to those tables. A row here lives from the first claim of
-- its job until the job is settled. All times are milliseconds since 1970, UTC.

IF OBJECT_ID(N'{s}.qsidecar_leases') IS NULL
  CREATE TABLE {s}.qsidecar_leases (
    id             bigint        NOT NULL CONSTRAINT qsidecar_leases_id PRIMARY KEY, -- random, so that no lease ever means another row
    queue          nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    item           nvarchar(255) COLLATE Latin1_General_100_BIN2 NOT NULL, -- the id of the job's row
    fence          bigint        NOT NULL,
    attempts       int           NOT NULL, -- counted deliveries
    losses         int           NOT NULL, -- failures in a row other than nacks
    not_before     bigint        NULL, -- not claimed earlier; the largest number: dead
    -- the policy of the last claim
    claim_max      int           NOT NULL,
    backoff_ms     bigint        NOT NULL,
    backoff_max_ms bigint        NOT NULL,
    -- the claim; NULL, all of it: there is none
    token_host     bigint        NULL,
    token_number   bigint        NULL,
    owner          bigint        NULL, -- the sidecar that a session lease depends on; 0: none
    lease_ms       bigint        NULL, -- NULL: a session lease
    deadline       bigint        NULL, -- the run's; nothing moves it
    due_at         bigint        NULL, -- the earlier of the timed lease's end and the deadline
    claimed_at     bigint        NULL,
    worker         nvarchar(400) NULL,
    shown          nvarchar(max) NULL, -- a JSON map: what the claim wrote into the job's row, by role
    failures       nvarchar(max) NULL, -- a JSON list, the latest last
    changed_at     bigint        NOT NULL
  );
GO

-- A statement here touches a thousand rows at most, as in the jobs' table.
IF SERVERPROPERTY('babelfish') IS NULL
  EXEC (N'ALTER TABLE {s}.qsidecar_leases SET (LOCK_ESCALATION = DISABLE)');
GO

IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_leases')
  AND (name = N'qsidecar_leases_item' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_leases_item%'))
  CREATE UNIQUE INDEX qsidecar_leases_item ON {s}.qsidecar_leases (queue, item);
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_leases')
  AND (name = N'qsidecar_leases_owned' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_leases_owned%'))
  CREATE INDEX qsidecar_leases_owned ON {s}.qsidecar_leases (owner, id)
  WHERE token_host IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_leases')
  AND (name = N'qsidecar_leases_due' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_leases_due%'))
  CREATE INDEX qsidecar_leases_due ON {s}.qsidecar_leases (due_at)
  WHERE due_at IS NOT NULL;
GO

UPDATE {s}.qsidecar_meta SET version = 2 WHERE version < 2;
GO
