-- Schema version 5: the tables of the last preview (version 4) get the names that
-- schema.sql gives them. Programs of the previews can't use them: min_program stops those
-- programs with a message.

LOCK TABLE {s}.qsidecar_meta, {s}.qsidecar_jobs, {s}.qsidecar_failures, {s}.qsidecar_keys,
  {s}.qsidecar_hosts, {s}.qsidecar_queues, {s}.qsidecar_epoch, {s}.qsidecar_leases IN ACCESS EXCLUSIVE MODE;

ALTER SEQUENCE {s}.qsidecar_line RENAME TO qsidecar_sequence;
CREATE OR REPLACE FUNCTION {s}.qsidecar_next() RETURNS bigint LANGUAGE sql VOLATILE
  AS 'SELECT (pg_catalog.pg_current_xact_id() IS NULL)::int OPERATOR(pg_catalog.+) pg_catalog.nextval(''{s}.qsidecar_sequence'')';

ALTER TABLE {s}.qsidecar_meta RENAME COLUMN one TO singleton;
ALTER TABLE {s}.qsidecar_meta RENAME CONSTRAINT qsidecar_meta_one_check TO qsidecar_meta_singleton_check;
ALTER TABLE {s}.qsidecar_epoch RENAME COLUMN one TO singleton;
ALTER TABLE {s}.qsidecar_epoch RENAME CONSTRAINT qsidecar_epoch_one_check TO qsidecar_epoch_singleton_check;

ALTER TABLE {s}.qsidecar_jobs RENAME COLUMN unrecorded TO prefetch_losses;
ALTER TABLE {s}.qsidecar_jobs RENAME COLUMN ahead TO prefetched;
ALTER TABLE {s}.qsidecar_jobs RENAME COLUMN keep_ms TO retention_done_ms;
ALTER TABLE {s}.qsidecar_jobs RENAME COLUMN keep_dead_ms TO retention_dead_ms;
ALTER TABLE {s}.qsidecar_jobs RENAME COLUMN token_host TO token_sidecar;

ALTER INDEX {s}.qsidecar_keys_over RENAME TO qsidecar_keys_expiring;

ALTER TABLE {s}.qsidecar_hosts RENAME TO qsidecar_sidecars;
ALTER TABLE {s}.qsidecar_sidecars RENAME CONSTRAINT qsidecar_hosts_pkey TO qsidecar_sidecars_pkey;
ALTER TABLE {s}.qsidecar_sidecars RENAME COLUMN host TO sidecar;
ALTER TABLE {s}.qsidecar_sidecars RENAME COLUMN beats TO heartbeats;
ALTER TABLE {s}.qsidecar_sidecars RENAME COLUMN lease_ms TO timeout_ms;
ALTER TABLE {s}.qsidecar_sidecars RENAME COLUMN knows TO max_version;
ALTER TABLE {s}.qsidecar_sidecars ADD COLUMN stats_leader boolean NOT NULL DEFAULT false, ADD COLUMN version text, ADD COLUMN leases bigint;

ALTER TABLE {s}.qsidecar_queues RENAME COLUMN returns TO requeues;

ALTER TABLE {s}.qsidecar_leases RENAME COLUMN token_host TO token_sidecar;
ALTER TABLE {s}.qsidecar_leases RENAME COLUMN shown TO claim_values;

-- Rows that only an INSERT of another program can have stored, and that no claim and no
-- list finds. A fence above 0 frees them from qsidecar_usable, which can be younger.
UPDATE {s}.qsidecar_jobs SET fence = least(greatest(fence, 1), 4611686018427387903),
  position = CASE WHEN position > 0 THEN position ELSE {s}.qsidecar_next() END,
  finished_at = CASE WHEN state IN ('done', 'dead') THEN coalesce(finished_at, {s}.qsidecar_now()) ELSE finished_at END
WHERE position <= 0 OR state IN ('done', 'dead') AND finished_at IS NULL;
-- A deferred trigger of another program would keep the table from being altered.
SET CONSTRAINTS ALL IMMEDIATE;

ALTER TABLE {s}.qsidecar_jobs
  ADD CONSTRAINT qsidecar_position CHECK (position > 0),
  ADD CONSTRAINT qsidecar_finished_at CHECK (state NOT IN ('done', 'dead') OR finished_at IS NOT NULL);

-- The search path of a session must not change what they mean.
CREATE OR REPLACE FUNCTION {s}.qsidecar_plain_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.run_at OPERATOR(pg_catalog.>) {s}.qsidecar_now() THEN
    NEW.state := 'scheduled';
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE FUNCTION {s}.qsidecar_row_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM {s}.qsidecar_failures WHERE job OPERATOR(pg_catalog.=) OLD.id;
  UPDATE {s}.qsidecar_keys SET state = 'deleted'
    WHERE queue OPERATOR(pg_catalog.=) OLD.queue AND key OPERATOR(pg_catalog.=) OLD.key AND job OPERATOR(pg_catalog.=) OLD.id AND state IS NULL;
  RETURN NULL;
END $$;

UPDATE {s}.qsidecar_meta SET min_program = 2;
