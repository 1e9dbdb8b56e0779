-- Schema version 2: the leases of jobs whose rows are in tables that another
-- application owns. Nothing is added to those tables. A row exists from the first claim of
-- its job until the job is settled.

CREATE TABLE IF NOT EXISTS qsidecar_leases (
  id             INTEGER PRIMARY KEY, -- random, so that no lease ever means another row
  queue          TEXT    NOT NULL,
  item           TEXT    NOT NULL, -- the id of the job's row
  fence          INTEGER NOT NULL,
  attempts       INTEGER NOT NULL, -- deliveries that count
  losses         INTEGER NOT NULL, -- consecutive failures that were not nacks
  not_before     INTEGER, -- not claimed earlier; the largest number: dead
  -- the policy of the last claim
  claim_max      INTEGER NOT NULL,
  backoff_ms     INTEGER NOT NULL,
  backoff_max_ms INTEGER NOT NULL,
  -- the claim; all NULL: there is none
  token_host     INTEGER,
  token_number   INTEGER,
  owner          INTEGER, -- the sidecar that must be alive for a session lease; 0: none
  lease_ms       INTEGER, -- NULL: a session lease
  deadline       INTEGER, -- of the attempt; nothing extends it
  due_at         INTEGER, -- the earlier of the timed lease's end and the deadline
  claimed_at     INTEGER,
  worker         TEXT,
  shown          TEXT,    -- a JSON map: what the claim wrote into the job's row, by role
  failures       TEXT,    -- a JSON list, the latest last
  changed_at     INTEGER NOT NULL,
  UNIQUE (queue, item)
);

CREATE INDEX IF NOT EXISTS qsidecar_leases_owned ON qsidecar_leases (owner, id) WHERE token_host IS NOT NULL;
CREATE INDEX IF NOT EXISTS qsidecar_leases_due   ON qsidecar_leases (due_at)    WHERE due_at IS NOT NULL;
