-- qsidecar's tables in SQL Server 2016 and later and Azure SQL, schema version 1.
--
-- A plain INSERT is an enqueue, in any program's own transaction:
--
--   INSERT INTO {s}.qsidecar_jobs (queue, payload) VALUES ('mail', CONVERT(varbinary(max), 'hello'));
--
-- Public columns: queue, payload, priority, headers, max_attempts, run_at (UTC),
-- group_name, start_before (UTC), on_expiry, retain_ms. All others are the sidecar's own. A job with a run_at waits for it. A payload is
-- bytes: CONVERT(varbinary(max), CONVERT(varchar(max), N'text' COLLATE
-- Latin1_General_100_CI_AS_SC_UTF8)) converts a text to UTF-8 from SQL Server 2019 on.
--
-- The tables have filtered indexes: an INSERT needs the settings that programs have
-- which connect by ODBC, OLE DB, JDBC, .NET or go-mssqldb. sqlcmd needs -I; a
-- program that uses DB-Library, a job of SQL Server Agent and bcp begin with SET
-- QUOTED_IDENTIFIER, ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT,
-- CONCAT_NULL_YIELDS_NULL ON.
--
-- Texts that are compared have a binary collation: queues are ASCII, keys are
-- UTF-16. Because SQL Server passes over blanks at the end when it compares texts,
-- in every collation, the keys' own table has their bytes, and the sidecar adds U+0001
-- to the name of a group that ends with a blank.
--
-- There is no trigger, so that an INSERT can have an OUTPUT clause. Delete jobs
-- with the sidecar: a row that is deleted by hand leaves its failures behind.

IF SCHEMA_ID({'s}) IS NULL EXEC (N'CREATE SCHEMA {s}');
GO

-- One sequence for ids and positions. Each statement of the sidecar draws
-- one, and has the thousand from there on.
IF OBJECT_ID(N'{s}.qsidecar_sequence') IS NULL
  CREATE SEQUENCE {s}.qsidecar_sequence AS bigint START WITH 1000 INCREMENT BY 1000;
GO

-- The clock of every statement. Tests replace it.
IF OBJECT_ID(N'{s}.qsidecar_now') IS NULL
  EXEC (N'CREATE FUNCTION {s}.qsidecar_now() RETURNS datetime2(6) WITH SCHEMABINDING AS BEGIN RETURN SYSUTCDATETIME(); END');
GO

IF OBJECT_ID(N'{s}.qsidecar_jobs') IS NULL
  CREATE TABLE {s}.qsidecar_jobs (
    id                bigint       NOT NULL DEFAULT (NEXT VALUE FOR {s}.qsidecar_sequence) CONSTRAINT qsidecar_jobs_id PRIMARY KEY, -- never reused
    position          bigint       NOT NULL DEFAULT (NEXT VALUE FOR {s}.qsidecar_sequence), -- order inside a priority
    enqueued_at       datetime2(6) NOT NULL DEFAULT (SYSUTCDATETIME()),
    ready_at          datetime2(6) NOT NULL DEFAULT (SYSUTCDATETIME()), -- when it became ready
    fence             bigint       NOT NULL DEFAULT (0),
    attempts          int          NOT NULL DEFAULT (0), -- counted deliveries
    losses            int          NOT NULL DEFAULT (0), -- failures in a row other than nacks and time-outs
    prefetch_losses   int          NOT NULL DEFAULT (0), -- sidecars lost in a row that had it prefetched
    priority          smallint     NOT NULL DEFAULT (0),
    max_attempts      smallint     NULL CONSTRAINT [max_attempts: use a number from 1 to 32767] CHECK (max_attempts >= 1),
    prefetched        tinyint      NOT NULL DEFAULT (0), -- 1: its delivery is not recorded and not in attempts
    queue             varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT [queue: use A-Z a-z 0-9 . _ : / - and do not start with . or -]
      CHECK (DATALENGTH(queue) BETWEEN 1 AND 128 AND queue NOT LIKE '%[^A-Za-z0-9._:/-]%' AND queue NOT LIKE '[.-]%' AND DATALENGTH(queue) = LEN(queue)),
    state             varchar(9)   COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT ('ready'), -- with a run_at it is scheduled: a plain INSERT has no trigger that writes that
    timeout_ms        bigint       NULL, -- the job's own
    retain_ms         bigint       NULL, -- how long the done job is kept at least; NULL: as the queue's are
    run_at            datetime2(6) NULL,
    start_before      datetime2(6) NULL, -- no attempt starts at this time or later; NULL: no limit
    on_expiry         varchar(6)   COLLATE Latin1_General_100_BIN2 NULL CONSTRAINT [on_expiry: use dead or delete] CHECK (on_expiry IN ('dead', 'delete')), -- what becomes of it at start_before; NULL: dead
    -- the policy of the last claim
    claim_max         int          NULL,
    backoff_ms        bigint       NULL,
    backoff_max_ms    bigint       NULL,
    retention_done_ms bigint       NULL, -- NULL: an ack deletes
    retention_dead_ms bigint       NULL, -- NULL: indefinitely
    -- the claim
    token_sidecar     bigint       NULL,
    token_number      bigint       NULL,
    owner             bigint       NULL, -- the sidecar that a session lease depends on; 0: none (a timed lease of a dead sidecar)
    lease_ms          bigint       NULL, -- NULL: a session lease
    deadline          datetime2(6) NULL, -- of the attempt; nothing extends it once a worker has the job
    due_at            datetime2(6) NULL, -- the earlier of the timed lease's end and the deadline, once a worker has the job
    claimed_at        datetime2(6) NULL,
    worker            nvarchar(400) NULL,
    -- the end
    finished_at       datetime2(6) NULL,
    prune_at          datetime2(6) NULL,
    [key]             nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL,
    group_name        nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL, -- a ready job with it is blocked: it waits for a slot of its group
    admitted_group    nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL, -- the group of a job that has a slot; group_name is NULL then
    group_noticed     tinyint      NULL, -- 1: of a blocked job, a sidecar has noticed it
    progress          tinyint      NULL, -- 1: its worker reported progress, now or in an earlier attempt
    batch             bigint       NULL, -- of which the job is a member; NULL: none
    key_state         varchar(7)   COLLATE Latin1_General_100_BIN2 NULL, -- start: its key is free once it has been claimed; pending: qsidecar_pending can have a row for it
    last_error        nvarchar(max) NULL, -- NULL: it has no row in qsidecar_failures
    headers           nvarchar(max) NULL CONSTRAINT [headers: use a JSON object with texts as values]
      CHECK (headers IS NULL OR (ISJSON(headers) = 1 AND LTRIM(headers) LIKE N'{%')),
    result            varbinary(max) NULL,
    payload           varbinary(max) NOT NULL DEFAULT (0x),
    CONSTRAINT qsidecar_position CHECK (position > 0),
    CONSTRAINT [group_name: use 1 to 255 letters, no blank at the end] CHECK (group_name IS NULL OR LEN(group_name) BETWEEN 1 AND 255 AND group_name NOT LIKE '% '),
    CONSTRAINT qsidecar_group CHECK (group_name IS NULL OR admitted_group IS NULL),
    CONSTRAINT [retain_ms: use a number from 1 to 316224000000] CHECK (retain_ms IS NULL OR retain_ms BETWEEN 1 AND 316224000000),
    -- A job that doesn't wait has no run_at, so that the jobs with one are those that are scheduled. Lists,
    -- counts and retention find finished jobs by finished_at.
    CONSTRAINT [state: leave it out (done and dead need a finished_at)] CHECK (state = 'ready' OR (state = 'scheduled' AND run_at IS NOT NULL)
      OR (state = 'claimed' AND run_at IS NULL AND token_sidecar IS NOT NULL) OR (state IN ('done', 'dead') AND run_at IS NULL AND finished_at IS NOT NULL))
  );
GO

-- A statement here touches a thousand rows at most. So many locks are never worth
-- the whole table's. (Babelfish has only row locks and rejects the option.)
IF SERVERPROPERTY('babelfish') IS NULL
  EXEC (N'ALTER TABLE {s}.qsidecar_jobs SET (LOCK_ESCALATION = DISABLE)');
GO

-- (Babelfish has a hash behind the name of each index.)
--
-- One filtered index for each query: a claim's index has only ready jobs, and a
-- claimed row is in as few indexes as possible. run_at and group_name are in the
-- first, because the server reads them for IS NULL.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_ready' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_ready%'))
  CREATE INDEX qsidecar_ready ON {s}.qsidecar_jobs (queue, priority DESC, position) INCLUDE (run_at, group_name)
  WHERE state = 'ready' AND run_at IS NULL AND group_name IS NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_scheduled' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_scheduled%'))
  CREATE INDEX qsidecar_scheduled ON {s}.qsidecar_jobs (run_at, id) INCLUDE (queue)
  WHERE run_at IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_delayed' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_delayed%'))
  CREATE INDEX qsidecar_delayed ON {s}.qsidecar_jobs (queue, run_at, id)
  WHERE run_at IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_owned' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_owned%'))
  CREATE INDEX qsidecar_owned ON {s}.qsidecar_jobs (owner, id) INCLUDE (queue, claimed_at)
  WHERE state = 'claimed';
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_due' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_due%'))
  CREATE INDEX qsidecar_due ON {s}.qsidecar_jobs (due_at)
  WHERE due_at IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_finished' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_finished%'))
  CREATE INDEX qsidecar_finished ON {s}.qsidecar_jobs (queue, state, finished_at, id)
  WHERE finished_at IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_prunable' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_prunable%'))
  CREATE INDEX qsidecar_prunable ON {s}.qsidecar_jobs (prune_at)
  WHERE prune_at IS NOT NULL;
GO
-- Waiting jobs that expire. The other columns are in it, because the server reads them for IS NULL.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_expiring' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_expiring%'))
  CREATE INDEX qsidecar_expiring ON {s}.qsidecar_jobs (start_before) INCLUDE (claimed_at, finished_at)
  WHERE start_before IS NOT NULL AND claimed_at IS NULL AND finished_at IS NULL;
GO


-- Those of groups. Blocked jobs, in the order in which each group admits them; the blocked
-- jobs that no sidecar has noticed; the jobs that have slots. The key of the last one has no
-- state: if a job that is claimed moved in the index, a scan could miss it.
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_blocked' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_blocked%'))
  CREATE INDEX qsidecar_blocked ON {s}.qsidecar_jobs (queue, group_name, priority DESC, position) INCLUDE (run_at)
  WHERE state = 'ready' AND run_at IS NULL AND group_name IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_arrived' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_arrived%'))
  CREATE INDEX qsidecar_arrived ON {s}.qsidecar_jobs (queue, group_name) INCLUDE (run_at, group_noticed)
  WHERE state = 'ready' AND run_at IS NULL AND group_name IS NOT NULL AND group_noticed IS NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_jobs')
  AND (name = N'qsidecar_admitted' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_admitted%'))
  CREATE INDEX qsidecar_admitted ON {s}.qsidecar_jobs (queue, admitted_group) INCLUDE (state)
  WHERE admitted_group IS NOT NULL;
GO

IF OBJECT_ID(N'{s}.qsidecar_failures') IS NULL
  CREATE TABLE {s}.qsidecar_failures (
    job     bigint        NOT NULL,
    fence   bigint        NOT NULL, -- of the delivery that failed
    attempt int           NOT NULL,
    cause   varchar(16)   COLLATE Latin1_General_100_BIN2 NOT NULL,
    message nvarchar(max) NOT NULL,
    at      datetime2(6)  NOT NULL,
    CONSTRAINT qsidecar_failures_of PRIMARY KEY (job, fence)
  );
GO

IF OBJECT_ID(N'{s}.qsidecar_keys') IS NULL
  CREATE TABLE {s}.qsidecar_keys (
    queue      varchar(128)   COLLATE Latin1_General_100_BIN2 NOT NULL,
    name       varbinary(510) NOT NULL, -- the key's bytes
    job        bigint         NOT NULL,
    expires_at datetime2(6)   NOT NULL,
    state      varchar(9)     COLLATE Latin1_General_100_BIN2 NULL, -- how the job ended; NULL: it has not
    CONSTRAINT qsidecar_keys_name PRIMARY KEY (queue, name)
  );
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_keys')
  AND (name = N'qsidecar_keys_job' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_keys_job%'))
  CREATE INDEX qsidecar_keys_job ON {s}.qsidecar_keys (job);
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_keys')
  AND (name = N'qsidecar_keys_prunable' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_keys_prunable%'))
  CREATE INDEX qsidecar_keys_prunable ON {s}.qsidecar_keys (expires_at) WHERE state IS NOT NULL;
GO

IF OBJECT_ID(N'{s}.qsidecar_sidecars') IS NULL
  CREATE TABLE {s}.qsidecar_sidecars (
    sidecar      bigint        NOT NULL CONSTRAINT qsidecar_sidecars_sidecar PRIMARY KEY, -- the sidecar's identity, as a signed number
    name         nvarchar(400) NOT NULL,
    heartbeats   bigint        NOT NULL,
    expires_at   datetime2(6)  NOT NULL,
    has_left     tinyint       NOT NULL DEFAULT (0),
    dead         tinyint       NOT NULL DEFAULT (0),
    timeout_ms   bigint        NULL, -- for how long its last heartbeat is valid
    stats_leader tinyint       NOT NULL DEFAULT (0), -- it reads the statistics of the queues for the metrics of all
    version      nvarchar(64)  NULL, -- of the sidecar's program; NULL: unknown
    leases       bigint        NULL -- number of its session leases at its last heartbeat; NULL: unknown
  );
GO

IF OBJECT_ID(N'{s}.qsidecar_queues') IS NULL
  CREATE TABLE {s}.qsidecar_queues (
    queue       varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT qsidecar_queues_queue PRIMARY KEY,
    paused      tinyint      NOT NULL,
    -- its limits over all sidecars
    max_claimed bigint       NULL, -- how many jobs can be claimed at a time; NULL: any number
    rate        bigint       NULL, -- how many jobs can start in rate_ms; NULL: any number
    rate_ms     bigint       NULL,
    burst       bigint       NULL, -- how many jobs can start at once; NULL: what the rate allows in a second
    group_limit bigint       NULL, -- how many jobs of a group can be claimed at a time; NULL: 1, or any number with group_ready
    group_skips tinyint      NULL, -- 1: a failed job gives up its slot of the group; NULL: it doesn't
    group_ready bigint       NULL, -- how many jobs of a group can be ready at a time; NULL: any number
    limits_at   datetime2(6) NULL -- when the limits were changed
  );
GO

-- A row for each queue with limits. Each claim from the queue locks and writes it.
IF OBJECT_ID(N'{s}.qsidecar_gates') IS NULL
  CREATE TABLE {s}.qsidecar_gates (
    queue   varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT qsidecar_gates_queue PRIMARY KEY,
    passes  bigint       NOT NULL, -- how often it was locked
    next_at bigint       NOT NULL -- when the rate has paid for all starts, in nanoseconds since 1970
  );
GO

-- The claimed jobs of queues with max_claimed. A row can outlive its claim until the next
-- claim from the queue.
IF OBJECT_ID(N'{s}.qsidecar_capped') IS NULL
  CREATE TABLE {s}.qsidecar_capped (
    queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    job   bigint       NOT NULL,
    CONSTRAINT qsidecar_capped_queue PRIMARY KEY (queue, job)
  );
GO

-- How often jobs returned to their old positions. In a table of its own, so that a
-- claim that reads whether its queue is paused doesn't wait for a transaction that counts.
IF OBJECT_ID(N'{s}.qsidecar_requeues') IS NULL
  CREATE TABLE {s}.qsidecar_requeues (
    queue    varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT qsidecar_requeues_queue PRIMARY KEY,
    requeues bigint       NOT NULL
  );
GO

-- The schedules. A sidecar moves next_at from one occurrence to the next, and stores the job, in
-- one transaction. All times are milliseconds since 1970, UTC.
IF OBJECT_ID(N'{s}.qsidecar_schedules') IS NULL
  CREATE TABLE {s}.qsidecar_schedules (
    name     nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT qsidecar_schedules_name PRIMARY KEY,
    queue    nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    cron     nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, -- when it runs; NULL: every_ms is set
    every_ms bigint                                        NULL,
    zone     nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL, -- the time zone of cron; NULL: UTC
    splay_ms bigint                                        NULL, -- its times are later by a part of this, which the name decides
    headers  nvarchar(max)                                 NULL, -- of its jobs: a JSON object
    priority bigint                                        NOT NULL,
    missed   nvarchar(8) COLLATE Latin1_General_100_BIN2   NOT NULL, -- what becomes of occurrences while no sidecar ran: one, all or skip
    overlap  nvarchar(8) COLLATE Latin1_General_100_BIN2   NOT NULL, -- what becomes of one while the last job isn't finished: allow or skip
    source   nvarchar(128) COLLATE Latin1_General_100_BIN2 NULL, -- the name of its declarations
    version  bigint                                        NOT NULL, -- of the definition, among those of the source
    adopted  bigint                                        NOT NULL, -- 1: only sidecars that have the queue in an adopted table fire it
    paused   bigint                                        NOT NULL, -- 1: it is
    next_at  bigint                                        NULL, -- when the next job is stored; NULL: never
    last_at  bigint                                        NULL, -- the last occurrence that stored a job
    last_job nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, -- its id
    payload  varbinary(max)                                NOT NULL -- of its jobs
  );
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_schedules')
  AND (name = N'qsidecar_schedules_next' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_schedules_next%'))
  CREATE INDEX qsidecar_schedules_next ON {s}.qsidecar_schedules (next_at)
  WHERE next_at IS NOT NULL;
GO

-- The batches. Each transaction that concerns the members of one writes its row first. All times
-- are milliseconds since 1970, UTC.
IF OBJECT_ID(N'{s}.qsidecar_batches') IS NULL
  CREATE TABLE {s}.qsidecar_batches (
    id           bigint                                        NOT NULL CONSTRAINT qsidecar_batches_id PRIMARY KEY, -- random
    state        nvarchar(16) COLLATE Latin1_General_100_BIN2  NOT NULL, -- open, closed, ended (its callback is stored), cancelling or cancelled
    fires_on     nvarchar(16) COLLATE Latin1_General_100_BIN2  NOT NULL, -- when the callback is stored: success (all jobs are done) or finish (all have ended)
    batch_key    nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, -- a second batch of the queue with it is this one
    parent       bigint                                        NULL, -- the batch of which the callback is a member
    changes      bigint                                        NOT NULL,
    created_at   bigint                                        NOT NULL,
    closed_at    bigint                                        NULL,
    ended_at     bigint                                        NULL,
    expires_at   bigint                                        NOT NULL, -- when the row is deleted
    done         bigint                                        NULL, -- after its end: how many jobs were done
    failed       bigint                                        NULL, -- and how many were not
    callback     nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, -- the id of the callback's job
    -- the callback
    queue        nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    priority     bigint                                        NOT NULL,
    max_attempts bigint                                        NULL,
    timeout_ms   bigint                                        NULL,
    group_name   nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
    headers      nvarchar(max)                                 NULL, -- a JSON object
    payload      varbinary(max)                                NOT NULL
  );
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_batches')
  AND (name = N'qsidecar_batches_key' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_batches_key%'))
  CREATE UNIQUE INDEX qsidecar_batches_key ON {s}.qsidecar_batches (queue, batch_key)
  WHERE batch_key IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_batches')
  AND (name = N'qsidecar_batches_state' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_batches_state%'))
  CREATE INDEX qsidecar_batches_state ON {s}.qsidecar_batches (state, id);
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_batches')
  AND (name = N'qsidecar_batches_expire' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_batches_expire%'))
  CREATE INDEX qsidecar_batches_expire ON {s}.qsidecar_batches (expires_at);
GO

-- The members of batches that have not ended. A job that is done and gone has its mark here.
IF OBJECT_ID(N'{s}.qsidecar_batch_members') IS NULL
  CREATE TABLE {s}.qsidecar_batch_members (
    batch bigint NOT NULL,
    done  bigint NOT NULL, -- 1: the job is done
    job   bigint NOT NULL, -- negative: the callback of this batch, which is not stored yet
    CONSTRAINT qsidecar_batch_members_batch PRIMARY KEY (batch, done, job)
  );
GO

-- Batches of which members ended. Whatever tries to end the batch then deletes the row.
IF OBJECT_ID(N'{s}.qsidecar_batch_notes') IS NULL
  CREATE TABLE {s}.qsidecar_batch_notes (
    batch bigint NOT NULL,
    note  bigint NOT NULL, -- random, so that no transaction waits for the row of another one
    CONSTRAINT qsidecar_batch_notes_batch PRIMARY KEY (batch, note)
  );
GO

-- What happened to the jobs of each queue, by hour, for 14 days. All sidecars add to it
-- about once an hour. `_other` has the queues beyond a sidecar's limit.
IF OBJECT_ID(N'{s}.qsidecar_history') IS NULL
  CREATE TABLE {s}.qsidecar_history (
    hour       bigint       NOT NULL, -- hours since 1970, UTC
    queue      varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    ready      bigint       NOT NULL, -- the most ready jobs that statistics showed; -1: none showed them
    enqueued   bigint       NOT NULL,
    acked      bigint       NOT NULL,
    failed     bigint       NOT NULL, -- attempts that ended without an ack, also snoozed ones
    run_1ms    bigint       NOT NULL, -- runs that took up to a millisecond
    run_5ms    bigint       NOT NULL, -- more than that, and up to 5 ms; and so on
    run_25ms   bigint       NOT NULL,
    run_100ms  bigint       NOT NULL,
    run_250ms  bigint       NOT NULL,
    run_500ms  bigint       NOT NULL,
    run_1s     bigint       NOT NULL,
    run_2500ms bigint       NOT NULL,
    run_5s     bigint       NOT NULL,
    run_10s    bigint       NOT NULL,
    run_30s    bigint       NOT NULL,
    run_1m     bigint       NOT NULL,
    run_5m     bigint       NOT NULL,
    run_30m    bigint       NOT NULL,
    run_1h     bigint       NOT NULL,
    run_more   bigint       NOT NULL, -- more than an hour
    CONSTRAINT qsidecar_history_hour PRIMARY KEY (hour, queue)
  );
GO

-- A row for some groups of a queue each. An admission locks and writes it before it counts.
IF OBJECT_ID(N'{s}.qsidecar_stripes') IS NULL
  CREATE TABLE {s}.qsidecar_stripes (
    queue  varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    stripe int          NOT NULL,
    passes bigint       NOT NULL, -- how often it was locked
    CONSTRAINT qsidecar_stripes_queue PRIMARY KEY (queue, stripe)
  );
GO

-- Groups in which possibly a job has to be admitted. The transaction that freed a slot, or
-- stored a job, stored the row. The next admission of the group deletes it.
IF OBJECT_ID(N'{s}.qsidecar_admissions') IS NULL
  CREATE TABLE {s}.qsidecar_admissions (
    queue      varchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL,
    group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    note       bigint        NOT NULL, -- random, so that no transaction waits for the row of another one
    CONSTRAINT qsidecar_admissions_group PRIMARY KEY (queue, group_name, note)
  );
GO

-- Claims that a cancel ended. Each owner reads its own once a second, and deletes a row after it
-- has sent the event.
IF OBJECT_ID(N'{s}.qsidecar_cancelled') IS NULL
  CREATE TABLE {s}.qsidecar_cancelled (
    owner         bigint NOT NULL,
    token_sidecar bigint NOT NULL,
    token_number  bigint NOT NULL,
    CONSTRAINT qsidecar_cancelled_owner PRIMARY KEY (owner, token_sidecar, token_number)
  );
GO

-- The progress that workers reported of their jobs. Its sidecar writes the last one of a job
-- at most once a second, and deletes the row after the job has ended.
IF OBJECT_ID(N'{s}.qsidecar_progress') IS NULL
  CREATE TABLE {s}.qsidecar_progress (
    job   bigint         NOT NULL CONSTRAINT qsidecar_progress_job PRIMARY KEY,
    fence bigint         NOT NULL, -- of the claim whose worker reported it
    done  bigint         NULL, -- NULL: not reported
    total bigint         NULL,
    data  varbinary(max) NOT NULL,
    at    bigint         NOT NULL -- milliseconds since 1970, UTC
  );
GO

-- The pending jobs of idempotency keys: what is stored, or replaces the job's content, when the
-- claim of a job ends.
IF OBJECT_ID(N'{s}.qsidecar_pending') IS NULL
  CREATE TABLE {s}.qsidecar_pending (
    job     bigint         NOT NULL CONSTRAINT qsidecar_pending_job PRIMARY KEY, -- the claimed job
    since   bigint         NOT NULL, -- when the first of those that it replaced was stored: milliseconds since 1970, UTC
    options nvarchar(max)  NOT NULL, -- all but its queue, key and payload: a JSON object
    payload varbinary(max) NOT NULL
  );
GO

-- The number of the last commit of each connection of each open handle. After a
-- commit whose answer was lost, it shows whether the commit happened.
IF OBJECT_ID(N'{s}.qsidecar_commits') IS NULL
  CREATE TABLE {s}.qsidecar_commits (
    handle   bigint       NOT NULL,
    pipeline int          NOT NULL, -- the connection
    number   bigint       NOT NULL,
    at       datetime2(6) NOT NULL,
    CONSTRAINT qsidecar_commits_pipeline PRIMARY KEY (handle, pipeline)
  );
GO

-- The leases of jobs whose rows are in tables that another application owns. Nothing is
-- added to those tables. A row exists from the first claim of its job until the job is
-- settled. All times are milliseconds since 1970, UTC.
IF OBJECT_ID(N'{s}.qsidecar_leases') IS NULL
  CREATE TABLE {s}.qsidecar_leases (
    id             bigint        NOT NULL CONSTRAINT qsidecar_leases_id PRIMARY KEY, -- random, so that no lease ever means another row
    queue          nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    item           nvarchar(255) COLLATE Latin1_General_100_BIN2 NOT NULL, -- the id of the job's row
    fence          bigint        NOT NULL,
    attempts       int           NOT NULL, -- counted deliveries
    losses         int           NOT NULL, -- failures in a row other than nacks and time-outs
    not_before     bigint        NULL, -- not claimed earlier; the largest number: dead
    -- the policy of the last claim
    claim_max      int           NOT NULL,
    backoff_ms     bigint        NOT NULL,
    backoff_max_ms bigint        NOT NULL,
    -- the claim; NULL, all of it: there is none
    token_sidecar  bigint        NULL,
    token_number   bigint        NULL,
    owner          bigint        NULL, -- the sidecar that a session lease depends on; 0: none
    lease_ms       bigint        NULL, -- NULL: a session lease
    deadline       bigint        NULL, -- the run's; nothing moves it
    due_at         bigint        NULL, -- the earlier of the timed lease's end and the deadline
    claimed_at     bigint        NULL,
    worker         nvarchar(400) NULL,
    claim_values   nvarchar(max) NULL, -- JSON: what the claim wrote into the job's row, and which values it replaced, by role
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
  WHERE token_sidecar IS NOT NULL;
GO
IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = OBJECT_ID(N'{s}.qsidecar_leases')
  AND (name = N'qsidecar_leases_due' OR SERVERPROPERTY('babelfish') IS NOT NULL AND name LIKE N'qsidecar_leases_due%'))
  CREATE INDEX qsidecar_leases_due ON {s}.qsidecar_leases (due_at)
  WHERE due_at IS NOT NULL;
GO

-- Deleting a job's failures, or storing a thousand jobs with keys, locks no whole table.
-- (Babelfish has only row locks and rejects the option.)
IF SERVERPROPERTY('babelfish') IS NULL
  EXEC (N'ALTER TABLE {s}.qsidecar_failures SET (LOCK_ESCALATION = DISABLE)');
GO
IF SERVERPROPERTY('babelfish') IS NULL
  EXEC (N'ALTER TABLE {s}.qsidecar_keys SET (LOCK_ESCALATION = DISABLE)');
GO

IF OBJECT_ID(N'{s}.qsidecar_meta') IS NULL
  CREATE TABLE {s}.qsidecar_meta (
    singleton   tinyint     NOT NULL CONSTRAINT qsidecar_meta_singleton PRIMARY KEY CHECK (singleton = 1),
    version     int         NOT NULL, -- of this schema
    min_program int         NOT NULL, -- the oldest program generation that can use it
    database_id varchar(11) COLLATE Latin1_General_100_BIN2 NOT NULL -- random: leases name it
  );
GO

-- The first six bytes of a NEWID are random, and nothing but random.
IF NOT EXISTS (SELECT 1 FROM {s}.qsidecar_meta)
BEGIN
  DECLARE @random varbinary(12) = SUBSTRING(CONVERT(varbinary(16), NEWID()), 1, 6) + SUBSTRING(CONVERT(varbinary(16), NEWID()), 1, 6);
  DECLARE @id varchar(11) = '';
  WHILE LEN(@id) < 11
    SET @id = @id + SUBSTRING('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_', CONVERT(int, SUBSTRING(@random, LEN(@id) + 1, 1)) % 64 + 1, 1);
  INSERT INTO {s}.qsidecar_meta (singleton, version, min_program, database_id) VALUES (1, 1, 1, @id);
END;
GO
