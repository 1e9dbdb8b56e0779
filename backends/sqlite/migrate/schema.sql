-- qsidecar's tables in SQLite, schema version 1.
--
-- A plain INSERT is an enqueue, in any program's own transaction:
--
--   INSERT INTO qsidecar_jobs (queue, payload) VALUES ('mail', 'hello');
--
-- Public columns: queue, payload, priority, headers, max_attempts, run_at,
-- group_name, start_before, on_expiry, retain_ms. All others are the sidecar's own. Instants are milliseconds
-- since 1970, UTC. run_at and start_before can be such a number, or a text that SQLite's date functions read, as
-- '2030-01-31 08:00:00' (UTC). Triggers and checks here use nothing newer than
-- SQLite 3.38, because they run in the library of the program that inserts.

CREATE TABLE qsidecar_meta (
  singleton   INTEGER PRIMARY KEY CHECK (singleton = 1),
  version     INTEGER NOT NULL, -- of this schema
  min_program INTEGER NOT NULL, -- the oldest program generation that can use it
  database    TEXT    NOT NULL  -- random: leases name it
);

-- The large columns come last: a row's early columns are read without its late ones.
CREATE TABLE qsidecar_jobs (
  id                INTEGER PRIMARY KEY AUTOINCREMENT CONSTRAINT id_is_positive CHECK (id > 0), -- never reused
  position          INTEGER, -- order inside a priority, from the same sequence of numbers as id
  enqueued_at       INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  ready_at          INTEGER, -- when it became ready
  fence             INTEGER NOT NULL DEFAULT 0,
  attempts          INTEGER NOT NULL DEFAULT 0, -- deliveries that count
  losses            INTEGER NOT NULL DEFAULT 0, -- consecutive failures that were not nacks or time-outs
  prefetch_losses   INTEGER NOT NULL DEFAULT 0, -- consecutive sidecars that died while it was prefetched
  priority          INTEGER NOT NULL DEFAULT 0
    CONSTRAINT "priority: use a number from -32768 to 32767" CHECK (typeof(priority) = 'integer' AND priority BETWEEN -32768 AND 32767),
  max_attempts      INTEGER
    CONSTRAINT "max_attempts: use a number from 1 to 32767" CHECK (max_attempts IS NULL OR typeof(max_attempts) = 'integer' AND max_attempts BETWEEN 1 AND 32767),
  prefetched        INTEGER NOT NULL DEFAULT 0, -- 1: its delivery is not recorded and not in attempts
  queue             TEXT    NOT NULL
    CONSTRAINT "queue: use A-Z a-z 0-9 . _ : / - and do not start with . or -" CHECK (typeof(queue) = 'text' AND length(CAST(queue AS BLOB)) BETWEEN 1 AND 128
           AND instr(queue, char(0)) = 0
           AND queue NOT GLOB '*[^A-Za-z0-9._:/-]*' AND queue NOT GLOB '[.-]*'),
  state             TEXT    NOT NULL DEFAULT 'ready',
  timeout_ms        INTEGER, -- the job's own
  retain_ms         INTEGER -- how long the done job is kept at least; NULL: as the queue's are
    CONSTRAINT retain_ms_range CHECK (retain_ms IS NULL OR typeof(retain_ms) = 'integer' AND retain_ms BETWEEN 1 AND 316224000000),
  run_at            INTEGER
    CONSTRAINT "run_at: milliseconds since 1970, or UTC as 2030-01-31 08:00:00" CHECK (run_at IS NULL OR typeof(run_at) = 'integer' AND (position IS NOT NULL OR run_at NOT BETWEEN 1 AND 99999999999) -- seconds
           OR typeof(run_at) = 'text' AND julianday(run_at) IS NOT NULL),
  start_before      INTEGER -- no attempt starts at this time or later; NULL: no limit
    CONSTRAINT "start_before: milliseconds since 1970, or UTC as 2030-01-31 08:00:00" CHECK (start_before IS NULL OR typeof(start_before) = 'integer' AND (position IS NOT NULL OR start_before NOT BETWEEN 1 AND 99999999999)
           OR typeof(start_before) = 'text' AND julianday(start_before) IS NOT NULL),
  on_expiry         TEXT -- what becomes of it at start_before; NULL: dead
    CONSTRAINT on_expiry_is_dead_or_delete CHECK (on_expiry IS NULL OR on_expiry IN ('dead', 'delete')),
  -- the policy of the last claim
  claim_max         INTEGER,
  backoff_ms        INTEGER,
  backoff_max_ms    INTEGER,
  retention_done_ms INTEGER, -- NULL: an ack deletes
  retention_dead_ms INTEGER, -- NULL: indefinitely
  -- the claim
  token_sidecar     INTEGER,
  token_number      INTEGER,
  owner             INTEGER, -- the sidecar that must be alive for a session lease; 0: none (a timed lease of a dead sidecar)
  lease_ms          INTEGER, -- NULL: a session lease
  deadline          INTEGER, -- of the attempt; nothing extends it once a worker has the job
  due_at            INTEGER, -- the earlier of the timed lease's end and the deadline, once a worker has the job
  claimed_at        INTEGER,
  worker            TEXT,
  -- the end
  finished_at       INTEGER,
  prune_at          INTEGER,
  key               TEXT,
  group_name        TEXT -- a ready job with it is blocked: it waits for a slot of its group
    CONSTRAINT "group_name: use a text of 1 to 255 bytes" CHECK (group_name IS NULL OR typeof(group_name) = 'text' AND length(CAST(group_name AS BLOB)) BETWEEN 1 AND 255),
  admitted_group    TEXT, -- the group of a job that has a slot; group_name is NULL then
  group_noticed     INTEGER, -- of a blocked job, 1: a sidecar has noticed it; NULL: none has
  progress          INTEGER, -- 1: its worker reported progress, now or in an earlier attempt
  batch             INTEGER, -- of which the job is a member; NULL: none
  key_state         TEXT, -- start: its key is free once it has been claimed; pending: qsidecar_pending can have a row for it
  last_error        TEXT, -- NULL: it has no row in qsidecar_failures
  headers           TEXT
    CONSTRAINT "headers: use a JSON object with texts as values" CHECK (headers IS NULL OR CASE WHEN json_valid(headers) THEN json_type(headers) = 'object' ELSE 0 END),
  result            BLOB,
  payload           BLOB NOT NULL DEFAULT x''
);

CREATE INDEX qsidecar_ready     ON qsidecar_jobs (queue, priority DESC, position) WHERE state = 'ready' AND group_name IS NULL;
CREATE INDEX qsidecar_scheduled ON qsidecar_jobs (run_at, id)               WHERE state = 'scheduled';
CREATE INDEX qsidecar_delayed   ON qsidecar_jobs (queue, run_at, id)        WHERE state = 'scheduled';
CREATE INDEX qsidecar_owned     ON qsidecar_jobs (owner, id)                WHERE state = 'claimed';
CREATE INDEX qsidecar_claimed   ON qsidecar_jobs (queue, claimed_at, id)    WHERE state = 'claimed';
CREATE INDEX qsidecar_due       ON qsidecar_jobs (due_at)                   WHERE due_at IS NOT NULL;
CREATE INDEX qsidecar_finished  ON qsidecar_jobs (queue, state, finished_at, id) WHERE finished_at IS NOT NULL;
CREATE INDEX qsidecar_prunable  ON qsidecar_jobs (prune_at)                 WHERE prune_at IS NOT NULL;

-- Waiting jobs that expire.
CREATE INDEX qsidecar_expiring  ON qsidecar_jobs (start_before)             WHERE start_before IS NOT NULL AND state IN ('ready', 'scheduled');

-- Those of groups. Blocked jobs, in the order in which each group admits them; the blocked
-- jobs that no sidecar has noticed; the jobs that have slots.
CREATE INDEX qsidecar_blocked   ON qsidecar_jobs (queue, group_name, priority DESC, position) WHERE state = 'ready' AND group_name IS NOT NULL;
CREATE INDEX qsidecar_arrived   ON qsidecar_jobs (queue, group_name) WHERE state = 'ready' AND group_name IS NOT NULL AND group_noticed IS NULL;
CREATE INDEX qsidecar_admitted  ON qsidecar_jobs (queue, admitted_group, state) WHERE admitted_group IS NOT NULL;

-- A row without a position is a plain INSERT.
CREATE TRIGGER qsidecar_plain_insert AFTER INSERT ON qsidecar_jobs WHEN NEW.position IS NULL
BEGIN
  UPDATE qsidecar_jobs SET
    position = id,
    ready_at = enqueued_at,
    run_at = CASE typeof(run_at) WHEN 'text'
      THEN CAST(round((julianday(run_at) - 2440587.5) * 86400000) AS INTEGER) ELSE run_at END,
    start_before = CASE typeof(start_before) WHEN 'text'
      THEN CAST(round((julianday(start_before) - 2440587.5) * 86400000) AS INTEGER) ELSE start_before END
  WHERE id = NEW.id;
  UPDATE qsidecar_jobs SET state = 'scheduled' WHERE id = NEW.id AND run_at > enqueued_at;
END;

-- The database rejects an INSERT of a value that a sidecar can't use. It is a trigger,
-- because no later UPDATE must be refused, and SQLite can't change the CHECK of a table that
-- exists. run_at is from the years 1 to 9999.
CREATE TRIGGER qsidecar_usable BEFORE INSERT ON qsidecar_jobs
WHEN CASE typeof(NEW.run_at)
    WHEN 'integer' THEN NEW.run_at NOT BETWEEN -62135510400000 AND 253402300799999
    WHEN 'text' THEN round((julianday(NEW.run_at) - 2440587.5) * 86400000) NOT BETWEEN -62135510400000 AND 253402300799999
    ELSE 0 END
  OR CASE typeof(NEW.start_before)
    WHEN 'integer' THEN NEW.start_before NOT BETWEEN -62135510400000 AND 253402300799999
    WHEN 'text' THEN round((julianday(NEW.start_before) - 2440587.5) * 86400000) NOT BETWEEN -62135510400000 AND 253402300799999
    ELSE 0 END
  OR length(NEW.headers) > 65536
  OR typeof(NEW.enqueued_at) <> 'integer' OR NEW.enqueued_at NOT BETWEEN -62135510400000 AND 253402300799999
  OR typeof(NEW.attempts) <> 'integer' OR NEW.attempts NOT BETWEEN 0 AND 32767
  OR typeof(NEW.losses) <> 'integer' OR NEW.losses NOT BETWEEN 0 AND 32767
  OR typeof(NEW.prefetch_losses) <> 'integer' OR NEW.prefetch_losses NOT BETWEEN 0 AND 32767
  OR typeof(NEW.fence) <> 'integer' OR NEW.fence NOT BETWEEN 0 AND 4611686018427387903
  OR NEW.timeout_ms IS NOT NULL AND (typeof(NEW.timeout_ms) <> 'integer' OR NEW.timeout_ms NOT BETWEEN 1 AND 316224000000)
  OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 255
  OR NEW.admitted_group IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'qsidecar_usable: a value that a sidecar cannot use: run_at or start_before outside the years 1 to 9999, headers over 64 KiB, or a column that is not public');
END;

-- Lists, counts and retention find finished jobs by this instant. No sidecar would free a claimed job that no sidecar has claimed.
CREATE TRIGGER qsidecar_finished_at BEFORE INSERT ON qsidecar_jobs
WHEN NEW.state NOT IN ('ready', 'scheduled', 'claimed', 'done', 'dead') OR NEW.state IN ('done', 'dead') AND NEW.finished_at IS NULL
  OR NEW.state = 'claimed' AND NEW.token_sidecar IS NULL
BEGIN
  SELECT RAISE(ABORT, 'state: leave it out (done and dead need a finished_at)');
END;

-- The next ids and positions are counted from the largest ones. This trigger runs after
-- the INSERT: before it, a generated id is unknown.
CREATE TRIGGER qsidecar_usable_id AFTER INSERT ON qsidecar_jobs
WHEN NEW.id > 4611686018427387903 OR NEW.position NOT BETWEEN 1 AND 4611686018427387903
BEGIN
  SELECT RAISE(ABORT, 'qsidecar_usable_id: an id or a position that a sidecar cannot use: leave both to the database');
END;

-- If a job is deleted, so are its failures, and its key shows it as deleted.
CREATE TRIGGER qsidecar_row_deleted AFTER DELETE ON qsidecar_jobs
WHEN OLD.last_error IS NOT NULL OR OLD.key IS NOT NULL
BEGIN
  DELETE FROM qsidecar_failures WHERE job = OLD.id;
  UPDATE qsidecar_keys SET state = 'deleted'
    WHERE queue = OLD.queue AND key = OLD.key AND job = OLD.id AND state IS NULL;
END;

CREATE TABLE qsidecar_failures (
  job     INTEGER NOT NULL,
  fence   INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  cause   TEXT    NOT NULL,
  message TEXT    NOT NULL,
  at      INTEGER NOT NULL,
  PRIMARY KEY (job, fence)
) WITHOUT ROWID;

CREATE TABLE qsidecar_keys (
  queue      TEXT    NOT NULL,
  key        TEXT    NOT NULL,
  job        INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  state      TEXT, -- how the job ended; NULL: it has not
  PRIMARY KEY (queue, key)
) WITHOUT ROWID;

CREATE INDEX qsidecar_keys_prunable ON qsidecar_keys (expires_at) WHERE state IS NOT NULL;

CREATE TABLE qsidecar_sidecars (
  sidecar      INTEGER PRIMARY KEY, -- the sidecar's identity, as a signed number
  name         TEXT    NOT NULL,
  heartbeats   INTEGER NOT NULL,
  expires_at   INTEGER NOT NULL,
  has_left     INTEGER NOT NULL DEFAULT 0,
  dead         INTEGER NOT NULL DEFAULT 0,
  timeout_ms   INTEGER, -- for how long its last heartbeat is valid
  stats_leader INTEGER NOT NULL DEFAULT 0, -- it reads the statistics of the queues for the metrics of all
  version      TEXT, -- of the sidecar's program; NULL: unknown
  leases       INTEGER -- number of its session leases at its last heartbeat; NULL: unknown
);

CREATE TABLE qsidecar_queues (
  queue       TEXT    PRIMARY KEY,
  paused      INTEGER NOT NULL DEFAULT 0,
  -- its limits over all sidecars
  max_claimed INTEGER, -- how many jobs can be claimed at a time; NULL: any number
  rate        INTEGER, -- how many jobs can start in rate_ms; NULL: any number
  rate_ms     INTEGER,
  burst       INTEGER, -- how many jobs can start at once; NULL: what the rate allows in a second
  group_limit INTEGER, -- how many jobs of a group can be claimed at a time; NULL: 1, or any number with group_ready
  group_skips INTEGER, -- whether a failed job gives up its slot of the group; NULL: it doesn't
  group_ready INTEGER, -- how many jobs of a group can be ready at a time; NULL: any number
  limits_at   INTEGER  -- when the limits were changed
) WITHOUT ROWID;

-- When the rate of a queue has paid for all starts, in nanoseconds since 1970.
CREATE TABLE qsidecar_gates (
  queue   TEXT    PRIMARY KEY,
  next_at INTEGER NOT NULL
) WITHOUT ROWID;

-- The claimed jobs of queues with max_claimed. A row can outlive its claim until the next
-- claim from the queue.
CREATE TABLE qsidecar_capped (
  queue TEXT    NOT NULL,
  job   INTEGER NOT NULL,
  PRIMARY KEY (queue, job)
) WITHOUT ROWID;

-- Claims that a cancel ended. Each owner reads its own once a second, and deletes a row after it
-- has sent the event.
CREATE TABLE qsidecar_cancelled (
  owner         INTEGER NOT NULL,
  token_sidecar INTEGER NOT NULL,
  token_number  INTEGER NOT NULL,
  PRIMARY KEY (owner, token_sidecar, token_number)
) WITHOUT ROWID;

-- The progress that workers reported of their jobs. Its sidecar writes the last one of a job
-- at most once a second, and deletes the row after the job has ended.
CREATE TABLE qsidecar_progress (
  job   INTEGER PRIMARY KEY,
  fence INTEGER NOT NULL, -- of the claim whose worker reported it
  done  INTEGER, -- NULL: not reported
  total INTEGER,
  data  BLOB    NOT NULL,
  at    INTEGER NOT NULL  -- milliseconds since 1970, UTC
);

-- The pending jobs of idempotency keys: what is stored, or replaces the job's content, when the
-- claim of a job ends.
CREATE TABLE qsidecar_pending (
  job     INTEGER PRIMARY KEY, -- the claimed job
  since   INTEGER NOT NULL, -- when the first of those that it replaced was stored: milliseconds since 1970, UTC
  options TEXT    NOT NULL, -- all but its queue, key and payload: a JSON object
  payload BLOB    NOT NULL
);

-- The schedules. A sidecar moves next_at from one occurrence to the next, and stores the job, in
-- one transaction. All times are milliseconds since 1970, UTC.
CREATE TABLE qsidecar_schedules (
  name     TEXT    NOT NULL PRIMARY KEY,
  queue    TEXT    NOT NULL,
  cron     TEXT, -- when it runs; NULL: every_ms is set
  every_ms INTEGER,
  zone     TEXT, -- the time zone of cron; NULL: UTC
  splay_ms INTEGER, -- its times are later by a part of this, which the name decides
  headers  TEXT, -- of its jobs: a JSON object
  priority INTEGER NOT NULL,
  missed   TEXT    NOT NULL, -- what becomes of occurrences while no sidecar ran: one, all or skip
  overlap  TEXT    NOT NULL, -- what becomes of one while the last job isn't finished: allow or skip
  source   TEXT, -- the name of its declarations
  version  INTEGER NOT NULL, -- of the definition, among those of the source
  adopted  INTEGER NOT NULL, -- 1: only sidecars that have the queue in an adopted table fire it
  paused   INTEGER NOT NULL, -- 1: it is
  next_at  INTEGER, -- when the next job is stored; NULL: never
  last_at  INTEGER, -- the last occurrence that stored a job
  last_job TEXT, -- its id
  payload  BLOB    NOT NULL -- of its jobs
) WITHOUT ROWID;

CREATE INDEX qsidecar_schedules_next ON qsidecar_schedules (next_at) WHERE next_at IS NOT NULL;

-- The batches. Each transaction that concerns the members of one writes its row first. All times
-- are milliseconds since 1970, UTC.
CREATE TABLE qsidecar_batches (
  id           INTEGER PRIMARY KEY, -- random
  state        TEXT    NOT NULL, -- open, closed, ended (its callback is stored), cancelling or cancelled
  fires_on     TEXT    NOT NULL, -- when the callback is stored: success (all jobs are done) or finish (all have ended)
  batch_key    TEXT, -- a second batch of the queue with it is this one
  parent       INTEGER, -- the batch of which the callback is a member
  changes      INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  closed_at    INTEGER,
  ended_at     INTEGER,
  expires_at   INTEGER NOT NULL, -- when the row is deleted
  done         INTEGER, -- after its end: how many jobs were done
  failed       INTEGER, -- and how many were not
  callback     TEXT, -- the id of the callback's job
  -- the callback
  queue        TEXT    NOT NULL,
  priority     INTEGER NOT NULL,
  max_attempts INTEGER,
  timeout_ms   INTEGER,
  group_name   TEXT,
  headers      TEXT, -- a JSON object
  payload      BLOB    NOT NULL
);

CREATE UNIQUE INDEX qsidecar_batches_key    ON qsidecar_batches (queue, batch_key) WHERE batch_key IS NOT NULL;
CREATE INDEX qsidecar_batches_state  ON qsidecar_batches (state, id);
CREATE INDEX qsidecar_batches_expire ON qsidecar_batches (expires_at);

-- The members of batches that have not ended. A job that is done and gone has its mark here.
CREATE TABLE qsidecar_batch_members (
  batch INTEGER NOT NULL,
  done  INTEGER NOT NULL, -- 1: the job is done
  job   INTEGER NOT NULL, -- negative: the callback of this batch, which is not stored yet
  PRIMARY KEY (batch, done, job)
) WITHOUT ROWID;

-- Batches of which members ended. Whatever tries to end the batch then deletes the row.
CREATE TABLE qsidecar_batch_notes (
  batch INTEGER NOT NULL,
  note  INTEGER NOT NULL, -- random
  PRIMARY KEY (batch, note)
) WITHOUT ROWID;

-- Groups in which possibly a job has to be admitted. The transaction that freed a slot, or
-- stored a job, stored the row. The next admission of the group deletes it.
CREATE TABLE qsidecar_admissions (
  queue      TEXT NOT NULL,
  group_name TEXT NOT NULL,
  PRIMARY KEY (queue, group_name)
) WITHOUT ROWID;

-- What happened to the jobs of each queue, by hour, for 14 days. All sidecars add to it
-- about once an hour. `_other` has the queues beyond a sidecar's limit.
CREATE TABLE qsidecar_history (
  hour       INTEGER NOT NULL, -- hours since 1970, UTC
  queue      TEXT    NOT NULL,
  ready      INTEGER NOT NULL, -- the most ready jobs that statistics showed; -1: none showed them
  enqueued   INTEGER NOT NULL,
  acked      INTEGER NOT NULL,
  failed     INTEGER NOT NULL, -- attempts that ended without an ack, also snoozed ones
  run_1ms    INTEGER NOT NULL, -- runs that took up to a millisecond
  run_5ms    INTEGER NOT NULL, -- more than that, and up to 5 ms; and so on
  run_25ms   INTEGER NOT NULL,
  run_100ms  INTEGER NOT NULL,
  run_250ms  INTEGER NOT NULL,
  run_500ms  INTEGER NOT NULL,
  run_1s     INTEGER NOT NULL,
  run_2500ms INTEGER NOT NULL,
  run_5s     INTEGER NOT NULL,
  run_10s    INTEGER NOT NULL,
  run_30s    INTEGER NOT NULL,
  run_1m     INTEGER NOT NULL,
  run_5m     INTEGER NOT NULL,
  run_30m    INTEGER NOT NULL,
  run_1h     INTEGER NOT NULL,
  run_more   INTEGER NOT NULL, -- more than an hour
  PRIMARY KEY (hour, queue)
) WITHOUT ROWID;

-- The number of the last commit of each open handle: shows, after a commit
-- whose answer got lost, whether it happened.
CREATE TABLE qsidecar_commits (
  handle INTEGER PRIMARY KEY,
  number INTEGER NOT NULL,
  at     INTEGER NOT NULL
);

-- The leases of jobs whose rows are in tables that another application owns. Nothing is
-- added to those tables. A row exists from the first claim of its job until the job is
-- settled.
CREATE TABLE qsidecar_leases (
  id             INTEGER PRIMARY KEY, -- random, so that no lease ever means another row
  queue          TEXT    NOT NULL,
  item           TEXT    NOT NULL, -- the id of the job's row
  fence          INTEGER NOT NULL,
  attempts       INTEGER NOT NULL, -- deliveries that count
  losses         INTEGER NOT NULL, -- consecutive failures that were not nacks or time-outs
  not_before     INTEGER, -- not claimed earlier; the largest number: dead
  -- the policy of the last claim
  claim_max      INTEGER NOT NULL,
  backoff_ms     INTEGER NOT NULL,
  backoff_max_ms INTEGER NOT NULL,
  -- the claim; all NULL: there is none
  token_sidecar  INTEGER,
  token_number   INTEGER,
  owner          INTEGER, -- the sidecar that must be alive for a session lease; 0: none
  lease_ms       INTEGER, -- NULL: a session lease
  deadline       INTEGER, -- of the attempt; nothing extends it
  due_at         INTEGER, -- the earlier of the timed lease's end and the deadline
  claimed_at     INTEGER,
  worker         TEXT,
  claim_values   TEXT,    -- JSON: what the claim wrote into the job's row, and which values it replaced, by role
  failures       TEXT,    -- a JSON list, the latest last
  changed_at     INTEGER NOT NULL,
  UNIQUE (queue, item)
);

CREATE INDEX qsidecar_leases_owned ON qsidecar_leases (owner, id) WHERE token_sidecar IS NOT NULL;
CREATE INDEX qsidecar_leases_due   ON qsidecar_leases (due_at)    WHERE due_at IS NOT NULL;

INSERT INTO sqlite_sequence (name, seq) VALUES ('qsidecar_jobs', 0);
