-- parameters: @note_claims nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @note TABLE (owner bigint NOT NULL, token_sidecar bigint NOT NULL, token_number bigint NOT NULL, PRIMARY KEY (owner, token_sidecar, token_number));
INSERT INTO @note (owner, token_sidecar, token_number)
SELECT x.owner, x.token_sidecar, x.token_number
FROM OPENJSON(@note_claims) WITH (owner bigint, token_sidecar bigint, token_number bigint) AS x;
INSERT INTO [qsidecar].qsidecar_cancelled (owner, token_sidecar, token_number)
SELECT x.owner, x.token_sidecar, x.token_number
FROM @note AS x
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_cancelled AS c WITH (FORCESEEK)
  WHERE c.owner = x.owner AND c.token_sidecar = x.token_sidecar AND c.token_number = x.token_number)
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
