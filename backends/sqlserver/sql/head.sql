-- The beginning of every batch. It sets all that the batch needs, because the driver resets
-- sessions. sp_executesql restores the settings at its end.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = {s}.qsidecar_now();
DECLARE @wrote bigint = 0;
