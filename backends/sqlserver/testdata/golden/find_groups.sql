-- parameters: @found_noted_queue varchar(128), @found_noted_group nvarchar(256), @found_noted_limit bigint, @found_arrived_queue varchar(128), @found_arrived_group nvarchar(256), @found_arrived_limit bigint, @found_every_queue varchar(128), @found_every_group nvarchar(256), @found_every_limit bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @found_noted TABLE (n bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_noted_next TABLE (n bigint NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_noted_n bigint = 0;
WHILE @found_noted_n < @found_noted_limit
BEGIN
  INSERT INTO @found_noted_next (n, queue, name)
  SELECT TOP (1) @found_noted_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_admissions AS j WITH (FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.queue = @found_noted_queue AND j.group_name > @found_noted_group
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_noted_next (n, queue, name)
  SELECT TOP (1) @found_noted_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_admissions AS j WITH (FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.queue > @found_noted_queue
  ORDER BY j.queue, j.group_name
  OPTION (KEEPFIXED PLAN);
  SELECT TOP (1) @found_noted_queue = f.queue, @found_noted_group = f.name FROM @found_noted_next AS f WHERE f.n = @found_noted_n ORDER BY f.queue, f.name;
  IF @@ROWCOUNT = 0
    BREAK;
  INSERT INTO @found_noted (n, queue, name) VALUES (@found_noted_n, @found_noted_queue, @found_noted_group);
  SET @found_noted_n = @found_noted_n + 1;
END;
SELECT w.queue, w.name FROM @found_noted AS w ORDER BY w.n;
DECLARE @found_arrived TABLE (n bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_arrived_next TABLE (n bigint NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_arrived_n bigint = 0;
WHILE @found_arrived_n < @found_arrived_limit
BEGIN
  INSERT INTO @found_arrived_next (n, queue, name)
  SELECT TOP (1) @found_arrived_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_arrived), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.group_noticed IS NULL AND j.queue = @found_arrived_queue AND j.group_name > @found_arrived_group
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_arrived_next (n, queue, name)
  SELECT TOP (1) @found_arrived_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_arrived), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.group_noticed IS NULL AND j.queue > @found_arrived_queue
  ORDER BY j.queue, j.group_name
  OPTION (KEEPFIXED PLAN);
  SELECT TOP (1) @found_arrived_queue = f.queue, @found_arrived_group = f.name FROM @found_arrived_next AS f WHERE f.n = @found_arrived_n ORDER BY f.queue, f.name;
  IF @@ROWCOUNT = 0
    BREAK;
  INSERT INTO @found_arrived (n, queue, name) VALUES (@found_arrived_n, @found_arrived_queue, @found_arrived_group);
  SET @found_arrived_n = @found_arrived_n + 1;
END;
SELECT w.queue, w.name FROM @found_arrived AS w ORDER BY w.n;
DECLARE @found_every TABLE (n bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_every_next TABLE (n bigint NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_every_n bigint = 0;
WHILE @found_every_n < @found_every_limit
BEGIN
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @found_every_queue AND j.group_name > @found_every_group
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.group_name
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue > @found_every_queue
  ORDER BY j.queue, j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.admitted_group
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue = @found_every_queue AND j.admitted_group > @found_every_group
  ORDER BY j.admitted_group
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.admitted_group
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue > @found_every_queue
  ORDER BY j.queue, j.admitted_group
  OPTION (KEEPFIXED PLAN);
  SELECT TOP (1) @found_every_queue = f.queue, @found_every_group = f.name FROM @found_every_next AS f WHERE f.n = @found_every_n ORDER BY f.queue, f.name;
  IF @@ROWCOUNT = 0
    BREAK;
  INSERT INTO @found_every (n, queue, name) VALUES (@found_every_n, @found_every_queue, @found_every_group);
  SET @found_every_n = @found_every_n + 1;
END;
SELECT w.queue, w.name FROM @found_every AS w ORDER BY w.n;
