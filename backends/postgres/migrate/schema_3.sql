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
