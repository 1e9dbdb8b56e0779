-- Schema version 2, of tests alone.

ALTER TABLE {s}.qsidecar_sidecars ADD COLUMN IF NOT EXISTS test_note text;
