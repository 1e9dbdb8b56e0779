-- Schema version 2.
--
-- The index of failures by their time is for people and monitoring, who ask what
-- failed lately:
--
--   SELECT cause, count(*) FROM {s}.qsidecar_failures
--   WHERE at > now() - interval '1 hour' GROUP BY cause;

ALTER TABLE {s}.qsidecar_hosts
  ADD COLUMN IF NOT EXISTS lease_ms  bigint, -- how long its last beat was good for when it was made
  -- Who still runs an older program, before a version comes that no longer suits it.
  ADD COLUMN IF NOT EXISTS knows     integer, -- the latest version that the sidecar's program knows; NULL: 1
  ADD COLUMN IF NOT EXISTS joined_at timestamptz;

-- One row, which a crash of the server and a failover take away (UNLOGGED): so
-- whoever saw it in a transaction whose outcome is asked for knows whether the
-- server still is who it was. A server that crashed may have lost the transaction
-- and given its number to another one.
CREATE UNLOGGED TABLE IF NOT EXISTS {s}.qsidecar_epoch (
  one   smallint PRIMARY KEY CHECK (one = 1),
  epoch text     NOT NULL -- the system's identifier, its timeline and something random, with / between them
);
