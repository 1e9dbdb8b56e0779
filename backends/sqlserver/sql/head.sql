-- The beginning of every batch: its settings come along, so that it does not
-- matter what the session was used for, or that the driver reset it. sp_executesql
-- takes them back at its end.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = {s}.qsidecar_now();
DECLARE @wrote bigint = 0;
