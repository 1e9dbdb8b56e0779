-- Schema version 3: the database rejects an INSERT of a value that a sidecar can't use. It is a
-- trigger, because SQLite can't add a CHECK to an existing table. Existing rows stay:
-- sidecars skip those that they can't use, and log it. run_at is from the
-- years 1 to 9999.

CREATE TRIGGER IF NOT EXISTS qsidecar_usable BEFORE INSERT ON qsidecar_jobs
WHEN CASE typeof(NEW.run_at)
    WHEN 'integer' THEN NEW.run_at NOT BETWEEN -62135510400000 AND 253402300799999
    WHEN 'text' THEN round((julianday(NEW.run_at) - 2440587.5) * 86400000) NOT BETWEEN -62135510400000 AND 253402300799999
    ELSE 0 END
  OR length(NEW.headers) > 65536
  OR typeof(NEW.enqueued_at) <> 'integer' OR NEW.enqueued_at NOT BETWEEN -62135510400000 AND 253402300799999
  OR typeof(NEW.attempts) <> 'integer' OR NEW.attempts NOT BETWEEN 0 AND 32767
  OR typeof(NEW.losses) <> 'integer' OR NEW.losses NOT BETWEEN 0 AND 32767
  OR typeof(NEW.unrecorded) <> 'integer' OR NEW.unrecorded NOT BETWEEN 0 AND 32767
  OR typeof(NEW.fence) <> 'integer' OR NEW.fence NOT BETWEEN 0 AND 4611686018427387903
  OR NEW.timeout_ms IS NOT NULL AND (typeof(NEW.timeout_ms) <> 'integer' OR NEW.timeout_ms NOT BETWEEN 1 AND 316224000000)
  OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 255
BEGIN
  SELECT RAISE(ABORT, 'qsidecar_usable: a value that a sidecar cannot use: run_at outside the years 1 to 9999, headers over 64 KiB, or a column that is not public');
END;
