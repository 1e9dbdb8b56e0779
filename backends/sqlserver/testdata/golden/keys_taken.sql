-- parameters: @taken_queue varchar(128)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT CASE
    WHEN EXISTS (
      SELECT 1
      FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK)
      INNER JOIN [qsidecar].qsidecar_keys AS k ON k.queue = j.queue AND k.name = CONVERT(varbinary(510), j.[key])
      WHERE j.finished_at IS NOT NULL AND j.queue = @taken_queue AND j.state = 'dead' AND j.[key] IS NOT NULL AND j.key_state IS NULL
        AND k.job <> j.id AND (k.state IS NULL OR k.expires_at > @now)) THEN 1
    WHEN EXISTS (
      SELECT CONVERT(varbinary(510), j.[key])
      FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK)
      WHERE j.finished_at IS NOT NULL AND j.queue = @taken_queue AND j.state = 'dead' AND j.[key] IS NOT NULL AND j.key_state IS NULL
      GROUP BY CONVERT(varbinary(510), j.[key])
      HAVING COUNT(*) > 1) THEN 1
    ELSE 0 END AS taken
OPTION (KEEPFIXED PLAN);
