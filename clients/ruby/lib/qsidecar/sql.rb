# frozen_string_literal: true

require_relative "../qsidecar"

module Qsidecar
  # A plain INSERT is an enqueue, in the caller's own transaction: the job is there if that
  # commits, and never was if it does not.
  #
  #   connection.transaction do
  #     connection.exec_params("INSERT INTO orders …")
  #     Qsidecar::SQL.enqueue(connection, "mail", { "order" => 17 })
  #   end
  #
  # The database is the one that the queue's sidecar works on. A waiting worker gets the job
  # within a second; a key against duplicates, and a wake-up within milliseconds, come
  # with Client#enqueue.
  module SQL
    # What differs between the engines: the table, and the expression for a parameter
    # with JSON, with milliseconds from now, and with milliseconds since 1970.
    Dialect = Struct.new(:table, :headers, :delay, :run_at)

    DIALECTS = {
      postgres: Dialect.new("%<schema>s.qsidecar_jobs", "CAST(%<slot>s AS jsonb)",
                            "clock_timestamp() + CAST(%<slot>s AS bigint) * interval '1 millisecond'",
                            "timestamptz 'epoch' + CAST(%<slot>s AS bigint) * interval '1 millisecond'"),
      mysql: Dialect.new("qsidecar_jobs", "%<slot>s",
                         "UTC_TIMESTAMP(6) + INTERVAL %<slot>s * 1000 MICROSECOND",
                         "TIMESTAMP('1970-01-01') + INTERVAL %<slot>s * 1000 MICROSECOND"),
      sqlite: Dialect.new("qsidecar_jobs", "%<slot>s",
                          "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + %<slot>s", "%<slot>s")
    }.freeze

    ENGINES = { "PG::Connection" => :postgres, "Mysql2::Client" => :mysql, "SQLite3::Database" => :sqlite }.freeze
    private_constant :Dialect, :DIALECTS, :ENGINES

    module_function

    # enqueue inserts a job by a connection of pg, mysql2 or sqlite3 (or ActiveRecord's
    # connection over one of them), and commits nothing. The options are those of
    # Client#enqueue that a plain INSERT has. schema is where the sidecar keeps its tables
    # on PostgreSQL.
    def enqueue(connection, queue, payload, raw: false, priority: nil, headers: nil, max_attempts: nil, delay: nil,
                run_at: nil, schema: "qsidecar")
      raise ArgumentError, "give delay or run_at, and not both" if delay && run_at

      job = Fields.job(queue: queue, payload: payload, raw: raw, priority: priority, headers: headers,
                       max_attempts: max_attempts, delay: delay, run_at: run_at)
      return Client.inline.enqueue([job]) && nil if Client.inline

      connection = connection.raw_connection if connection.respond_to?(:raw_connection)
      run(connection, engine(connection), job, schema)
      nil
    end

    # engine is found by the connection's class, or one that it is made of.
    def engine(connection)
      connection.class.ancestors.each { |c| return ENGINES[c.name] if ENGINES.key?(c.name) }
      raise ArgumentError, "a #{connection.class} is none of #{ENGINES.keys.join(", ")}"
    end

    def run(connection, engine, job, schema)
      raise ArgumentError, "schema is a plain name, not #{schema.inspect}" unless /\A[A-Za-z_]\w*\z/.match?(schema)

      dialect = DIALECTS.fetch(engine)
      columns = columns(dialect, job)
      slots = columns.each_with_index.map { |(_, slot, _), i| format(slot, slot: engine == :postgres ? "$#{i + 1}" : "?") }
      statement = "INSERT INTO #{format(dialect.table, schema: schema)} (#{columns.map(&:first).join(", ")}) VALUES (#{slots.join(", ")})"
      send(:"run_#{engine}", connection, statement, columns.map(&:last))
    end

    # columns are the names, the expressions and the values. A value in a list is bytes.
    def columns(dialect, job)
      all = [["queue", "%<slot>s", job[:queue]], ["payload", "%<slot>s", [job[:payload]]]]
      all << ["priority", "%<slot>s", job[:priority]] if job[:priority]
      all << ["headers", dialect.headers, JSON.generate(job[:headers])] if job[:headers]
      all << ["max_attempts", "%<slot>s", job[:max_attempts]] if job[:max_attempts]
      all << ["run_at", dialect.delay, job[:delay_ms]] if job[:delay_ms]
      all << ["run_at", dialect.run_at, job[:run_at]] if job[:run_at]
      all
    end

    def run_postgres(connection, statement, values)
      connection.exec_params(statement, values.map { |v| v.is_a?(Array) ? { value: v.first, type: 17, format: 1 } : v }).clear
    end

    def run_mysql(connection, statement, values)
      prepared = connection.prepare(statement)
      prepared.execute(*values.flatten)
    ensure
      prepared&.close
    end

    def run_sqlite(connection, statement, values)
      connection.execute(statement, values.map { |v| v.is_a?(Array) ? ::SQLite3::Blob.new(v.first) : v })
    end

    private_class_method :engine, :run, :columns, :run_postgres, :run_mysql, :run_sqlite
  end
end
