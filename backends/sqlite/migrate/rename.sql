-- Schema version 5: the tables of the last preview (version 4) get the names that
-- schema.sql gives them. Programs of the previews can't use them: min_program stops those
-- programs with a message.

ALTER TABLE qsidecar_meta RENAME COLUMN one TO singleton;

DROP TRIGGER qsidecar_usable;
ALTER TABLE qsidecar_jobs RENAME COLUMN unrecorded TO prefetch_losses;
ALTER TABLE qsidecar_jobs RENAME COLUMN ahead TO prefetched;
ALTER TABLE qsidecar_jobs RENAME COLUMN keep_ms TO retention_done_ms;
ALTER TABLE qsidecar_jobs RENAME COLUMN keep_dead_ms TO retention_dead_ms;
ALTER TABLE qsidecar_jobs RENAME COLUMN token_host TO token_sidecar;
CREATE TRIGGER qsidecar_usable BEFORE INSERT ON qsidecar_jobs
WHEN CASE typeof(NEW.run_at)
    WHEN 'integer' THEN NEW.run_at NOT BETWEEN -62135510400000 AND 253402300799999
    WHEN 'text' THEN round((julianday(NEW.run_at) - 2440587.5) * 86400000) NOT BETWEEN -62135510400000 AND 253402300799999
    ELSE 0 END
  OR length(NEW.headers) > 65536
  OR typeof(NEW.enqueued_at) <> 'integer' OR NEW.enqueued_at NOT BETWEEN -62135510400000 AND 253402300799999
  OR typeof(NEW.attempts) <> 'integer' OR NEW.attempts NOT BETWEEN 0 AND 32767
  OR typeof(NEW.losses) <> 'integer' OR NEW.losses NOT BETWEEN 0 AND 32767
  OR typeof(NEW.prefetch_losses) <> 'integer' OR NEW.prefetch_losses NOT BETWEEN 0 AND 32767
  OR typeof(NEW.fence) <> 'integer' OR NEW.fence NOT BETWEEN 0 AND 4611686018427387903
  OR NEW.timeout_ms IS NOT NULL AND (typeof(NEW.timeout_ms) <> 'integer' OR NEW.timeout_ms NOT BETWEEN 1 AND 316224000000)
  OR NEW.state IN ('done', 'dead') AND NEW.finished_at IS NULL
  OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 255
BEGIN
  SELECT RAISE(ABORT, 'qsidecar_usable: a value that a sidecar cannot use: run_at outside the years 1 to 9999, headers over 64 KiB, or a column that is not public');
END;

DROP INDEX qsidecar_keys_over;
CREATE INDEX qsidecar_keys_expiring ON qsidecar_keys (expires_at) WHERE state IS NOT NULL;

ALTER TABLE qsidecar_hosts RENAME TO qsidecar_sidecars;
ALTER TABLE qsidecar_sidecars RENAME COLUMN host TO sidecar;
ALTER TABLE qsidecar_sidecars RENAME COLUMN beats TO heartbeats;

ALTER TABLE qsidecar_leases RENAME COLUMN token_host TO token_sidecar;
ALTER TABLE qsidecar_leases RENAME COLUMN shown TO claim_values;

-- Rows that only an INSERT of another program can have stored, and that no list finds.
UPDATE qsidecar_jobs SET finished_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE state IN ('done', 'dead') AND finished_at IS NULL;

UPDATE qsidecar_meta SET version = 5, min_program = 2;
