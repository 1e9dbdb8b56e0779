-- parameters: @leaving_ids nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @leaving TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @leaving (id)
SELECT x.id FROM OPENJSON(@leaving_ids) WITH (id bigint) AS x;
UPDATE j SET group_name = j.admitted_group, admitted_group = NULL
FROM @leaving AS x, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id AND j.admitted_group IS NOT NULL AND (j.state IN ('done', 'dead') OR j.state = 'scheduled' AND EXISTS (
  SELECT 1 FROM [qsidecar].qsidecar_queues AS q WITH (FORCESEEK)
  WHERE q.queue = j.queue AND (q.group_skips = 1 OR q.group_limit IS NULL AND q.group_ready IS NOT NULL)))
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
