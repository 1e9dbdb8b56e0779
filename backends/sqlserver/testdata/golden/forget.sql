-- parameters: @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DELETE h
FROM [qsidecar].qsidecar_sidecars AS h WITH (ROWLOCK)
WHERE h.dead = 1 AND NOT EXISTS (
  SELECT 1 FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK) WHERE j.state = 'claimed' AND j.owner = h.sidecar)
OPTION (LOOP JOIN, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
DELETE c
FROM [qsidecar].qsidecar_cancelled AS c WITH (ROWLOCK)
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_sidecars AS h WITH (FORCESEEK) WHERE h.sidecar = c.owner AND h.dead = 0)
OPTION (LOOP JOIN, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
