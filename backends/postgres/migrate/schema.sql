-- qsidecar's tables in PostgreSQL 13 and later, schema version 1.
--
-- A plain INSERT is an enqueue, in any program's own transaction:
--
--   INSERT INTO {s}.qsidecar_jobs (queue, payload) VALUES ('mail', 'hello');
--
-- (without the schema's name if the search_path has it). Public columns:
-- queue, payload, priority, headers, max_attempts, run_at, group_name, start_before,
-- on_expiry, retain_ms. All others are the sidecar's own. A text with backslashes becomes a payload by convert_to(text, 'UTF8').

CREATE SCHEMA IF NOT EXISTS {s};

-- Functions run in the sessions of all programs, so they name the schema of all that they use,
-- also of operators. A search path of their own (SET) would prevent the inlining of the first two.

-- One sequence of numbers for ids and positions.
CREATE SEQUENCE {s}.qsidecar_sequence AS bigint;

-- The clock of every statement. Tests replace it.
CREATE FUNCTION {s}.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT pg_catalog.now()';

-- The next number. The transaction gets its own id first: so a transaction that gets
-- its id after a number was seen has a higher id than each one that drew a smaller
-- number. Claims rely on it to pass no job over.
CREATE FUNCTION {s}.qsidecar_next() RETURNS bigint LANGUAGE sql VOLATILE
  AS 'SELECT (pg_catalog.pg_current_xact_id() IS NULL)::int OPERATOR(pg_catalog.+) pg_catalog.nextval(''{s}.qsidecar_sequence'')';

-- As a domain the name is checked when a job is stored, not at each change of its row. The
-- rule's name is what a producer sees.
CREATE DOMAIN {s}.qsidecar_queue_name AS text COLLATE "C"
  CONSTRAINT "queue: use A-Z a-z 0-9 . _ : / - and do not start with . or -" CHECK (VALUE ~ '^[A-Za-z0-9_:/][A-Za-z0-9._:/-]{0,127}$');

CREATE TABLE {s}.qsidecar_meta (
  singleton   smallint PRIMARY KEY CHECK (singleton = 1),
  version     integer  NOT NULL, -- of this schema
  min_program integer  NOT NULL, -- the oldest program generation that can use it
  database    text     NOT NULL  -- random: leases name it
);

CREATE TABLE {s}.qsidecar_jobs (
  id                bigint      PRIMARY KEY DEFAULT {s}.qsidecar_next() CHECK (id > 0), -- never reused
  position          bigint      NOT NULL DEFAULT {s}.qsidecar_next() CONSTRAINT qsidecar_position CHECK (position > 0), -- order inside a priority
  enqueued_at       timestamptz NOT NULL DEFAULT {s}.qsidecar_now(),
  ready_at          timestamptz NOT NULL DEFAULT {s}.qsidecar_now(), -- when it became ready
  fence             bigint      NOT NULL DEFAULT 0,
  attempts          integer     NOT NULL DEFAULT 0, -- deliveries that count
  losses            integer     NOT NULL DEFAULT 0, -- consecutive failures that were not nacks or time-outs
  prefetch_losses   integer     NOT NULL DEFAULT 0, -- consecutive sidecars that died while it was prefetched
  priority          smallint    NOT NULL DEFAULT 0,
  max_attempts      smallint    CONSTRAINT "max_attempts: use a number from 1 to 32767" CHECK (max_attempts >= 1),
  prefetched        boolean     NOT NULL DEFAULT false, -- its delivery is not recorded and not in attempts
  queue             {s}.qsidecar_queue_name NOT NULL,
  state             text        COLLATE "C" NOT NULL DEFAULT 'ready',
  timeout_ms        bigint, -- the job's own
  retain_ms         bigint, -- how long the done job is kept at least; NULL: as the queue's are
  run_at            timestamptz,
  start_before      timestamptz, -- no attempt starts at this time or later; NULL: no limit
  on_expiry         text        COLLATE "C" CHECK (on_expiry IN ('dead', 'delete')), -- what becomes of it at start_before; NULL: dead
  -- the policy of the last claim
  claim_max         integer,
  backoff_ms        bigint,
  backoff_max_ms    bigint,
  retention_done_ms bigint, -- NULL: an ack deletes
  retention_dead_ms bigint, -- NULL: indefinitely
  -- the claim
  token_sidecar     bigint,
  token_number      bigint,
  owner             bigint, -- the sidecar that must be alive for a session lease; 0: none (a timed lease of a dead sidecar)
  lease_ms          bigint, -- NULL: a session lease
  deadline          timestamptz, -- of the attempt; nothing extends it once a worker has the job
  due_at            timestamptz, -- the earlier of the timed lease's end and the deadline, once a worker has the job
  claimed_at        timestamptz,
  worker            text,
  -- the end
  finished_at       timestamptz,
  prune_at          timestamptz,
  key               text        COLLATE "C",
  group_name        text        COLLATE "C", -- a ready job with it is blocked: it waits for a slot of its group
  admitted_group    text        COLLATE "C", -- the group of a job that has a slot; group_name is NULL then
  group_noticed     boolean, -- of a blocked job: a sidecar has noticed it; NULL: none has
  progress          smallint, -- 1: its worker reported progress, now or in an earlier attempt
  batch             bigint, -- of which the job is a member; NULL: none
  key_state         text        COLLATE "C", -- start: its key is free once it has been claimed; pending: qsidecar_pending can have a row for it
  last_error        text, -- NULL: it has no row in qsidecar_failures
  headers           jsonb       CONSTRAINT "headers: use a JSON object with texts as values" CHECK (headers IS NULL OR jsonb_typeof(headers) = 'object'),
  result            bytea,
  payload           bytea       NOT NULL DEFAULT '',

  -- The database rejects an INSERT of a value that a sidecar can't use. A row is checked
  -- until it is first claimed (which sets fence) or becomes ready (a later ready_at), so
  -- that no later UPDATE is refused: a row can be older than a CHECK of a later version.
  CONSTRAINT qsidecar_usable CHECK (fence BETWEEN 1 AND 4611686018427387903 OR ready_at > enqueued_at AND isfinite(ready_at) OR fence = 0
    AND (run_at IS NULL OR run_at >= '0001-01-02 00:00:00+00' AND run_at < '9999-12-31 23:59:59.999001+00')
    AND (start_before IS NULL OR start_before >= '0001-01-02 00:00:00+00' AND start_before < '9999-12-31 23:59:59.999001+00')
    AND enqueued_at >= '0001-01-02 00:00:00+00' AND enqueued_at < '9999-12-31 23:59:59.999001+00'
    AND ready_at >= '0001-01-02 00:00:00+00' AND ready_at < '9999-12-31 23:59:59.999001+00'
    AND attempts BETWEEN 0 AND 32767 AND losses BETWEEN 0 AND 32767 AND prefetch_losses BETWEEN 0 AND 32767
    AND (timeout_ms IS NULL OR timeout_ms BETWEEN 1 AND 316224000000)
    AND (retain_ms IS NULL OR retain_ms BETWEEN 1 AND 316224000000)
    AND (key IS NULL OR octet_length(key) BETWEEN 1 AND 255)
    AND (group_name IS NULL OR octet_length(group_name) BETWEEN 1 AND 255) AND admitted_group IS NULL
    AND (headers IS NULL OR octet_length(headers::text) <= 65536)),
  -- Lists, counts and retention find finished jobs by this instant.
  CONSTRAINT "state: leave it out (done and dead need a finished_at)" CHECK (state IN ('ready', 'scheduled') OR state = 'claimed' AND token_sidecar IS NOT NULL OR state IN ('done', 'dead') AND finished_at IS NOT NULL)
) WITH (
  -- Most rows are deleted soon: vacuum early and at full speed, and never lock the table to
  -- give its last pages back.
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000,
  vacuum_truncate = false, toast.vacuum_truncate = false
);

-- One partial index for each kind of query: the index of claims holds ready jobs alone,
-- and a claimed row is in as few indexes as possible.
CREATE INDEX qsidecar_ready     ON {s}.qsidecar_jobs (queue, (-priority::int), position) WHERE state = 'ready' AND group_name IS NULL;
CREATE INDEX qsidecar_scheduled ON {s}.qsidecar_jobs (run_at, id)               WHERE state = 'scheduled';
CREATE INDEX qsidecar_delayed   ON {s}.qsidecar_jobs (queue, run_at, id)        WHERE state = 'scheduled';
CREATE INDEX qsidecar_owned     ON {s}.qsidecar_jobs (owner, id)                WHERE state = 'claimed';
CREATE INDEX qsidecar_due       ON {s}.qsidecar_jobs (due_at)                   WHERE due_at IS NOT NULL;
CREATE INDEX qsidecar_finished  ON {s}.qsidecar_jobs (queue, state, finished_at, id) WHERE finished_at IS NOT NULL;
CREATE INDEX qsidecar_prunable  ON {s}.qsidecar_jobs (prune_at)                 WHERE prune_at IS NOT NULL;

-- Waiting jobs that expire.
CREATE INDEX qsidecar_expiring  ON {s}.qsidecar_jobs (start_before)             WHERE start_before IS NOT NULL AND state IN ('ready', 'scheduled');

-- Those of groups. Blocked jobs, in the order in which each group admits them; the blocked
-- jobs that no sidecar has noticed; the jobs that have slots.
CREATE INDEX qsidecar_blocked   ON {s}.qsidecar_jobs (queue, group_name, (-priority::int), position) WHERE state = 'ready' AND group_name IS NOT NULL;
CREATE INDEX qsidecar_arrived   ON {s}.qsidecar_jobs (queue, group_name) WHERE state = 'ready' AND group_name IS NOT NULL AND group_noticed IS NULL;
CREATE INDEX qsidecar_admitted  ON {s}.qsidecar_jobs (queue, admitted_group, state) WHERE admitted_group IS NOT NULL;

CREATE TABLE {s}.qsidecar_failures (
  job     bigint      NOT NULL,
  fence   bigint      NOT NULL, -- of the delivery that failed
  attempt integer     NOT NULL,
  cause   text        NOT NULL,
  message text        NOT NULL,
  at      timestamptz NOT NULL,
  PRIMARY KEY (job, fence)
);

-- For queries about recent failures:
--
--   SELECT cause, count(*) FROM {s}.qsidecar_failures
--   WHERE at > now() - interval '1 hour' GROUP BY cause;
CREATE INDEX qsidecar_failures_at ON {s}.qsidecar_failures (at);

CREATE TABLE {s}.qsidecar_keys (
  queue      text        COLLATE "C" NOT NULL,
  key        text        COLLATE "C" NOT NULL,
  job        bigint      NOT NULL,
  expires_at timestamptz NOT NULL,
  state      text, -- how the job ended; NULL: it has not
  PRIMARY KEY (queue, key)
);

CREATE INDEX qsidecar_keys_job      ON {s}.qsidecar_keys (job);
CREATE INDEX qsidecar_keys_prunable ON {s}.qsidecar_keys (expires_at) WHERE state IS NOT NULL;

CREATE TABLE {s}.qsidecar_sidecars (
  sidecar      bigint      PRIMARY KEY, -- the sidecar's identity, as a signed number
  name         text        NOT NULL,
  heartbeats   bigint      NOT NULL,
  expires_at   timestamptz NOT NULL,
  has_left     boolean     NOT NULL DEFAULT false,
  dead         boolean     NOT NULL DEFAULT false,
  timeout_ms   bigint, -- for how long its last heartbeat is valid
  -- Shows the sidecars of older programs before a version that they can't use.
  max_version  integer, -- the latest version of the tables that the sidecar's program supports
  joined_at    timestamptz,
  stats_leader boolean     NOT NULL DEFAULT false, -- it reads the statistics of the queues for the metrics of all
  version      text, -- of the sidecar's program; NULL: unknown
  leases       bigint -- number of its session leases at its last heartbeat; NULL: unknown
) WITH (fillfactor = 20); -- heartbeats update rows in place

CREATE TABLE {s}.qsidecar_queues (
  queue    text    COLLATE "C" PRIMARY KEY,
  paused   boolean NOT NULL DEFAULT false,
  requeues bigint  NOT NULL DEFAULT 0, -- how often jobs were given back in their old positions
  -- its limits over all sidecars
  max_claimed bigint, -- how many jobs can be claimed at a time; NULL: any number
  rate        bigint, -- how many jobs can start in rate_ms; NULL: any number
  rate_ms     bigint,
  burst       bigint, -- how many jobs can start at once; NULL: what the rate allows in a second
  group_limit bigint, -- how many jobs of a group can be claimed at a time; NULL: 1, or any number with group_ready
  group_skips boolean, -- whether a failed job gives up its slot of the group; NULL: it doesn't
  group_ready bigint, -- how many jobs of a group can be ready at a time; NULL: any number
  limits_at   timestamptz -- when the limits were changed
) WITH (fillfactor = 20);

-- A row for each queue with limits. Each claim from the queue locks and writes it.
CREATE TABLE {s}.qsidecar_gates (
  queue   text   COLLATE "C" PRIMARY KEY,
  passes  bigint NOT NULL DEFAULT 1, -- how often it was locked
  next_at bigint NOT NULL DEFAULT 0  -- when the rate has paid for all starts, in nanoseconds since 1970
) WITH (fillfactor = 20);

-- The claimed jobs of queues with max_claimed. A row can outlive its claim until the next
-- claim from the queue.
CREATE TABLE {s}.qsidecar_capped (
  queue text   COLLATE "C" NOT NULL,
  job   bigint NOT NULL,
  PRIMARY KEY (queue, job)
);

-- Claims that a cancel ended. Each owner reads its own once a second, and deletes a row after it
-- has sent the event.
CREATE TABLE {s}.qsidecar_cancelled (
  owner         bigint NOT NULL,
  token_sidecar bigint NOT NULL,
  token_number  bigint NOT NULL,
  PRIMARY KEY (owner, token_sidecar, token_number)
);

-- The schedules. A sidecar moves next_at from one occurrence to the next, and stores the job, in
-- one transaction. All times are milliseconds since 1970, UTC.
CREATE TABLE {s}.qsidecar_schedules (
  name     text   COLLATE "C" PRIMARY KEY,
  queue    text   COLLATE "C" NOT NULL,
  cron     text   COLLATE "C", -- when it runs; NULL: every_ms is set
  every_ms bigint,
  zone     text   COLLATE "C", -- the time zone of cron; NULL: UTC
  splay_ms bigint, -- its times are later by a part of this, which the name decides
  headers  text, -- of its jobs: a JSON object
  priority bigint             NOT NULL,
  missed   text   COLLATE "C" NOT NULL, -- what becomes of occurrences while no sidecar ran: one, all or skip
  overlap  text   COLLATE "C" NOT NULL, -- what becomes of one while the last job isn't finished: allow or skip
  source   text   COLLATE "C", -- the name of its declarations
  version  bigint             NOT NULL, -- of the definition, among those of the source
  adopted  bigint             NOT NULL, -- 1: only sidecars that have the queue in an adopted table fire it
  paused   bigint             NOT NULL, -- 1: it is
  next_at  bigint, -- when the next job is stored; NULL: never
  last_at  bigint, -- the last occurrence that stored a job
  last_job text   COLLATE "C", -- its id
  payload  bytea              NOT NULL -- of its jobs
) WITH (fillfactor = 50);

CREATE INDEX qsidecar_schedules_next ON {s}.qsidecar_schedules (next_at) WHERE next_at IS NOT NULL;

-- The batches. Each transaction that concerns the members of one writes its row first. All times
-- are milliseconds since 1970, UTC.
CREATE TABLE {s}.qsidecar_batches (
  id           bigint PRIMARY KEY, -- random
  state        text   COLLATE "C" NOT NULL, -- open, closed, ended (its callback is stored), cancelling or cancelled
  fires_on     text   COLLATE "C" NOT NULL, -- when the callback is stored: success (all jobs are done) or finish (all have ended)
  batch_key    text   COLLATE "C", -- a second batch of the queue with it is this one
  parent       bigint, -- the batch of which the callback is a member
  changes      bigint NOT NULL,
  created_at   bigint NOT NULL,
  closed_at    bigint,
  ended_at     bigint,
  expires_at   bigint NOT NULL, -- when the row is deleted
  done         bigint, -- after its end: how many jobs were done
  failed       bigint, -- and how many were not
  callback     text   COLLATE "C", -- the id of the callback's job
  -- the callback
  queue        text   COLLATE "C" NOT NULL,
  priority     bigint NOT NULL,
  max_attempts bigint,
  timeout_ms   bigint,
  group_name   text   COLLATE "C",
  headers      text, -- a JSON object
  payload      bytea  NOT NULL
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX qsidecar_batches_key    ON {s}.qsidecar_batches (queue, batch_key) WHERE batch_key IS NOT NULL;
CREATE INDEX qsidecar_batches_state  ON {s}.qsidecar_batches (state, id);
CREATE INDEX qsidecar_batches_expire ON {s}.qsidecar_batches (expires_at);

-- The members of batches that have not ended. A job that is done and gone has its mark here.
CREATE TABLE {s}.qsidecar_batch_members (
  batch bigint NOT NULL,
  done  bigint NOT NULL, -- 1: the job is done
  job   bigint NOT NULL, -- negative: the callback of this batch, which is not stored yet
  PRIMARY KEY (batch, done, job)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false
);

-- Batches of which members ended. Whatever tries to end the batch then deletes the row.
CREATE TABLE {s}.qsidecar_batch_notes (
  batch bigint NOT NULL,
  note  bigint NOT NULL, -- random, so that no transaction waits for the row of another one
  PRIMARY KEY (batch, note)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false
);

-- Locks of admissions. Each group has one of the stripes of its queue.
CREATE TABLE {s}.qsidecar_stripes (
  queue  text    COLLATE "C" NOT NULL,
  stripe integer NOT NULL,
  passes bigint  NOT NULL DEFAULT 1, -- how often it was locked
  PRIMARY KEY (queue, stripe)
) WITH (fillfactor = 20);

-- Groups in which possibly a job has to be admitted. The transaction that freed a slot, or
-- stored a job, stored the row. The next admission of the group deletes it.
CREATE TABLE {s}.qsidecar_admissions (
  queue      text   COLLATE "C" NOT NULL,
  group_name text   COLLATE "C" NOT NULL,
  note       bigint NOT NULL DEFAULT (random() * 9007199254740991)::bigint, -- random, so that no transaction waits for the row of another one
  PRIMARY KEY (queue, group_name, note)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false
);

-- The progress that workers reported of their jobs. Its sidecar writes the last one of a job
-- at most once a second, and deletes the row after the job has ended.
CREATE TABLE {s}.qsidecar_progress (
  job   bigint PRIMARY KEY,
  fence bigint NOT NULL, -- of the claim whose worker reported it
  done  bigint, -- NULL: not reported
  total bigint,
  data  bytea  NOT NULL,
  at    bigint NOT NULL  -- milliseconds since 1970, UTC
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false, toast.vacuum_truncate = false
);

-- The pending jobs of idempotency keys: what is stored, or replaces the job's content, when the
-- claim of a job ends.
CREATE TABLE {s}.qsidecar_pending (
  job     bigint PRIMARY KEY, -- the claimed job
  since   bigint NOT NULL, -- when the first of those that it replaced was stored: milliseconds since 1970, UTC
  options text   NOT NULL, -- all but its queue, key and payload: a JSON object
  payload bytea  NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false, toast.vacuum_truncate = false
);

-- What happened to the jobs of each queue, by hour, for 14 days. All sidecars add to it
-- about once an hour. `_other` has the queues beyond a sidecar's limit.
CREATE TABLE {s}.qsidecar_history (
  hour       bigint NOT NULL, -- hours since 1970, UTC
  queue      text   COLLATE "C" NOT NULL,
  ready      bigint NOT NULL, -- the most ready jobs that statistics showed; -1: none showed them
  enqueued   bigint NOT NULL,
  acked      bigint NOT NULL,
  failed     bigint NOT NULL, -- attempts that ended without an ack, also snoozed ones
  run_1ms    bigint NOT NULL, -- runs that took up to a millisecond
  run_5ms    bigint NOT NULL, -- more than that, and up to 5 ms; and so on
  run_25ms   bigint NOT NULL,
  run_100ms  bigint NOT NULL,
  run_250ms  bigint NOT NULL,
  run_500ms  bigint NOT NULL,
  run_1s     bigint NOT NULL,
  run_2500ms bigint NOT NULL,
  run_5s     bigint NOT NULL,
  run_10s    bigint NOT NULL,
  run_30s    bigint NOT NULL,
  run_1m     bigint NOT NULL,
  run_5m     bigint NOT NULL,
  run_30m    bigint NOT NULL,
  run_1h     bigint NOT NULL,
  run_more   bigint NOT NULL, -- more than an hour
  PRIMARY KEY (hour, queue)
);

-- One row, which a crash of the server and a failover remove (UNLOGGED). A sidecar
-- compares it to find out whether the server is the one of a transaction whose outcome is
-- unknown. A server that crashed can have lost that transaction, and reused its number.
CREATE UNLOGGED TABLE {s}.qsidecar_epoch (
  singleton smallint PRIMARY KEY CHECK (singleton = 1),
  epoch     text     NOT NULL -- the system's identifier, its timeline and a random part, with / between them
);

-- The leases of jobs whose rows are in tables that another application owns. Nothing is
-- added to those tables. A row exists from the first claim of its job until the job is
-- settled. All times are milliseconds since 1970, UTC.
CREATE TABLE {s}.qsidecar_leases (
  id             bigint  PRIMARY KEY, -- random, so that no lease ever means another row
  queue          text    COLLATE "C" NOT NULL,
  item           text    COLLATE "C" NOT NULL, -- the id of the job's row
  fence          bigint  NOT NULL,
  attempts       integer NOT NULL, -- deliveries that count
  losses         integer NOT NULL, -- consecutive failures that were not nacks or time-outs
  not_before     bigint, -- not claimed earlier; the largest number: dead
  -- the policy of the last claim
  claim_max      integer NOT NULL,
  backoff_ms     bigint  NOT NULL,
  backoff_max_ms bigint  NOT NULL,
  -- the claim; all NULL: there is none
  token_sidecar  bigint,
  token_number   bigint,
  owner          bigint, -- the sidecar that must be alive for a session lease; 0: none
  lease_ms       bigint, -- NULL: a session lease
  deadline       bigint, -- of the attempt; nothing extends it
  due_at         bigint, -- the earlier of the timed lease's end and the deadline
  claimed_at     bigint,
  worker         text,
  claim_values   text,   -- JSON: what the claim wrote into the job's row, and which values it replaced, by role
  failures       text,   -- a JSON list, the latest last
  changed_at     bigint  NOT NULL,
  UNIQUE (queue, item)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false, toast.vacuum_truncate = false
);

CREATE INDEX qsidecar_leases_owned ON {s}.qsidecar_leases (owner, id) WHERE token_sidecar IS NOT NULL;
CREATE INDEX qsidecar_leases_due   ON {s}.qsidecar_leases (due_at)    WHERE due_at IS NOT NULL;

-- A plain INSERT with a run_at in the future is a scheduled job.
CREATE FUNCTION {s}.qsidecar_plain_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.run_at OPERATOR(pg_catalog.>) {s}.qsidecar_now() THEN
    NEW.state := 'scheduled';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER qsidecar_plain_insert BEFORE INSERT ON {s}.qsidecar_jobs FOR EACH ROW
  WHEN (NEW.run_at IS NOT NULL AND NEW.state = 'ready')
  EXECUTE FUNCTION {s}.qsidecar_plain_insert();

-- If a job is deleted, so are its failures, and its key shows it as deleted.
CREATE FUNCTION {s}.qsidecar_row_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM {s}.qsidecar_failures WHERE job OPERATOR(pg_catalog.=) OLD.id;
  UPDATE {s}.qsidecar_keys SET state = 'deleted'
    WHERE queue OPERATOR(pg_catalog.=) OLD.queue AND key OPERATOR(pg_catalog.=) OLD.key AND job OPERATOR(pg_catalog.=) OLD.id AND state IS NULL;
  RETURN NULL;
END $$;

CREATE TRIGGER qsidecar_row_deleted AFTER DELETE ON {s}.qsidecar_jobs FOR EACH ROW
  WHEN (OLD.last_error IS NOT NULL OR OLD.key IS NOT NULL)
  EXECUTE FUNCTION {s}.qsidecar_row_deleted();

INSERT INTO {s}.qsidecar_meta (singleton, version, min_program, database) VALUES (1, 1, 1,
  rtrim(translate(encode(decode(substr(md5(gen_random_uuid()::text || gen_random_uuid()::text), 1, 16), 'hex'), 'base64'), '+/', '-_'), '='));
