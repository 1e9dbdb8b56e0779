-- Schema version 5: the tables of the last preview (version 2) get the names that
-- schema.sql gives them. Programs of the previews can't use them: min_program stops those
-- programs with a message.
--
-- The server commits after each statement here. All can be run again after an
-- interruption: a line "only with" names the column without which the next statement is
-- left out. MySQL and MariaDB copy the table qsidecar_jobs.

UPDATE qsidecar_meta SET min_program = 2;

-- Old rows can have dates that don't exist.
SET @qsidecar_sql_mode = @@SESSION.sql_mode;
SET SESSION sql_mode = 'ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION';

-- Rows that only an INSERT of another program can have stored. A fence above 0 frees those
-- from qsidecar_usable that can be older than it.
-- only with qsidecar_jobs.token_host
UPDATE qsidecar_jobs SET
  fence = IF(fence BETWEEN 0 AND 4611686018427387903, GREATEST(fence, 1), 4611686018427387903),
  position = GREATEST(position, 1),
  finished_at = IF(state IN ('done', 'dead'), COALESCE(finished_at, UTC_TIMESTAMP(6)), finished_at)
WHERE position <= 0 OR state IN ('done', 'dead') AND finished_at IS NULL OR fence NOT BETWEEN 0 AND 4611686018427387903
  OR fence = 0 AND NOT ((run_at IS NULL OR run_at >= '1000-01-01' AND TIMESTAMPDIFF(MICROSECOND, '1970-01-01', run_at) IS NOT NULL)
    AND (headers IS NULL OR COALESCE(JSON_TYPE(headers), '') = 'OBJECT' AND LENGTH(headers) <= 65536)
    AND enqueued_at >= '1000-01-01' AND ready_at >= '1000-01-01'
    AND attempts BETWEEN 0 AND 32767 AND losses BETWEEN 0 AND 32767 AND unrecorded BETWEEN 0 AND 32767
    AND (timeout_ms IS NULL OR timeout_ms BETWEEN 1 AND 316224000000) AND (`key` IS NULL OR LENGTH(`key`) > 0));

-- only with qsidecar_jobs.token_host
ALTER TABLE qsidecar_jobs {drop qsidecar_usable}
  DROP KEY qsidecar_lanes, DROP COLUMN lane, DROP COLUMN place,
  CHANGE COLUMN unrecorded prefetch_losses INT NOT NULL DEFAULT 0,
  CHANGE COLUMN ahead prefetched TINYINT NOT NULL DEFAULT 0,
  CHANGE COLUMN keep_ms retention_done_ms BIGINT,
  CHANGE COLUMN keep_dead_ms retention_dead_ms BIGINT,
  CHANGE COLUMN token_host token_sidecar BIGINT,
  ADD COLUMN segment VARCHAR(129) CHARACTER SET ascii COLLATE ascii_bin AS (CASE state WHEN 'ready' THEN IF(run_at IS NULL, CONCAT('r', queue), 'n') WHEN 'claimed' THEN CONCAT('c', LPAD(HEX(owner), 16, '0')) WHEN 'scheduled' THEN CONCAT('s', queue) WHEN 'done' THEN CONCAT('d', queue) WHEN 'dead' THEN CONCAT('x', queue) ELSE '?' END) STORED AFTER payload,
  ADD COLUMN sort_key BIGINT AS (CASE state WHEN 'ready' THEN position WHEN 'claimed' THEN IF(due_at IS NULL, 9223372036854775807, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at)) WHEN 'scheduled' THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', run_at) ELSE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', finished_at) END) STORED AFTER urgency,
  ADD KEY qsidecar_segments (segment, urgency, sort_key, id),
  ADD CONSTRAINT qsidecar_usable CHECK (fence BETWEEN 1 AND 4611686018427387903 OR fence = 0
    AND (run_at IS NULL OR run_at >= '1000-01-01' AND TIMESTAMPDIFF(MICROSECOND, '1970-01-01', run_at) IS NOT NULL)
    AND (headers IS NULL OR COALESCE(JSON_TYPE(headers), '') = 'OBJECT' AND LENGTH(headers) <= 65536)
    AND enqueued_at >= '1000-01-01' AND ready_at >= '1000-01-01'
    AND attempts BETWEEN 0 AND 32767 AND losses BETWEEN 0 AND 32767 AND prefetch_losses BETWEEN 0 AND 32767
    AND (timeout_ms IS NULL OR timeout_ms BETWEEN 1 AND 316224000000) AND (`key` IS NULL OR LENGTH(`key`) > 0)),
  ADD CONSTRAINT qsidecar_position CHECK (position > 0),
  ADD CONSTRAINT qsidecar_finished_at CHECK (state NOT IN ('done', 'dead') OR finished_at IS NOT NULL);

-- only with qsidecar_keys.over_at
ALTER TABLE qsidecar_keys DROP KEY qsidecar_keys_over, DROP COLUMN over_at,
  ADD COLUMN prune_at DATETIME(6) AS (IF(state IS NULL, NULL, expires_at)) STORED,
  ADD KEY qsidecar_keys_expiring (prune_at);

-- only with qsidecar_hosts.host
ALTER TABLE qsidecar_hosts RENAME TO qsidecar_sidecars,
  CHANGE COLUMN host sidecar BIGINT NOT NULL, CHANGE COLUMN beats heartbeats BIGINT NOT NULL,
  ADD COLUMN timeout_ms BIGINT, ADD COLUMN stats_leader TINYINT NOT NULL DEFAULT 0, ADD COLUMN version VARCHAR(64), ADD COLUMN leases BIGINT;

-- only with qsidecar_queues.returns
ALTER TABLE qsidecar_queues CHANGE COLUMN returns requeues BIGINT NOT NULL DEFAULT 0;

-- only with qsidecar_leases.shown
ALTER TABLE qsidecar_leases CHANGE COLUMN token_host token_sidecar BIGINT, CHANGE COLUMN shown claim_values TEXT;

-- only with qsidecar_meta.one
ALTER TABLE qsidecar_meta {drop qsidecar_meta_chk_1} CHANGE COLUMN one singleton TINYINT NOT NULL {check singleton = 1};

SET SESSION sql_mode = @qsidecar_sql_mode;

UPDATE qsidecar_meta SET version = 5;
