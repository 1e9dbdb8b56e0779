-- The ends of transactions. In all files {s} is the schema.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: unsynced
-- The commit is answered before it is on disk.
SELECT pg_catalog.set_config('synchronous_commit', 'off', true)

-- name: unsynced_claim
-- The same, unless a standby takes over without losing commits: there a lost claim would let two workers run one job.
SELECT pg_catalog.set_config('synchronous_commit', 'off', true) WHERE pg_catalog.current_setting('synchronous_standby_names') = ''

-- name: status
-- The last statement before a COMMIT: the number of the transaction, empty if it wrote nothing.
SELECT coalesce(pg_current_xact_id_if_assigned()::text, '')

-- fragment: claim_status
-- Also, for a transaction that claims: whether its sidecar :sidecar is alive, the oldest transaction
-- that writes, and whether a lean claim left something.
SELECT coalesce(pg_current_xact_id_if_assigned()::text, ''),
  EXISTS (SELECT FROM {s}.qsidecar_sidecars WHERE sidecar = :sidecar AND NOT dead AND NOT has_left),
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
  coalesce(current_setting('qsidecar.left', true), '') <> ''

-- name: status_of_one
-- And twice as often as jobs of one queue were given back, and 1 more if it has group_ready; if it has other limits, -1 minus that.
{claim_status},
  ARRAY[coalesce((SELECT {returns} FROM {s}.qsidecar_queues WHERE queue = (:queues::text[])[1]), 0)]

-- name: status_of_many
-- The same for many queues, in their order.
{claim_status},
  ARRAY(SELECT coalesce((SELECT {returns} FROM {s}.qsidecar_queues WHERE queue = x.queue LIMIT 1), 0)
    FROM unnest(:queues::text[]) WITH ORDINALITY AS x (queue, n) ORDER BY x.n)

-- fragment: returns
CASE WHEN max_claimed IS NULL AND rate IS NULL THEN 2 * requeues + (group_ready IS NOT NULL)::int ELSE -1 - 2 * requeues - (group_ready IS NOT NULL)::int END

-- name: epoch
SELECT epoch || '/' || extract(epoch FROM pg_catalog.pg_postmaster_start_time()) FROM {s}.qsidecar_epoch

-- name: new_epoch
-- Stores an epoch if there is none. It is its own transaction.
INSERT INTO {s}.qsidecar_epoch (singleton, epoch)
SELECT 1, system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || :random FROM pg_control_system()
ON CONFLICT (singleton) DO NOTHING

-- name: other_epoch
-- Deletes the epoch of another server, which a dump contains.
DELETE FROM {s}.qsidecar_epoch WHERE epoch LIKE '%/%' AND split_part(epoch, '/', 1) <> :system

-- name: plain_epoch
-- For servers that don't reveal their identity. Its rows are only RANDOM. If such a server
-- crashes, the outcome of a commit stays unknown.
INSERT INTO {s}.qsidecar_epoch (singleton, epoch) VALUES (1, :random) ON CONFLICT (singleton) DO NOTHING
