-- parameters: @handled_owner bigint, @handled_claims nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @handled TABLE (token_sidecar bigint NOT NULL, token_number bigint NOT NULL, PRIMARY KEY (token_sidecar, token_number));
INSERT INTO @handled (token_sidecar, token_number)
SELECT DISTINCT x.token_sidecar, x.token_number FROM OPENJSON(@handled_claims) WITH (token_sidecar bigint, token_number bigint) AS x;
DELETE c
FROM @handled AS x, [qsidecar].qsidecar_cancelled AS c WITH (ROWLOCK, FORCESEEK)
WHERE c.owner = @handled_owner AND c.token_sidecar = x.token_sidecar AND c.token_number = x.token_number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
