# frozen_string_literal: true

# Checks of schedules, which the client or the start of a worker declares.
class Suite
  def removing(name)
    yield
  ensure
    @client.request("change_schedule", queue: name, schedule: { name: name }, do: "delete")
  end

  def check_schedule
    definition = { queue: "scheduled", tz: "Europe/Berlin", payload: { "kind" => "daily" }, headers: { a: "b" }, source: "app", version: 1 }
    removing("scheduled") do
      equal "created", @client.schedule("scheduled", "0 6 * * *", **definition)
      equal "unchanged", @client.schedule("scheduled", "0 6 * * *", **definition)
      equal "updated", @client.schedule("scheduled", "0 7 * * *", **definition, version: 2)
      equal "ignored", @client.schedule("scheduled", "0 8 * * *", **definition)
      @client.request("change_schedule", queue: "scheduled", schedule: { name: "scheduled" }, do: "run")
      job = one("scheduled")
      equal [{ "kind" => "daily" }, "b", "scheduled"], [job.payload, *job.headers.values_at("a", "qsidecar-schedule")]
      job.ack
    end
  end

  # Every field of a definition, and a payload of bytes.
  def check_schedule_fields
    removing("scheduled-fields") do
      @client.schedule("scheduled-fields", queue: "scheduled-fields", every: 90, splay: 5, payload: "\xff\0".b, raw: true, priority: 3, missed: :all, overlap: :skip)
      found = @client.request("schedules", schedule: { name: "scheduled-fields" })["schedules"][0]
      equal [90_000, 5000, 3, "all", "skip"], found.values_at("every_ms", "splay_ms", "priority", "missed", "overlap")
      @client.request("change_schedule", queue: "scheduled-fields", schedule: { name: "scheduled-fields" }, do: "run")
      equal "\xff\0".b, one("scheduled-fields").tap(&:ack).raw
    end
  end

  def check_schedule_errors
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    {
      "schedule s: give cron or every" => ["s", nil, { queue: "q" }], "schedule s: give cron or every " => ["s", "@daily", { queue: "q", every: 60 }],
      "every: 0.5 must be from 1 to 31622400 seconds" => ["s", nil, { queue: "q", every: 0.5 }], "missing keyword: :queue" => ["s", "@daily", {}],
      "unknown keyword: :key" => ["s", "@daily", { queue: "q", key: "k" }]
    }.each do |message, (name, cron, options)|
      [@client, worker].each { |on| equal message.strip, raises(ArgumentError) { on.schedule(name, cron, **options) }.message }
    end
    raise "not a BadRequest of the sidecar" unless raises(Qsidecar::BadRequest) { @client.schedule("s", "61 * * * *", queue: "q") }.message.include?("61")
  ensure
    Qsidecar::Worker.made.delete(worker)
  end

  def check_worker_declares_schedules
    seen = Queue.new
    out = StringIO.new
    worker = Qsidecar::Worker.new(logger: Logger.new(out), **@options)
    worker.job("ticks") { |job| seen << job.headers["qsidecar-occurrence"] }
    worker.schedule("ticks", queue: "ticks", every: 1, payload: "tick", missed: "all")
    removing("ticks") do
      run = Thread.new { worker.run(concurrency: 2) }
      occurrences = [seen.pop, seen.pop]
      worker.stop
      run.join
      equal occurrences.uniq, occurrences
    end
    equal 1, out.string.scan("schedule ticks: created").size
  end

  # A worker waits for the sidecar to declare its schedules. A drain doesn't wait, and a rejected declaration ends the run.
  def check_worker_cannot_declare
    warned = Queue.new
    logger = Logger.new(StringIO.new, formatter: ->(level, _, _, text) { warned << text if level == "WARN"; "" })
    worker = Qsidecar::Worker.new(logger: logger, socket: "/nonexistent/s", **@options)
    worker.job("never") { nil }
    worker.schedule("never", "@daily", queue: "never")
    stopped = []
    worker.define_singleton_method(:stop) { 10_000.times { Thread.pass }; super(); stopped << 1 }
    raises(Qsidecar::NotConnected) { worker.run(drain: true) }
    equal [1], stopped, "what the drain left behind" # it would stop the next run
    run = Thread.new { worker.run }
    first = warned.pop
    raise first unless first.start_with?("can't declare the schedule never, trying again: no sidecar answers on /nonexistent/s")

    worker.stop
    run.join
    refused = Qsidecar::Worker.new(logger: silent, **@options)
    refused.job("never") { nil }
    refused.schedule("never", "61 * * * *", queue: "never")
    raises(Qsidecar::BadRequest) { refused.run }
  ensure
    Qsidecar::Worker.made.delete(worker)
  end
end
