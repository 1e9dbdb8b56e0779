-- qsidecar's tables in PostgreSQL 13 and later, schema version 1.
--
-- A plain INSERT is an enqueue, in any program's own transaction:
--
--   INSERT INTO {s}.qsidecar_jobs (queue, payload) VALUES ('mail', 'hello');
--
-- (without the schema's name if the search_path has it). Public columns:
-- queue, payload, priority, headers, max_attempts, run_at. All others are the
-- sidecar's own. A text with backslashes becomes a payload by convert_to(text, 'UTF8').

CREATE SCHEMA IF NOT EXISTS {s};

-- One sequence of numbers for ids and positions.
CREATE SEQUENCE {s}.qsidecar_line AS bigint;

-- The clock of every statement. Tests replace it.
CREATE FUNCTION {s}.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT pg_catalog.now()';

-- The next number. The transaction gets its own id first: so a transaction that gets
-- its id after a number was seen has a higher id than each one that drew a smaller
-- number. Claims rely on it to pass no job over.
CREATE FUNCTION {s}.qsidecar_next() RETURNS bigint LANGUAGE sql VOLATILE
  AS 'SELECT (pg_catalog.pg_current_xact_id() IS NULL)::int + pg_catalog.nextval(''{s}.qsidecar_line'')';

-- As a domain the name is checked when a job is stored, not at each change of its row.
CREATE DOMAIN {s}.qsidecar_queue_name AS text COLLATE "C"
  CHECK (VALUE ~ '^[A-Za-z0-9_:/][A-Za-z0-9._:/-]{0,127}$');

CREATE TABLE {s}.qsidecar_meta (
  one         smallint PRIMARY KEY CHECK (one = 1),
  version     integer  NOT NULL, -- of this schema
  min_program integer  NOT NULL, -- the oldest program generation that can use it
  database    text     NOT NULL  -- random: leases name it
);

CREATE TABLE {s}.qsidecar_jobs (
  id             bigint      PRIMARY KEY DEFAULT {s}.qsidecar_next() CHECK (id > 0), -- never reused
  position       bigint      NOT NULL DEFAULT {s}.qsidecar_next(), -- order inside a priority
  enqueued_at    timestamptz NOT NULL DEFAULT {s}.qsidecar_now(),
  ready_at       timestamptz NOT NULL DEFAULT {s}.qsidecar_now(), -- when it became ready
  fence          bigint      NOT NULL DEFAULT 0,
  attempts       integer     NOT NULL DEFAULT 0, -- deliveries that count
  losses         integer     NOT NULL DEFAULT 0, -- consecutive failures that were not nacks
  unrecorded     integer     NOT NULL DEFAULT 0, -- consecutive sidecars that died while it was prefetched
  priority       smallint    NOT NULL DEFAULT 0,
  max_attempts   smallint    CHECK (max_attempts >= 1),
  ahead          boolean     NOT NULL DEFAULT false, -- prefetched: its delivery is not recorded and not in attempts
  queue          {s}.qsidecar_queue_name NOT NULL,
  state          text        COLLATE "C" NOT NULL DEFAULT 'ready',
  timeout_ms     bigint, -- the job's own
  run_at         timestamptz,
  -- the policy of the last claim
  claim_max      integer,
  backoff_ms     bigint,
  backoff_max_ms bigint,
  keep_ms        bigint, -- NULL: an ack deletes
  keep_dead_ms   bigint, -- NULL: indefinitely
  -- the claim
  token_host     bigint,
  token_number   bigint,
  owner          bigint, -- the sidecar that must be alive for a session lease; 0: none (a timed lease of a dead sidecar)
  lease_ms       bigint, -- NULL: a session lease
  deadline       timestamptz, -- of the attempt; nothing extends it
  due_at         timestamptz, -- the earlier of the timed lease's end and the deadline
  claimed_at     timestamptz,
  worker         text,
  -- the end
  finished_at    timestamptz,
  expires_at     timestamptz,
  key            text        COLLATE "C",
  last_error     text, -- NULL: it has no row in qsidecar_failures
  headers        jsonb       CHECK (headers IS NULL OR jsonb_typeof(headers) = 'object'),
  result         bytea,
  payload        bytea       NOT NULL DEFAULT ''
) WITH (
  -- Most rows are deleted soon: vacuum early and at full speed, and never lock the table to
  -- give its last pages back.
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000,
  vacuum_truncate = false, toast.vacuum_truncate = false
);

-- One partial index for each kind of query: the index of claims holds ready jobs alone,
-- and a claimed row is in as few indexes as possible.
CREATE INDEX qsidecar_ready     ON {s}.qsidecar_jobs (queue, (-priority::int), position) WHERE state = 'ready';
CREATE INDEX qsidecar_scheduled ON {s}.qsidecar_jobs (run_at, id)               WHERE state = 'scheduled';
CREATE INDEX qsidecar_delayed   ON {s}.qsidecar_jobs (queue, run_at, id)        WHERE state = 'scheduled';
CREATE INDEX qsidecar_owned     ON {s}.qsidecar_jobs (owner, id)                WHERE state = 'claimed';
CREATE INDEX qsidecar_due       ON {s}.qsidecar_jobs (due_at)                   WHERE due_at IS NOT NULL;
CREATE INDEX qsidecar_finished  ON {s}.qsidecar_jobs (queue, state, finished_at, id) WHERE finished_at IS NOT NULL;
CREATE INDEX qsidecar_expiring  ON {s}.qsidecar_jobs (expires_at)               WHERE expires_at IS NOT NULL;

CREATE TABLE {s}.qsidecar_failures (
  job     bigint      NOT NULL,
  fence   bigint      NOT NULL, -- of the delivery that failed
  attempt integer     NOT NULL,
  cause   text        NOT NULL,
  message text        NOT NULL,
  at      timestamptz NOT NULL,
  PRIMARY KEY (job, fence)
);

CREATE TABLE {s}.qsidecar_keys (
  queue      text        COLLATE "C" NOT NULL,
  key        text        COLLATE "C" NOT NULL,
  job        bigint      NOT NULL,
  expires_at timestamptz NOT NULL,
  state      text, -- how the job ended; NULL: it has not
  PRIMARY KEY (queue, key)
);

CREATE INDEX qsidecar_keys_job  ON {s}.qsidecar_keys (job);
CREATE INDEX qsidecar_keys_over ON {s}.qsidecar_keys (expires_at) WHERE state IS NOT NULL;

CREATE TABLE {s}.qsidecar_hosts (
  host       bigint      PRIMARY KEY, -- the sidecar's identity, as a signed number
  name       text        NOT NULL,
  beats      bigint      NOT NULL,
  expires_at timestamptz NOT NULL,
  has_left   boolean     NOT NULL DEFAULT false,
  dead       boolean     NOT NULL DEFAULT false
) WITH (fillfactor = 20); -- heartbeats update rows in place

CREATE TABLE {s}.qsidecar_queues (
  queue   text    COLLATE "C" PRIMARY KEY,
  paused  boolean NOT NULL DEFAULT false,
  returns bigint  NOT NULL DEFAULT 0 -- how often jobs were given back in their old positions
) WITH (fillfactor = 20);

-- A plain INSERT with a run_at in the future is a scheduled job.
CREATE FUNCTION {s}.qsidecar_plain_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.run_at > {s}.qsidecar_now() THEN
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
  DELETE FROM {s}.qsidecar_failures WHERE job = OLD.id;
  UPDATE {s}.qsidecar_keys SET state = 'deleted'
    WHERE queue = OLD.queue AND key = OLD.key AND job = OLD.id AND state IS NULL;
  RETURN NULL;
END $$;

CREATE TRIGGER qsidecar_row_deleted AFTER DELETE ON {s}.qsidecar_jobs FOR EACH ROW
  WHEN (OLD.last_error IS NOT NULL OR OLD.key IS NOT NULL)
  EXECUTE FUNCTION {s}.qsidecar_row_deleted();

INSERT INTO {s}.qsidecar_meta (one, version, min_program, database) VALUES (1, 1, 1,
  rtrim(translate(encode(decode(substr(md5(gen_random_uuid()::text || gen_random_uuid()::text), 1, 16), 'hex'), 'base64'), '+/', '-_'), '='));

-- Schema version 2.
--
-- The index of failures by time is for queries about recent failures:
--
--   SELECT cause, count(*) FROM {s}.qsidecar_failures
--   WHERE at > now() - interval '1 hour' GROUP BY cause;

ALTER TABLE {s}.qsidecar_hosts
  ADD COLUMN IF NOT EXISTS lease_ms  bigint, -- for how long its last heartbeat was valid
  -- Shows the sidecars of older programs before a version that they can't use.
  ADD COLUMN IF NOT EXISTS knows     integer, -- the latest version that the sidecar's program supports; NULL: 1
  ADD COLUMN IF NOT EXISTS joined_at timestamptz;

-- One row, which a crash of the server and a failover remove (UNLOGGED). A sidecar
-- compares it to find out whether the server is the one of a transaction whose outcome is
-- unknown. A server that crashed can have lost that transaction, and reused its number.
CREATE UNLOGGED TABLE IF NOT EXISTS {s}.qsidecar_epoch (
  one   smallint PRIMARY KEY CHECK (one = 1),
  epoch text     NOT NULL -- the system's identifier, its timeline and a random part, with / between them
);

CREATE INDEX qsidecar_failures_at ON {s}.qsidecar_failures (at);

-- Schema version 3: the leases of jobs whose rows are in tables that another
-- application owns. Nothing is added to those tables. A row exists from the first claim of
-- its job until the job is settled. All times are milliseconds since 1970, UTC.

CREATE TABLE IF NOT EXISTS {s}.qsidecar_leases (
  id             bigint  PRIMARY KEY, -- random, so that no lease ever means another row
  queue          text    COLLATE "C" NOT NULL,
  item           text    COLLATE "C" NOT NULL, -- the id of the job's row
  fence          bigint  NOT NULL,
  attempts       integer NOT NULL, -- deliveries that count
  losses         integer NOT NULL, -- consecutive failures that were not nacks
  not_before     bigint, -- not claimed earlier; the largest number: dead
  -- the policy of the last claim
  claim_max      integer NOT NULL,
  backoff_ms     bigint  NOT NULL,
  backoff_max_ms bigint  NOT NULL,
  -- the claim; all NULL: there is none
  token_host     bigint,
  token_number   bigint,
  owner          bigint, -- the sidecar that must be alive for a session lease; 0: none
  lease_ms       bigint, -- NULL: a session lease
  deadline       bigint, -- of the attempt; nothing extends it
  due_at         bigint, -- the earlier of the timed lease's end and the deadline
  claimed_at     bigint,
  worker         text,
  shown          text,   -- a JSON map: what the claim wrote into the job's row, by role
  failures       text,   -- a JSON list, the latest last
  changed_at     bigint  NOT NULL,
  UNIQUE (queue, item)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false, toast.vacuum_truncate = false
);

CREATE INDEX IF NOT EXISTS qsidecar_leases_owned ON {s}.qsidecar_leases (owner, id) WHERE token_host IS NOT NULL;
CREATE INDEX IF NOT EXISTS qsidecar_leases_due   ON {s}.qsidecar_leases (due_at)    WHERE due_at IS NOT NULL;

-- Schema version 4: the database rejects an INSERT of a value that a sidecar can't use.
--
-- A row is checked until it is first claimed (which sets fence) or becomes ready (a later
-- ready_at), so that no later UPDATE of a row that is older than this CHECK is refused.
-- NOT VALID: existing rows are not checked. Sidecars skip those that they can't use, and
-- log it.

ALTER TABLE {s}.qsidecar_jobs
  DROP CONSTRAINT IF EXISTS qsidecar_usable,
  ADD CONSTRAINT qsidecar_usable CHECK (fence BETWEEN 1 AND 4611686018427387903 OR ready_at > enqueued_at AND isfinite(ready_at) OR fence = 0
    AND (run_at IS NULL OR run_at >= '0001-01-02 00:00:00+00' AND run_at < '9999-12-31 23:59:59.999001+00')
    AND enqueued_at >= '0001-01-02 00:00:00+00' AND enqueued_at < '9999-12-31 23:59:59.999001+00'
    AND ready_at >= '0001-01-02 00:00:00+00' AND ready_at < '9999-12-31 23:59:59.999001+00'
    AND attempts BETWEEN 0 AND 32767 AND losses BETWEEN 0 AND 32767 AND unrecorded BETWEEN 0 AND 32767
    AND (timeout_ms IS NULL OR timeout_ms BETWEEN 1 AND 316224000000)
    AND (key IS NULL OR octet_length(key) BETWEEN 1 AND 255)
    AND (headers IS NULL OR octet_length(headers::text) <= 65536)) NOT VALID;

UPDATE {s}.qsidecar_meta SET version = 4;

-- The rows that backendtest.CheckMigrated expects.
UPDATE {s}.qsidecar_meta SET database = 'preview_dbs';
SELECT setval('{s}.qsidecar_line', 100);
INSERT INTO {s}.qsidecar_hosts (host, name, beats, expires_at, lease_ms, knows, joined_at, dead) VALUES
  (7, 'alive', 3, now() + interval '1 hour', 3600000, 4, now(), false), (8, 'dead', 3, now() - interval '1 hour', 30000, 4, now(), true);
INSERT INTO {s}.qsidecar_queues (queue, paused, returns) VALUES ('p', true, 2);
INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, payload) VALUES (1, 1, 'q', 'ready', 'ready'), (12, 12, 'p', 'ready', 'paused');
INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, fence, attempts, unrecorded, ahead, claim_max, backoff_ms, backoff_max_ms, keep_dead_ms,
  token_host, token_number, owner, lease_ms, due_at, claimed_at, worker, payload) VALUES
  (2, 2, 'q', 'claimed', 1, 1, 0, false, 3, 1000, 5000, 86400000, 7, 1, 7, NULL, NULL, now(), 'w', 'claimed'),
  (3, 3, 'q', 'claimed', 1, 0, 1, true, 3, 1000, 5000, 86400000, 7, 2, 7, NULL, NULL, now(), NULL, 'prefetched'),
  (8, 8, 'q', 'claimed', 1, 1, 0, false, 3, 1000, 5000, 86400000, 8, 1, 8, NULL, NULL, now(), 'w', 'lost'),
  (9, 9, 'q', 'claimed', 1, 1, 0, false, 3, 1000, 5000, 86400000, 7, 3, 7, 3600000, now() + interval '1 hour', now(), 'w', 'timed');
INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, run_at, payload) VALUES (4, 4, 'q', 'scheduled', now() + interval '1 hour', 'scheduled');
INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, fence, attempts, finished_at, expires_at, last_error, result, payload) VALUES
  (5, 5, 'q', 'dead', 1, 1, now(), now() + interval '1 day', 'broken', NULL, 'dead'), (6, 6, 'q', 'done', 1, 1, now(), now() + interval '1 day', NULL, 'result', 'done');
INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at) VALUES (5, 1, 1, 'nacked', 'broken', now());
INSERT INTO {s}.qsidecar_jobs (id, position, queue, key, payload) VALUES (7, 7, 'q', 'key', 'keyed');
INSERT INTO {s}.qsidecar_keys (queue, key, job, expires_at) VALUES ('q', 'key', 7, now() + interval '1 hour');
-- Other programs' rows with values that a sidecar can't use.
INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, payload) VALUES (10, 0, 'q', 'ready', 'position'), (11, 11, 'q', 'dead', 'unfinished');
INSERT INTO {s}.qsidecar_leases (id, queue, item, fence, attempts, losses, claim_max, backoff_ms, backoff_max_ms, token_host, token_number, owner, shown, changed_at)
  VALUES (1, 'a', '1', 1, 1, 0, 3, 1000, 5000, 7, 4, 7, '{"worker": "w"}', 1);
