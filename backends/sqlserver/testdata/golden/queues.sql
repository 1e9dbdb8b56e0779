-- parameters: 
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @queues TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @queues_last varchar(128) = '';
DECLARE @queues_next varchar(128);
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SET @queues_last = '';
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.run_at IS NOT NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SET @queues_last = '';
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.finished_at IS NOT NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SET @queues_last = '';
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SELECT q.queue FROM @queues AS q
UNION
SELECT j.queue FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), READPAST, READCOMMITTEDLOCK) WHERE j.state = 'claimed'
UNION
SELECT p.queue FROM [qsidecar].qsidecar_queues AS p WHERE p.paused = 1
OPTION (KEEPFIXED PLAN);
