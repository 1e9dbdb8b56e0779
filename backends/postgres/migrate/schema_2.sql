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
