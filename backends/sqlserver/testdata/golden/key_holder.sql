-- parameters: @key_queue varchar(128), @key_name nvarchar(255)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT k.job
FROM [qsidecar].qsidecar_keys AS k WITH (FORCESEEK)
WHERE k.queue = @key_queue AND k.name = CONVERT(varbinary(510), @key_name);
