# frozen_string_literal: true

module Qsidecar
  module SQL
    # A key of a job that is stored by a plain INSERT: what the sidecar does for an enqueue with
    # a key, in the caller's transaction. The key's row in qsidecar_keys is locked until that
    # ends, so that one job is stored for it, whoever else has it in hand.
    class Key
      # take makes the key's row if there is none (as that of a job that is gone), and locks it;
      # look gives its job (0: a new row), its state, and 1 where its time is over; own makes
      # it a job's.
      Statements = Struct.new(:take, :look, :own)

      NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

      ENGINES = {
        postgres: Statements.new(
          "INSERT INTO %<keys>s AS k (queue, key, job, expires_at, state) VALUES (?, ?, 0, clock_timestamp(), 'deleted') " \
          "ON CONFLICT (queue, key) DO UPDATE SET job = k.job",
          "SELECT job, state, (expires_at <= clock_timestamp())::int FROM %<keys>s WHERE queue = ? AND key = ?",
          "UPDATE %<keys>s SET job = ?, state = NULL, expires_at = clock_timestamp() + CAST(? AS bigint) * interval '1 millisecond' " \
          "WHERE queue = ? AND key = ?"
        ),
        mysql: Statements.new(
          "INSERT INTO %<keys>s (queue, `key`, job, expires_at, state) VALUES (?, ?, 0, UTC_TIMESTAMP(6), 'deleted') " \
          "ON DUPLICATE KEY UPDATE job = job",
          "SELECT job, state, expires_at <= UTC_TIMESTAMP(6) FROM %<keys>s WHERE queue = ? AND `key` = ? FOR UPDATE",
          "UPDATE %<keys>s SET job = ?, state = NULL, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND " \
          "WHERE queue = ? AND `key` = ?"
        ),
        sqlite: Statements.new(
          "INSERT INTO %<keys>s (queue, key, job, expires_at, state) VALUES (?, ?, 0, #{NOW}, 'deleted') " \
          "ON CONFLICT (queue, key) DO UPDATE SET job = job",
          "SELECT job, state, expires_at <= #{NOW} FROM %<keys>s WHERE queue = ? AND key = ?",
          "UPDATE %<keys>s SET job = ?, state = NULL, expires_at = #{NOW} + ? WHERE queue = ? AND key = ?"
        )
      }.freeze

      # run carries a statement out, and gives the first row of its answer.
      def initialize(engine, prefix, queue, key, &run)
        @statements = ENGINES.fetch(engine)
        @prefix = prefix
        @which = [queue, key]
        @run = run
      end

      # first is the job that has the key, as an Enqueued; nil: it is free, and this transaction's.
      def first
        @run.call(sql(@statements.take), @which)
        job, state, over = @run.call(sql(@statements.look), @which)
        over = over.to_i == 1
        if state.nil? && job.to_i.positive? # it has not ended, or was deleted by hand
          state = @run.call("SELECT state FROM #{@prefix}qsidecar_jobs WHERE id = ?", [job.to_i])&.first
          over &&= state.nil?
        end
        Enqueued.new(job.to_s, true, state || "deleted") unless job.to_i.zero? || over
      end

      def own(job, ttl)
        @run.call(sql(@statements.own), [job, ttl, *@which])
      end

      private

      def sql(statement)
        format(statement, keys: "#{@prefix}qsidecar_keys")
      end
    end
  end
end
