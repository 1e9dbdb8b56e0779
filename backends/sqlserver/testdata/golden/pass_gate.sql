-- parameters: @pass_queue varchar(128), @pass_rate bigint, @pass_next bigint, @pass_advance bigint, @pass_jobs nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
IF @pass_rate = 1
  UPDATE [qsidecar].qsidecar_gates SET next_at = CASE WHEN @pass_next > DATEDIFF_BIG(microsecond, '1970-01-01', @now) * 1000 THEN @pass_next ELSE DATEDIFF_BIG(microsecond, '1970-01-01', @now) * 1000 END + @pass_advance WHERE queue = @pass_queue;
DECLARE @pass TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @pass (id)
SELECT x.id FROM OPENJSON(@pass_jobs) WITH (id bigint) AS x;
INSERT INTO [qsidecar].qsidecar_capped (queue, job)
SELECT @pass_queue, x.id
FROM @pass AS x
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_capped AS c WITH (FORCESEEK) WHERE c.queue = @pass_queue AND c.job = x.id)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
