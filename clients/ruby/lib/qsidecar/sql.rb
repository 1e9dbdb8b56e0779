# frozen_string_literal: true

require_relative "../qsidecar"
require_relative "sql_keys"

module Qsidecar
  # Enqueues by a plain INSERT in the caller's transaction. The job exists if the transaction
  # commits.
  #
  #   connection.transaction do
  #     connection.exec_params("INSERT INTO orders …")
  #     Qsidecar::SQL.enqueue(connection, "mail", { "order" => 17 })
  #   end
  #
  # The database must be the sidecar's database. On PostgreSQL a waiting worker gets the job when
  # the transaction commits, on other engines within a second.
  module SQL
    # The differences between the engines: the name of the key column, and the expressions for a
    # JSON parameter, for milliseconds from now, and for milliseconds since 1970.
    Dialect = Struct.new(:key, :headers, :delay, :run_at)

    LAST_ID = { mysql: "SELECT LAST_INSERT_ID()", sqlite: "SELECT last_insert_rowid()" }.freeze

    DIALECTS = {
      postgres: Dialect.new("key", "CAST(%<slot>s AS jsonb)",
                            "clock_timestamp() + CAST(%<slot>s AS bigint) * interval '1 millisecond'",
                            "timestamptz 'epoch' + CAST(%<slot>s AS bigint) * interval '1 millisecond'"),
      mysql: Dialect.new("`key`", "%<slot>s",
                         "UTC_TIMESTAMP(6) + INTERVAL %<slot>s * 1000 MICROSECOND",
                         "TIMESTAMP('1970-01-01') + INTERVAL %<slot>s * 1000 MICROSECOND"),
      sqlite: Dialect.new("key", "%<slot>s",
                          "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + %<slot>s", "%<slot>s")
    }.freeze

    ENGINES = { "PG::Connection" => :postgres, "Mysql2::Client" => :mysql, "SQLite3::Database" => :sqlite }.freeze
    private_constant :Dialect, :DIALECTS, :ENGINES

    module_function

    # enqueue inserts a job on a connection of pg, mysql2 or sqlite3 (or ActiveRecord's connection
    # over one of them), without a commit. The options are those of Client#enqueue that a plain
    # INSERT supports. With a key, a second job with the same key is not stored. The key is
    # remembered for at least key_ttl seconds. wake (PostgreSQL) wakes waiting workers when the
    # transaction commits. Without it, the commits of many producers do not wait for the global lock
    # of NOTIFY. The queue's start_within doesn't apply: give the job's own. schema is where the
    # sidecar keeps its tables on PostgreSQL. key_until: :start, on_conflict: :replace and :debounce need
    # Client#enqueue after the commit. A worker can claim the first job before this transaction ends,
    # and then it has not seen its changes. It returns an Enqueued.
    def enqueue(connection, queue, payload, raw: false, priority: nil, headers: nil, max_attempts: nil, delay: nil,
                run_at: nil, key: nil, key_ttl: 600, group: nil, start_before: nil, start_within: nil, on_expiry: nil,
                retain: nil, key_until: nil, on_conflict: nil, wake: true, schema: "qsidecar")
      raise ArgumentError, "give delay or run_at, and not both" if delay && run_at

      refuse(:key_until, key_until, "finish")
      refuse(:on_conflict, on_conflict, "keep")

      job = Fields.job(queue: queue, payload: payload, raw: raw, priority: priority, headers: headers,
                       max_attempts: max_attempts, delay: delay, run_at: run_at, key: key, group: group,
                       start_before: start_before, start_within: start_within, on_expiry: on_expiry, retain: retain)
      return Client.inline.enqueue([job]).first if Client.inline
      raise ArgumentError, "schema is a plain name, not #{schema.inspect}" unless /\A[A-Za-z_]\w*\z/.match?(schema)

      connection = connection.raw_connection if connection.respond_to?(:raw_connection)
      engine = engine(connection)
      query = ->(statement, values) { send(:"run_#{engine}", connection, statement, values) }
      store(query, engine, job, schema, Fields.ms(:key_ttl, key_ttl), wake && !delay && !run_at)
    end

    # refuse rejects a value of an option that needs more than a plain INSERT.
    def refuse(option, value, allowed)
      return if value.nil? || value.to_s == allowed

      raise ArgumentError, "#{option}: #{value.inspect} can't hold in your own transaction: commit it, and use Client#enqueue"
    end

    # engine determines the engine by the class of the connection or its ancestors.
    def engine(connection)
      connection.class.ancestors.each { |c| return ENGINES[c.name] if ENGINES.key?(c.name) }
      raise ArgumentError, "a #{connection.class} is none of #{ENGINES.keys.join(", ")}"
    end

    def store(query, engine, job, schema, ttl, wake)
      prefix = engine == :postgres ? "#{schema}." : ""
      key = job[:key] && Key.new(engine, prefix, job[:queue], job[:key], &query)
      first = key&.first
      return first if first

      # On PostgreSQL get the id first: a role that can only insert can't read the inserted row.
      id = query.call("SELECT #{prefix}qsidecar_next()", []).first.to_i if engine == :postgres
      columns = columns(DIALECTS.fetch(engine), job, id)
      slots = columns.map { |_, slot, _| format(slot, slot: "?") }
      query.call("INSERT INTO #{prefix}qsidecar_jobs (#{columns.map(&:first).join(", ")}) VALUES (#{slots.join(", ")})", columns.map(&:last))
      id ||= query.call(LAST_ID.fetch(engine), []).first
      key&.assign(id, ttl)
      query.call("SELECT pg_notify(?, ?)", ["qsidecar_#{schema}", "ruby #{job[:queue]}"]) if wake && engine == :postgres
      Enqueued.new(id.to_s, false, nil)
    end

    # columns returns the names, the expressions and the values. A value in a list is bytes.
    def columns(dialect, job, id)
      all = [["queue", "%<slot>s", job[:queue]], ["payload", "%<slot>s", [job[:payload]]]]
      all << ["priority", "%<slot>s", job[:priority]] if job[:priority]
      all << ["headers", dialect.headers, JSON.generate(job[:headers])] if job[:headers]
      all << ["max_attempts", "%<slot>s", job[:max_attempts]] if job[:max_attempts]
      all << ["run_at", dialect.delay, job[:delay_ms]] if job[:delay_ms]
      all << ["run_at", dialect.run_at, job[:run_at]] if job[:run_at]
      all << [dialect.key, "%<slot>s", job[:key]] if job[:key]
      all << ["group_name", "%<slot>s", job[:group]] if job[:group]
      all << ["retain_ms", "%<slot>s", job[:retain_ms]] if job[:retain_ms]
      all << ["on_expiry", "%<slot>s", job[:on_expiry]] if job[:on_expiry]
      all << ["id", "%<slot>s", id] if id
      all + start_before(dialect, job)
    end

    # start_before returns the column of the time until which the job has to start.
    def start_before(dialect, job)
      return [["start_before", dialect.run_at, job[:start_before]]] if job[:start_before]
      return [] unless (within = job[:start_within_ms])
      return [["start_before", dialect.run_at, [job[:run_at], (Time.now.to_f * 1000).ceil].max + within]] if job[:run_at]

      [["start_before", dialect.delay, (job[:delay_ms] || 0) + within]]
    end

    # Each run_… runs a statement and returns the first row of its result.

    def run_postgres(connection, statement, values)
      number = 0
      result = connection.exec_params(statement.gsub("?") { "$#{number += 1}" },
                                      values.map { |v| v.is_a?(Array) ? { value: v.first, type: 17, format: 1 } : v })
      result.values.first
    ensure
      result&.clear
    end

    def run_mysql(connection, statement, values)
      prepared = connection.prepare(statement)
      prepared.execute(*values.flatten, as: :array)&.first
    ensure
      prepared&.close
    end

    def run_sqlite(connection, statement, values)
      row = connection.execute(statement, values.map { |v| v.is_a?(Array) ? ::SQLite3::Blob.new(v.first) : v }).first
      row.is_a?(Hash) ? row.values : row
    end

    private_class_method :refuse, :engine, :store, :columns, :run_postgres, :run_mysql, :run_sqlite
  end
end
