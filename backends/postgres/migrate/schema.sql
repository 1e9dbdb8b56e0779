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
