-- Schema version 3: deleting a job's failures, or storing a thousand jobs with keys,
-- locks no whole table. (Babelfish has only row locks and rejects the option.)

IF SERVERPROPERTY('babelfish') IS NULL
  EXEC (N'ALTER TABLE {s}.qsidecar_failures SET (LOCK_ESCALATION = DISABLE)');
GO
IF SERVERPROPERTY('babelfish') IS NULL
  EXEC (N'ALTER TABLE {s}.qsidecar_keys SET (LOCK_ESCALATION = DISABLE)');
GO

UPDATE {s}.qsidecar_meta SET version = 3 WHERE version < 3;
GO
