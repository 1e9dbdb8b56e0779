# frozen_string_literal: true

module Qsidecar
  module SQL
    # The idempotency key of a job that is stored by a plain INSERT, in the caller's transaction. It
    # does what the sidecar does for an enqueue with a key. The key's row in qsidecar_keys is locked
    # until the transaction ends, so only one job is stored for it.
    class Key
      # lock creates the key's row if it is missing, or revives that of a deleted job, and locks it.
      # read returns its job (0: a new row), its state, and 1 if its time is over. assign assigns
      # it to a job. blocked is whether a job waits for its group. earlier returns the job that the
      # key had when MySQL took the transaction's snapshot.
      Statements = Struct.new(:lock, :read, :assign, :blocked, :earlier)

      BLOCKED = "state = 'ready' AND group_name IS NOT NULL"

      NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

      ENGINES = {
        postgres: Statements.new(
          "INSERT INTO %<keys>s AS k (queue, key, job, expires_at, state) VALUES (?, ?, 0, clock_timestamp(), 'deleted') " \
          "ON CONFLICT (queue, key) DO UPDATE SET job = k.job",
          "SELECT job, state, (expires_at <= clock_timestamp())::int FROM %<keys>s WHERE queue = ? AND key = ?",
          "UPDATE %<keys>s SET job = ?, state = NULL, expires_at = clock_timestamp() + CAST(? AS bigint) * interval '1 millisecond' " \
          "WHERE queue = ? AND key = ?",
          BLOCKED
        ),
        mysql: Statements.new(
          "INSERT INTO %<keys>s (queue, `key`, job, expires_at, state) VALUES (?, ?, 0, UTC_TIMESTAMP(6), 'deleted') " \
          "ON DUPLICATE KEY UPDATE job = job",
          "SELECT job, state, expires_at <= UTC_TIMESTAMP(6) FROM %<keys>s WHERE queue = ? AND `key` = ? FOR UPDATE",
          "UPDATE %<keys>s SET job = ?, state = NULL, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND " \
          "WHERE queue = ? AND `key` = ?",
          "#{BLOCKED} AND run_at IS NULL",
          "SELECT job FROM %<keys>s WHERE queue = ? AND `key` = ?"
        ),
        sqlite: Statements.new(
          "INSERT INTO %<keys>s (queue, key, job, expires_at, state) VALUES (?, ?, 0, #{NOW}, 'deleted') " \
          "ON CONFLICT (queue, key) DO UPDATE SET job = job",
          "SELECT job, state, expires_at <= #{NOW} FROM %<keys>s WHERE queue = ? AND key = ?",
          "UPDATE %<keys>s SET job = ?, state = NULL, expires_at = #{NOW} + ? WHERE queue = ? AND key = ?",
          BLOCKED
        )
      }.freeze

      # run runs a statement and returns the first row of its result.
      def initialize(engine, prefix, queue, key, &run)
        @statements = ENGINES.fetch(engine)
        @prefix = prefix
        @which = [queue, key]
        @run = run
      end

      # first returns the job that has the key, as an Enqueued. nil means that the key is free. This
      # transaction then holds it.
      def first
        @run.call(sql(@statements.lock), @which)
        job, state, over = @run.call(sql(@statements.read), @which)
        over = over.to_i == 1
        if state.nil? && job.to_i.positive? # the job has not finished, or its row was deleted
          state = state_of(job.to_i)
          return if state == "started" # and its key was stored with key_until: :start
          over &&= state.nil?
        end
        Enqueued.new(job.to_s, true, state || "deleted") unless job.to_i.zero? || over
      end

      def assign(job, ttl)
        @run.call(sql(@statements.assign), [job, ttl, *@which])
      end

      private

      # state_of returns the state of a job, or nil. At MySQL's REPEATABLE READ a job can be newer than the snapshot that the
      # transaction reads: the key had another job then. A locking read would find it, but can be a deadlock with a worker's ack.
      def state_of(job)
        state = "CASE WHEN key_state = 'start' AND claim_max IS NOT NULL THEN 'started' WHEN #{@statements.blocked} THEN 'blocked' ELSE state END"
        found = @run.call("SELECT #{state} FROM #{@prefix}qsidecar_jobs WHERE id = ?", [job])
        return found.first if found
        return unless @statements.earlier

        earlier = @run.call(sql(@statements.earlier), @which)
        "ready" unless earlier && earlier.first.to_i == job
      end

      def sql(statement)
        format(statement, keys: "#{@prefix}qsidecar_keys")
      end
    end
  end
end
