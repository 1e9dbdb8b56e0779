-- parameters: @slot_changes nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @slot_base bigint;
SET @slot_base = NEXT VALUE FOR [qsidecar].qsidecar_sequence;
DECLARE @slot TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, kind int NOT NULL);
INSERT INTO @slot (n, id, kind)
SELECT x.n, x.id, x.kind FROM OPENJSON(@slot_changes) WITH (n int, id bigint, kind int) AS x;
DECLARE @slot_changed TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET group_name = CASE WHEN x.kind IN (1, 2) THEN j.admitted_group WHEN x.kind = 5 THEN j.group_name END,
  admitted_group = CASE WHEN x.kind IN (3, 4) THEN j.group_name END,
  group_noticed = CASE WHEN x.kind IN (2, 5) THEN 1 END,
  position = CASE WHEN x.kind = 4 THEN @slot_base + x.n ELSE j.position END
OUTPUT inserted.id INTO @slot_changed
FROM @slot AS x, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT COUNT_BIG(*) AS changed FROM @slot_changed AS y;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
