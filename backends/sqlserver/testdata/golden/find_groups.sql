-- parameters: @walk_queue varchar(128), @walk_group nvarchar(256), @walk_most bigint, @walk_limit bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@walk_limit) a.queue, a.group_name FROM [qsidecar].qsidecar_admissions AS a WITH (READPAST, READCOMMITTEDLOCK) ORDER BY a.queue, a.group_name, a.note;
SELECT TOP (@walk_limit) j.queue, j.group_name
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_arrived), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.group_noticed IS NULL AND j.queue > ''
ORDER BY j.queue, j.group_name
OPTION (KEEPFIXED PLAN);
DECLARE @walk TABLE (n bigint NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @walked TABLE (n bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @walk_n bigint = 0;
WHILE @walk_n < @walk_most
BEGIN
  INSERT INTO @walk (n, queue, name)
  SELECT TOP (1) @walk_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @walk_queue AND j.group_name > @walk_group
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @walk (n, queue, name)
  SELECT TOP (1) @walk_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue > @walk_queue
  ORDER BY j.queue, j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @walk (n, queue, name)
  SELECT TOP (1) @walk_n, j.queue, j.admitted_group
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue = @walk_queue AND j.admitted_group > @walk_group
  ORDER BY j.admitted_group
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @walk (n, queue, name)
  SELECT TOP (1) @walk_n, j.queue, j.admitted_group
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue > @walk_queue
  ORDER BY j.queue, j.admitted_group
  OPTION (KEEPFIXED PLAN);
  SELECT TOP (1) @walk_queue = f.queue, @walk_group = f.name FROM @walk AS f WHERE f.n = @walk_n ORDER BY f.queue, f.name;
  IF @@ROWCOUNT = 0
    BREAK;
  INSERT INTO @walked (n, queue, name) VALUES (@walk_n, @walk_queue, @walk_group);
  SET @walk_n = @walk_n + 1;
END;
SELECT w.queue, w.name FROM @walked AS w ORDER BY w.n;
