-- Stops claims of a queue by all sidecars.
-- @pause_queue varchar(128)
-- sets 0
UPDATE {s}.qsidecar_queues SET paused = 1 WHERE queue = @pause_queue;
IF @@ROWCOUNT = 0
  INSERT INTO {s}.qsidecar_queues (queue, paused) VALUES (@pause_queue, 1);
SET @wrote = @wrote + 1;
