-- Schema version 2: the leases of jobs whose rows are in tables that another
-- application owns. Nothing is added to those tables. A row exists from the first claim of
-- its job until the job is settled. All times are milliseconds since 1970, UTC.

CREATE TABLE IF NOT EXISTS qsidecar_leases (
  id             BIGINT          NOT NULL PRIMARY KEY, -- random, so that no lease ever means another row
  queue          VARCHAR(128)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  item           VARBINARY(1024) NOT NULL, -- the id of the job's row, in UTF-8
  fence          BIGINT          NOT NULL,
  attempts       INT             NOT NULL, -- deliveries that count
  losses         INT             NOT NULL, -- consecutive failures that were not nacks
  not_before     BIGINT, -- not claimed earlier; the largest number: dead
  -- the policy of the last claim
  claim_max      INT             NOT NULL,
  backoff_ms     BIGINT          NOT NULL,
  backoff_max_ms BIGINT          NOT NULL,
  -- the claim; all NULL: there is none
  token_host     BIGINT,
  token_number   BIGINT,
  owner          BIGINT, -- the sidecar that must be alive for a session lease; 0: none
  lease_ms       BIGINT, -- NULL: a session lease
  deadline       BIGINT, -- of the attempt; nothing extends it
  due_at         BIGINT, -- the earlier of the timed lease's end and the deadline
  claimed_at     BIGINT,
  worker         VARCHAR(128),
  shown          TEXT,       -- a JSON map: what the claim wrote into the job's row, by role
  failures       MEDIUMTEXT, -- a JSON list, the latest last
  changed_at     BIGINT          NOT NULL,
  UNIQUE KEY qsidecar_leases_item (queue, item),
  KEY qsidecar_leases_owned (owner, id),
  KEY qsidecar_leases_due (due_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

UPDATE qsidecar_meta SET version = 2 WHERE version < 2;
