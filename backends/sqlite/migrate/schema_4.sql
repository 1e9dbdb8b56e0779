-- Schema version 4: the database rejects an id or a position near the largest number, because the
-- next ones are counted from it. The trigger runs after the INSERT: before it, a generated id is unknown.

CREATE TRIGGER IF NOT EXISTS qsidecar_usable_id AFTER INSERT ON qsidecar_jobs
WHEN NEW.id > 4611686018427387903 OR NEW.position NOT BETWEEN 1 AND 4611686018427387903
BEGIN
  SELECT RAISE(ABORT, 'qsidecar_usable_id: an id or a position that a sidecar cannot use: leave both to the database');
END;
