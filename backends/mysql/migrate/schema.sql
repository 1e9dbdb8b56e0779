-- qsidecar's tables in MySQL 8.0.13 and later and MariaDB 10.3 and later, schema
-- version 1.
--
-- A plain INSERT is an enqueue, in any program's own transaction:
--
--   INSERT INTO qsidecar_jobs (queue, payload) VALUES ('mail', 'hello');
--
-- Public columns: queue, payload, priority, headers, max_attempts, run_at (UTC), group_name,
-- start_before (UTC), on_expiry, retain_ms.
-- All others are the sidecar's own. There are no triggers and no functions here:
-- they would need rights that few applications have, and slow down each row.

CREATE TABLE IF NOT EXISTS qsidecar_jobs (
  id                BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY, -- never reused
  -- Order inside a priority: the microsecond in which it became ready, by the
  -- server's clock at that row, in any session's zone and however long its
  -- statement has been running. The id decides between equals.
  position          BIGINT       NOT NULL DEFAULT ({position}),
  enqueued_at       DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  ready_at          DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)), -- when it became ready
  fence             BIGINT       NOT NULL DEFAULT 0,
  attempts          INT          NOT NULL DEFAULT 0, -- deliveries that count
  losses            INT          NOT NULL DEFAULT 0, -- consecutive failures that were not nacks or time-outs
  prefetch_losses   INT          NOT NULL DEFAULT 0, -- consecutive sidecars that died while it was prefetched
  priority          SMALLINT     NOT NULL DEFAULT 0,
  max_attempts      SMALLINT,
  prefetched        TINYINT      NOT NULL DEFAULT 0, -- 1: its delivery is not recorded and not in attempts
  queue             VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state             VARCHAR(9)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'ready',
  timeout_ms        BIGINT, -- the job's own
  retain_ms         BIGINT, -- how long the done job is kept at least; NULL: as the queue's are
  -- Of a plain INSERT with a start_before it is set, so that maintenance stores in qsidecar_expiring when the job expires.
  run_at            DATETIME(6)  DEFAULT (IF(start_before IS NULL, NULL, UTC_TIMESTAMP(6))),
  start_before      DATETIME(6), -- no attempt starts at this time or later; NULL: no limit
  on_expiry         VARCHAR(6)   CHARACTER SET ascii COLLATE ascii_bin CHECK (on_expiry IN ('dead', 'delete')), -- what becomes of it at start_before; NULL: dead
  -- the policy of the last claim
  claim_max         INT,
  backoff_ms        BIGINT,
  backoff_max_ms    BIGINT,
  retention_done_ms BIGINT, -- NULL: an ack deletes
  retention_dead_ms BIGINT, -- NULL: indefinitely
  -- the claim
  token_sidecar     BIGINT,
  token_number      BIGINT,
  owner             BIGINT, -- the sidecar that must be alive for a session lease; 0: none (a timed lease of a dead sidecar)
  lease_ms          BIGINT, -- NULL: a session lease
  deadline          DATETIME(6), -- of the attempt; nothing extends it once a worker has the job
  due_at            DATETIME(6), -- the earlier of the timed lease's end and the deadline, once a worker has the job
  claimed_at        DATETIME(6),
  worker            VARCHAR(128),
  -- the end
  finished_at       DATETIME(6),
  prune_at          DATETIME(6),
  `key`             VARBINARY(255),
  group_name        VARBINARY(256), -- a ready job with it is blocked: it waits for a slot of its group
  admitted_group    VARBINARY(256), -- the group of a job that has a slot; group_name is NULL then
  group_noticed     TINYINT, -- of a blocked job: a sidecar has noticed it; NULL: none has
  progress          TINYINT, -- 1: its worker reported progress, now or in an earlier attempt
  batch             BIGINT, -- of which the job is a member; NULL: none
  key_state         VARCHAR(7)   CHARACTER SET ascii COLLATE ascii_bin, -- start: its key is free once it has been claimed; pending: qsidecar_pending can have a row for it
  last_error        TEXT, -- NULL: it has no row in qsidecar_failures
  headers           JSON,
  result            LONGBLOB,
  payload           LONGBLOB     NOT NULL DEFAULT (''),

  -- Each row has one position in one `segment`, so that one index serves every query, and a
  -- change of state moves one entry. ../internal/table/segment.go has the letters for the program.
  --   r QUEUE  ready, by urgency and position    s QUEUE  scheduled, by due time
  --   c OWNER  claimed, by the end of its lease  d QUEUE  done, by its end
  --   n        a plain INSERT with a run_at or start_before    x QUEUE  dead, by its end
  -- (The next maintenance schedules a row in n, or makes it ready.) Each group has two more values:
  --   a QUEUE!GROUP  blocked, and no sidecar has noticed it    b QUEUE!GROUP  the other blocked ones
  -- GROUP is in hexadecimal digits. No queue has ! in its name.
  segment           VARCHAR(642) CHARACTER SET ascii COLLATE ascii_bin AS (CASE state
    WHEN 'ready' THEN IF(run_at IS NOT NULL, 'n', IF(group_name IS NULL, CONCAT('r', queue),
      CONCAT(IF(group_noticed IS NULL, 'a', 'b'), queue, '!', HEX(group_name))))
    WHEN 'claimed' THEN CONCAT('c', LPAD(HEX(owner), 16, '0'))
    WHEN 'scheduled' THEN CONCAT('s', queue)
    WHEN 'done' THEN CONCAT('d', queue)
    WHEN 'dead' THEN CONCAT('x', queue)
    ELSE '?' END) STORED,
  urgency           INT AS (IF(state = 'ready' AND run_at IS NULL, -priority, 0)) STORED,
  sort_key          BIGINT AS (CASE state
    WHEN 'ready' THEN position
    WHEN 'claimed' THEN IF(due_at IS NULL, 9223372036854775807, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at))
    WHEN 'scheduled' THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', run_at)
    ELSE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', finished_at) END) STORED,
  KEY qsidecar_segments (segment, urgency, sort_key, id),

  -- The name of a rule is what a producer sees. MariaDB reports the first one that a row breaks.
  CONSTRAINT `max_attempts: use a number from 1 to 32767` CHECK (max_attempts >= 1),
  CONSTRAINT `headers: use a JSON object with texts as values` CHECK (headers IS NULL OR JSON_TYPE(headers) = 'OBJECT'),

  -- Values that a sidecar can't use, which a session that is not strict can store.
  CONSTRAINT qsidecar_usable CHECK (fence BETWEEN 1 AND 4611686018427387903 OR fence = 0
    AND (run_at IS NULL OR run_at >= '1000-01-01' AND TIMESTAMPDIFF(MICROSECOND, '1970-01-01', run_at) IS NOT NULL)
    AND (headers IS NULL OR COALESCE(JSON_TYPE(headers), '') = 'OBJECT' AND LENGTH(headers) <= 65536)
    AND (start_before IS NULL OR start_before >= '1000-01-01' AND TIMESTAMPDIFF(MICROSECOND, '1970-01-01', start_before) IS NOT NULL)
    AND enqueued_at >= '1000-01-01' AND ready_at >= '1000-01-01'
    AND attempts BETWEEN 0 AND 32767 AND losses BETWEEN 0 AND 32767 AND prefetch_losses BETWEEN 0 AND 32767
    AND (timeout_ms IS NULL OR timeout_ms BETWEEN 1 AND 316224000000) AND (retain_ms IS NULL OR retain_ms BETWEEN 1 AND 316224000000)
    AND (`key` IS NULL OR LENGTH(`key`) > 0)
    AND (group_name IS NULL OR LENGTH(group_name) BETWEEN 1 AND 255) AND admitted_group IS NULL),
  CONSTRAINT `queue: use A-Z a-z 0-9 . _ : / - and do not start with . or -` CHECK (queue REGEXP '^[A-Za-z0-9_:/]' AND queue NOT REGEXP '[^A-Za-z0-9._:/-]'),
  CONSTRAINT qsidecar_position CHECK (position > 0),
  -- Lists, counts and retention find finished jobs by this instant.
  CONSTRAINT `state: leave it out (done and dead need a finished_at)` CHECK (state IN ('ready', 'scheduled') OR state = 'claimed' AND token_sidecar IS NOT NULL OR state IN ('done', 'dead') AND finished_at IS NOT NULL)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS qsidecar_failures (
  job     BIGINT      NOT NULL,
  fence   BIGINT      NOT NULL, -- of the delivery that failed
  attempt INT         NOT NULL,
  cause   VARCHAR(16) NOT NULL,
  message TEXT        NOT NULL,
  at      DATETIME(6) NOT NULL,
  PRIMARY KEY (job, fence)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- When jobs expire. A row whose job doesn't wait any more, or has another start_before, means
-- nothing. It is deleted at its time, too. A claim doesn't need it.
CREATE TABLE IF NOT EXISTS qsidecar_expiring (
  start_before DATETIME(6) NOT NULL,
  job          BIGINT      NOT NULL,
  PRIMARY KEY (start_before, job)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- When finished jobs are deleted. A row whose job is gone, or has finished again, means
-- nothing. It is deleted at its time, too.
CREATE TABLE IF NOT EXISTS qsidecar_prunable (
  prune_at   DATETIME(6) NOT NULL,
  job        BIGINT      NOT NULL,
  PRIMARY KEY (prune_at, job)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS qsidecar_keys (
  queue      VARCHAR(128)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `key`      VARBINARY(255) NOT NULL,
  job        BIGINT         NOT NULL,
  expires_at DATETIME(6)    NOT NULL,
  state      VARCHAR(9)     CHARACTER SET ascii COLLATE ascii_bin, -- how the job ended; NULL: it has not
  prune_at   DATETIME(6)    AS (IF(state IS NULL, NULL, expires_at)) STORED,
  PRIMARY KEY (queue, `key`),
  KEY qsidecar_keys_prunable (prune_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS qsidecar_sidecars (
  sidecar      BIGINT       NOT NULL PRIMARY KEY, -- the sidecar's identity, as a signed number
  name         VARCHAR(255) NOT NULL,
  heartbeats   BIGINT       NOT NULL,
  expires_at   DATETIME(6)  NOT NULL,
  has_left     TINYINT      NOT NULL DEFAULT 0,
  dead         TINYINT      NOT NULL DEFAULT 0,
  timeout_ms   BIGINT, -- for how long its last heartbeat is valid
  stats_leader TINYINT      NOT NULL DEFAULT 0, -- it reads the statistics of the queues for the metrics of all
  version      VARCHAR(64), -- of the sidecar's program; NULL: unknown
  leases       BIGINT -- number of its session leases at its last heartbeat; NULL: unknown
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Each queue that a sidecar stored a job in.
CREATE TABLE IF NOT EXISTS qsidecar_queues (
  queue    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  paused   TINYINT      NOT NULL DEFAULT 0,
  requeues BIGINT       NOT NULL DEFAULT 0, -- how often jobs were given back in their old positions
  -- its limits over all sidecars
  max_claimed BIGINT, -- how many jobs can be claimed at a time; NULL: any number
  rate        BIGINT, -- how many jobs can start in rate_ms; NULL: any number
  rate_ms     BIGINT,
  burst       BIGINT, -- how many jobs can start at once; NULL: what the rate allows in a second
  group_limit BIGINT, -- how many jobs of a group can be claimed at a time; NULL: 1, or any number with group_ready
  group_skips TINYINT, -- whether a failed job gives up its slot of the group; NULL: it doesn't
  group_ready BIGINT, -- how many jobs of a group can be ready at a time; NULL: any number
  limits_at   DATETIME(6) -- when the limits were changed
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- A row for each queue with limits. Each claim from the queue locks and writes it.
CREATE TABLE IF NOT EXISTS qsidecar_gates (
  queue   VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  passes  BIGINT       NOT NULL DEFAULT 1, -- how often it was locked
  next_at BIGINT       NOT NULL DEFAULT 0  -- when the rate has paid for all starts, in nanoseconds since 1970
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The claimed jobs of queues with max_claimed. A row can outlive its claim until the next
-- claim from the queue.
CREATE TABLE IF NOT EXISTS qsidecar_capped (
  queue VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  job   BIGINT       NOT NULL,
  PRIMARY KEY (queue, job)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Claims that a cancel ended. Each owner reads its own once a second, and deletes a row after it
-- has sent the event.
CREATE TABLE IF NOT EXISTS qsidecar_cancelled (
  owner         BIGINT NOT NULL,
  token_sidecar BIGINT NOT NULL,
  token_number  BIGINT NOT NULL,
  PRIMARY KEY (owner, token_sidecar, token_number)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The schedules. A sidecar moves next_at from one occurrence to the next, and stores the job, in
-- one transaction. All times are milliseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS qsidecar_schedules (
  name     VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  queue    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  cron     VARCHAR(255), -- when it runs; NULL: every_ms is set
  every_ms BIGINT,
  zone     VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin, -- the time zone of cron; NULL: UTC
  splay_ms BIGINT, -- its times are later by a part of this, which the name decides
  headers  MEDIUMTEXT, -- of its jobs: a JSON object
  priority BIGINT                                             NOT NULL,
  missed   VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin   NOT NULL, -- what becomes of occurrences while no sidecar ran: one, all or skip
  overlap  VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin   NOT NULL, -- what becomes of one while the last job isn't finished: allow or skip
  source   VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin, -- the name of its declarations
  version  BIGINT                                             NOT NULL, -- of the definition, among those of the source
  adopted  BIGINT                                             NOT NULL, -- 1: only sidecars that have the queue in an adopted table fire it
  paused   BIGINT                                             NOT NULL, -- 1: it is
  next_at  BIGINT, -- when the next job is stored; NULL: never
  last_at  BIGINT, -- the last occurrence that stored a job
  last_job VARCHAR(255), -- its id
  payload  MEDIUMBLOB                                         NOT NULL, -- of its jobs
  KEY qsidecar_schedules_next (next_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The batches. Each transaction that concerns the members of one writes its row first. All times
-- are milliseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS qsidecar_batches (
  id           BIGINT       NOT NULL PRIMARY KEY, -- random
  state        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- open, closed, ended (its callback is stored), cancelling or cancelled
  fires_on     VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- when the callback is stored: success (all jobs are done) or finish (all have ended)
  batch_key    VARBINARY(255), -- a second batch of the queue with it is this one
  parent       BIGINT, -- the batch of which the callback is a member
  changes      BIGINT       NOT NULL,
  created_at   BIGINT       NOT NULL,
  closed_at    BIGINT,
  ended_at     BIGINT,
  expires_at   BIGINT       NOT NULL, -- when the row is deleted
  done         BIGINT, -- after its end: how many jobs were done
  failed       BIGINT, -- and how many were not
  callback     VARCHAR(255), -- the id of the callback's job
  -- the callback
  queue        VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  priority     BIGINT       NOT NULL,
  max_attempts BIGINT,
  timeout_ms   BIGINT,
  group_name   VARBINARY(256),
  headers      MEDIUMTEXT, -- a JSON object
  payload      MEDIUMBLOB   NOT NULL,
  UNIQUE KEY qsidecar_batches_key (queue, batch_key),
  KEY qsidecar_batches_state (state, id),
  KEY qsidecar_batches_expire (expires_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The members of batches that have not ended. A job that is done and gone has its mark here.
CREATE TABLE IF NOT EXISTS qsidecar_batch_members (
  batch BIGINT NOT NULL,
  done  BIGINT NOT NULL, -- 1: the job is done
  job   BIGINT NOT NULL, -- negative: the callback of this batch, which is not stored yet
  PRIMARY KEY (batch, done, job)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Batches of which members ended. Whatever tries to end the batch then deletes the row.
CREATE TABLE IF NOT EXISTS qsidecar_batch_notes (
  batch BIGINT NOT NULL,
  note  BIGINT NOT NULL, -- random, so that no transaction waits for the row of another one
  PRIMARY KEY (batch, note)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Locks of admissions. Each group has one of the stripes of its queue.
CREATE TABLE IF NOT EXISTS qsidecar_stripes (
  queue  VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  stripe INT          NOT NULL,
  passes BIGINT       NOT NULL DEFAULT 1, -- how often it was locked
  PRIMARY KEY (queue, stripe)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Groups in which possibly a job has to be admitted. The transaction that freed a slot, or
-- stored a job, stored the row. The next admission of the group deletes it.
CREATE TABLE IF NOT EXISTS qsidecar_admissions (
  queue      VARCHAR(128)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  group_name VARBINARY(256) NOT NULL,
  note       BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY, -- so that no transaction waits for the row of another one
  KEY qsidecar_admissions_group (queue, group_name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The jobs that have slots of groups. Only an admission stores a row. It can outlive the slot
-- until the next admission of the group.
CREATE TABLE IF NOT EXISTS qsidecar_admitted (
  queue      VARCHAR(128)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  group_name VARBINARY(256) NOT NULL,
  job        BIGINT         NOT NULL,
  PRIMARY KEY (queue, group_name, job)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The progress that workers reported of their jobs. Its sidecar writes the last one of a job
-- at most once a second, and deletes the row after the job has ended.
CREATE TABLE IF NOT EXISTS qsidecar_progress (
  job   BIGINT          NOT NULL PRIMARY KEY,
  fence BIGINT          NOT NULL, -- of the claim whose worker reported it
  done  BIGINT, -- NULL: not reported
  total BIGINT,
  data  VARBINARY(4096) NOT NULL,
  at    BIGINT          NOT NULL  -- milliseconds since 1970, UTC
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The pending jobs of idempotency keys: what is stored, or replaces the job's content, when the
-- claim of a job ends.
CREATE TABLE IF NOT EXISTS qsidecar_pending (
  job     BIGINT   NOT NULL PRIMARY KEY, -- the claimed job
  since   BIGINT   NOT NULL, -- when the first of those that it replaced was stored: milliseconds since 1970, UTC
  options LONGTEXT NOT NULL, -- all but its queue, key and payload: a JSON object
  payload LONGBLOB NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What happened to the jobs of each queue, by hour, for 14 days. All sidecars add to it
-- about once an hour. `_other` has the queues beyond a sidecar's limit.
CREATE TABLE IF NOT EXISTS qsidecar_history (
  hour       BIGINT       NOT NULL, -- hours since 1970, UTC
  queue      VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  ready      BIGINT       NOT NULL, -- the most ready jobs that statistics showed; -1: none showed them
  enqueued   BIGINT       NOT NULL,
  acked      BIGINT       NOT NULL,
  failed     BIGINT       NOT NULL, -- attempts that ended without an ack, also snoozed ones
  run_1ms    BIGINT       NOT NULL, -- runs that took up to a millisecond
  run_5ms    BIGINT       NOT NULL, -- more than that, and up to 5 ms; and so on
  run_25ms   BIGINT       NOT NULL,
  run_100ms  BIGINT       NOT NULL,
  run_250ms  BIGINT       NOT NULL,
  run_500ms  BIGINT       NOT NULL,
  run_1s     BIGINT       NOT NULL,
  run_2500ms BIGINT       NOT NULL,
  run_5s     BIGINT       NOT NULL,
  run_10s    BIGINT       NOT NULL,
  run_30s    BIGINT       NOT NULL,
  run_1m     BIGINT       NOT NULL,
  run_5m     BIGINT       NOT NULL,
  run_30m    BIGINT       NOT NULL,
  run_1h     BIGINT       NOT NULL,
  run_more   BIGINT       NOT NULL, -- more than an hour
  PRIMARY KEY (hour, queue)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The number of the last commit on each pipeline of each open handle: shows, after a
-- commit whose answer got lost, whether it happened.
CREATE TABLE IF NOT EXISTS qsidecar_commits (
  handle BIGINT          NOT NULL PRIMARY KEY,
  number BIGINT UNSIGNED NOT NULL,
  at     DATETIME(6)     NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The leases of jobs whose rows are in tables that another application owns. Nothing is
-- added to those tables. A row exists from the first claim of its job until the job is
-- settled. All times are milliseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS qsidecar_leases (
  id             BIGINT          NOT NULL PRIMARY KEY, -- random, so that no lease ever means another row
  queue          VARCHAR(128)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  item           VARBINARY(1024) NOT NULL, -- the id of the job's row, in UTF-8
  fence          BIGINT          NOT NULL,
  attempts       INT             NOT NULL, -- deliveries that count
  losses         INT             NOT NULL, -- consecutive failures that were not nacks or time-outs
  not_before     BIGINT, -- not claimed earlier; the largest number: dead
  -- the policy of the last claim
  claim_max      INT             NOT NULL,
  backoff_ms     BIGINT          NOT NULL,
  backoff_max_ms BIGINT          NOT NULL,
  -- the claim; all NULL: there is none
  token_sidecar  BIGINT,
  token_number   BIGINT,
  owner          BIGINT, -- the sidecar that must be alive for a session lease; 0: none
  lease_ms       BIGINT, -- NULL: a session lease
  deadline       BIGINT, -- of the attempt; nothing extends it
  due_at         BIGINT, -- the earlier of the timed lease's end and the deadline
  claimed_at     BIGINT,
  worker         VARCHAR(128),
  claim_values   TEXT,       -- JSON: what the claim wrote into the job's row, and which values it replaced, by role
  failures       MEDIUMTEXT, -- a JSON list, the latest last
  changed_at     BIGINT          NOT NULL,
  UNIQUE KEY qsidecar_leases_item (queue, item),
  KEY qsidecar_leases_owned (owner, id),
  KEY qsidecar_leases_due (due_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS qsidecar_meta (
  singleton   TINYINT     NOT NULL PRIMARY KEY CHECK (singleton = 1),
  version     INT         NOT NULL, -- of this schema
  min_program INT         NOT NULL, -- the oldest program generation that can use it
  `database`  VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL -- random: leases name it
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT IGNORE INTO qsidecar_meta (singleton, version, min_program, `database`) VALUES (1, 1, 1,
  LEFT(REPLACE(REPLACE(TO_BASE64(UNHEX(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256))), '+', '-'), '/', '_'), 11));
