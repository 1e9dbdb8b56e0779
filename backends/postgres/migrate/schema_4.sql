-- Schema version 4: the database rejects an INSERT of a value that a sidecar can't use.
--
-- A row is checked until it is first claimed (which sets fence) or becomes ready (a later
-- ready_at), so that no later UPDATE of a row that is older than this CHECK is refused.
-- NOT VALID: existing rows are not checked. Sidecars skip those that they can't use, and
-- log it.

ALTER TABLE {s}.qsidecar_jobs
  DROP CONSTRAINT IF EXISTS qsidecar_usable,
  ADD CONSTRAINT qsidecar_usable CHECK (fence BETWEEN 1 AND 4611686018427387903 OR ready_at > enqueued_at AND isfinite(ready_at) OR fence = 0
    AND (run_at IS NULL OR run_at >= '0001-01-02 00:00:00+00' AND run_at < '9999-12-31 23:59:59.999001+00')
    AND enqueued_at >= '0001-01-02 00:00:00+00' AND enqueued_at < '9999-12-31 23:59:59.999001+00'
    AND ready_at >= '0001-01-02 00:00:00+00' AND ready_at < '9999-12-31 23:59:59.999001+00'
    AND attempts BETWEEN 0 AND 32767 AND losses BETWEEN 0 AND 32767 AND unrecorded BETWEEN 0 AND 32767
    AND (timeout_ms IS NULL OR timeout_ms BETWEEN 1 AND 316224000000)
    AND (key IS NULL OR octet_length(key) BETWEEN 1 AND 255)
    AND (headers IS NULL OR octet_length(headers::text) <= 65536)) NOT VALID;
