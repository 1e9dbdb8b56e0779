-- Schema version 5: the tables of the last preview (version 4) get the names that
-- schema.sql gives them. Programs of the previews can't use them: min_program stops those
-- programs with a message.

ALTER TABLE qsidecar_meta RENAME COLUMN one TO singleton;

ALTER TABLE qsidecar_jobs RENAME COLUMN unrecorded TO prefetch_losses;
ALTER TABLE qsidecar_jobs RENAME COLUMN ahead TO prefetched;
ALTER TABLE qsidecar_jobs RENAME COLUMN keep_ms TO retention_done_ms;
ALTER TABLE qsidecar_jobs RENAME COLUMN keep_dead_ms TO retention_dead_ms;
ALTER TABLE qsidecar_jobs RENAME COLUMN token_host TO token_sidecar;

DROP INDEX qsidecar_keys_over;
CREATE INDEX qsidecar_keys_expiring ON qsidecar_keys (expires_at) WHERE state IS NOT NULL;

ALTER TABLE qsidecar_hosts RENAME TO qsidecar_sidecars;
ALTER TABLE qsidecar_sidecars RENAME COLUMN host TO sidecar;
ALTER TABLE qsidecar_sidecars RENAME COLUMN beats TO heartbeats;
ALTER TABLE qsidecar_sidecars ADD COLUMN timeout_ms INTEGER;
ALTER TABLE qsidecar_sidecars ADD COLUMN stats_leader INTEGER NOT NULL DEFAULT 0;
ALTER TABLE qsidecar_sidecars ADD COLUMN version TEXT;
ALTER TABLE qsidecar_sidecars ADD COLUMN leases INTEGER;

ALTER TABLE qsidecar_leases RENAME COLUMN token_host TO token_sidecar;
ALTER TABLE qsidecar_leases RENAME COLUMN shown TO claim_values;

-- Rows that only an INSERT of another program can have stored, and that no list finds.
UPDATE qsidecar_jobs SET finished_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE state IN ('done', 'dead') AND finished_at IS NULL;
CREATE TRIGGER qsidecar_finished_at BEFORE INSERT ON qsidecar_jobs
WHEN NEW.state IN ('done', 'dead') AND NEW.finished_at IS NULL
BEGIN
  SELECT RAISE(ABORT, 'qsidecar_finished_at: a done or dead job without finished_at');
END;

UPDATE qsidecar_meta SET version = 5, min_program = 2;
