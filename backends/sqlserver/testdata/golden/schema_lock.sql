SET NOCOUNT ON;
SET XACT_ABORT ON;
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = N'qsidecar schema', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
SELECT @got AS got;
