# frozen_string_literal: true

# The outcomes of a worker's jobs, and its log.
class Suite
  # The same jobs, on a real sidecar and inline.
  def check_worker
    want = { 0 => :acked, 1 => :retry, 2 => :dead, 3 => :failed, 4 => :failed, 5 => :acked, 6 => :failed, 7 => :failed }
    worker, log = jobs_of_all_kinds
    want.each_key { |n| @client.enqueue("kinds", n) }
    worker.run(concurrency: 3, drain: true)
    states = %w[scheduled dead].flat_map { |s| @client.request("peek", queue: "kinds", state: s, max: 100)["jobs"] }
    left = states.map { |j| [j["payload"].to_i, [j["state"], j["errors"].map { |e| e["message"].lines.first.chomp }]] }.to_h
    equal({ 1 => ["scheduled", ["retry"]], 2 => ["dead", ["never"]], 3 => ["scheduled", ["RuntimeError: boom"]],
            4 => ["scheduled", ["SystemExit: exit"]], 6 => ["scheduled", ["ArgumentError: before"]],
            7 => ["scheduled", ["NotImplementedError: later"]] }, left)
    equal want, log.sort.to_h
    equal ["then"], Array.new(1) { one("then").tap(&:ack).payload }
  end

  # The messages that a Logger gets.
  def check_logger
    out = StringIO.new
    logger = Logger.new(out, formatter: ->(level, _, _, text) { "#{level} #{text.lines.first.chomp}\n" })
    worker = Qsidecar::Worker.new(logger: logger, **@options)
    worker.job("logged") do |job|
      case job.payload
      when 0 then raise Qsidecar::Retry.new("busy there", delay: 3600)
      when 1 then raise Qsidecar::Dead, "no use"
      when 4 then raise Qsidecar::Snooze.new("not yet", delay: 3600)
      else raise "boom"
      end
    end
    ids = [2, 2, 2, 1, 1].each_with_index.map { |most, n| @client.enqueue("logged", n, max_attempts: most).id }
    worker.run(concurrency: 1, drain: true)
    equal ["INFO worker started: queues logged, concurrency 1, processes 1", "WARN job #{ids[0]} of logged will be tried again: busy there",
           "ERROR job #{ids[1]} of logged is dead: no use", "ERROR job #{ids[2]} of logged will be tried again: RuntimeError: boom",
           "ERROR job #{ids[3]} of logged is dead, after its last attempt: RuntimeError: boom", "WARN job #{ids[4]} of logged is snoozed: not yet",
           "INFO worker stopped"], out.string.lines.map(&:chomp)
    snoozed = @client.request("peek", queue: "logged", ids: [ids[4]])["jobs"][0]
    equal ["scheduled", 0, []], snoozed.values_at("state", "attempt", "errors")
  end

  # A run over its time limit is logged as such.
  def check_time_limit_is_logged
    out = Queue.new
    logger = Logger.new(StringIO.new, formatter: ->(_, _, _, text) { out << text.to_s; "" })
    worker = Qsidecar::Worker.new(logger: logger, **@options)
    refused = nil
    worker.job("limited") do |job|
      eventually { job.lost? }
      refused = raises(Qsidecar::LeaseLost) { job.ack }.message
    end
    id = @client.enqueue("limited", nil, timeout: 0.05, max_attempts: 1).id
    worker.run(drain: true)
    over = "it ran longer than its time limit of 0.05 s"
    equal "job #{id}: #{over}; another worker may have it", refused
    lines = Array.new(out.size) { out.pop }
    equal ["job #{id} of limited: #{over}; another worker may have it (see Job#lost?)"], lines.grep(/job #{id} /)
  end

  # A lost lease names the time limit only near it: within 100 ms, or within half of a short limit.
  def check_loss_near_the_time_limit
    lost, late = "its lease was lost", "it ran longer than its time limit of %g s"
    [[nil, 3600, lost], [1000, 0.8985, lost], [1000, 0.9015, late % 1], [50, 0.0249, lost], [50, 0.026, late % 0.05]].each do |limit, took, want|
      job = Qsidecar::Job.new(nil, { "id" => "1", "queue" => "q", "timeout_ms" => limit }, nil)
      now = Qsidecar::Connection.now
      job.instance_variable_set(:@began, now)
      equal want, job.loss(now + took), [limit, took]
    end
  end

  # A lost lease is logged once: at the event, at the end of the job, or at its settle.
  def check_a_lost_lease_is_logged_once
    lines = Queue.new
    logger = Logger.new(StringIO.new, formatter: ->(_, _, _, text) { lines << text.to_s; "" })
    gone = []
    worker = Qsidecar::Worker.new(logger: logger, on_lost: ->(job) { gone << job.id }, **@options)
    worker.job("lost-once") do |job|
      next if gone.include?(job.id) # it was reclaimed

      @client.request("nack", lease: job.lease, dead: true) unless job.payload == "event"
      @client.request("reclaim", queue: "lost-once", ids: [job.id]) if job.payload == "event"
      eventually { gone.include?(job.id) } if job.payload == "event"
      raises(Qsidecar::LeaseLost) { job.ack } if job.payload == "block"
    end
    %i[behind sync].each do |ack|
      ids = %w[event block settle].map { |payload| @client.enqueue("lost-once", payload).id }
      worker.run(drain: true, concurrency: 1, ack: ack)
      said = Array.new(lines.size) { lines.pop }
      ids.each { |id| equal ["job #{id} of lost-once: its lease was lost; another worker may have it (see Job#lost?)"], said.grep(/job #{id} /), ack }
    end
  end

  # No job is acked if its work did not run. No job stays with a worker that can't settle it.
  def check_unfinished_and_failed_handlers
    ran = []
    later = ->(job) { ran << job.id }
    {
      "lazy" => ->(job) { [job].lazy.map(&later) }, "enumerator" => ->(job) { [job].each }, "proc" => ->(job) { proc { later.call(job) } },
      "method" => ->(_) { ran.method(:push) }, "fiber" => ->(job) { Fiber.new { later.call(job) } },
      "thread exits" => ->(_) { Thread.exit }, "thread killed" => ->(_) { Thread.current.kill }, "thread fails" => ->(_) { failing_thread },
      "thread in a hash" => ->(_) { { url: failing_thread } }, "thread as a key" => ->(_) { { failing_thread => "url" } },
      "thread in lists" => ->(_) { [1, [nil, [failing_thread]]] }, "thread in a set" => ->(_) { Set[failing_thread] },
      "thread in a struct" => ->(_) { Struct.new(:work).new(failing_thread) }, "thread of a thread" => ->(_) { [Thread.new { [failing_thread] }] },
      "lazy in a list" => ->(job) { [[job].lazy.map(&later)] }, "fiber in a hash" => ->(job) { { work: Fiber.new { later.call(job) } } },
      "proc in a hash" => ->(job) { { work: proc { later.call(job) } } },
      "throw" => ->(_) { throw :out }, "yield" => ->(_) { Fiber.yield }, "interrupt" => ->(_) { raise Interrupt },
      "memory" => ->(_) { raise NoMemoryError, "full" }, "own" => ->(_) { raise Class.new(Exception), "own" },
      "no words" => ->(_) { raise Class.new(StandardError) { def message; raise "no words"; end } },
      "a century" => ->(_) { raise Qsidecar::Retry.new(delay: 100 * 365 * 86_400) }, "no time" => ->(_) { raise Qsidecar::Retry.new(delay: "soon") },
      "no queue" => ->(job) { job.ack(enqueue: [{ queue: "no queue's name!" }]) }
    }.each do |name, handler|
      queue = "handlers-#{name.tr(" ", "-")}"
      worker = Qsidecar::Worker.new(logger: silent, **@options)
      worker.job(queue, &handler)
      id = @client.enqueue(queue, 1, max_attempts: 1).id
      worker.run(concurrency: 1, drain: true)
      equal "dead", @client.request("peek", queue: queue, ids: [id])["jobs"].map { |j| j["state"] }.first, "a job of #{name}"
    end
    equal [], ran, "the work of unfinished results"
  end

  # A second block for a queue would silently replace the first one.
  def check_one_block_for_a_queue
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("twice") { nil }
    equal 'the queue "twice" already has a block', raises(ArgumentError) { worker.job(:twice) { nil } }.message
    equal 'nil is not a queue: name it, as in worker.job("mail")', raises(ArgumentError) { worker.job(nil) { nil } }.message
  ensure
    Qsidecar::Worker.made.delete(worker)
  end

  # The worker waits for a thread that a job started, and replaces a thread that a job ended.
  def check_threads_of_handlers
    ran = []
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("threads-left") { |job| job.payload == 0 ? Thread.exit : Thread.new { ran << job.payload } }
    4.times { |n| @client.enqueue("threads-left", n, max_attempts: 1) }
    worker.run(concurrency: 1, drain: true)
    equal [1, 2, 3], ran
    equal({ "ready" => 0, "scheduled" => 0, "claimed" => 0, "dead" => 1 }, stat("threads-left"))
  end

  # A result that contains itself, or whose work is over, is a job that is done.
  def check_finished_results
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    itself = [1, { "a" => nil }]
    itself << itself
    over = Fiber.new { 1 }.tap(&:resume)
    results = [itself, { over => [over] }, [Thread.new { nil }, false, nil], nil, Array.new(1000, "x")]
    worker.job("results") { |job| results[job.payload] }
    results.each_index { |n| @client.enqueue("results", n, max_attempts: 1) }
    worker.run(concurrency: 1, drain: true)
    equal({ "ready" => 0, "scheduled" => 0, "claimed" => 0, "dead" => 0 }, stat("results"))
  end

  # It also waits for threads in a list, as in urls.map { |url| Thread.new { … } }.
  def check_thread_lists_of_handlers
    go = Queue.new
    ran = []
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("thread-lists") { |job| Array.new(2) { Thread.new { go.pop; ran << job.id } } }
    worker.after_job { |_, _| ran << :after }
    id = @client.enqueue("thread-lists", 1).id
    run = Thread.new { worker.run(concurrency: 1, drain: true) }
    Thread.pass until go.num_waiting == 2
    2.times { go << 1 }
    run.join
    equal [id, id, :after], ran
  end

  # A child that a block forked and that returns from the block settles nothing and ends.
  def check_forks_of_handlers
    { "returns" => [-> {}, 0], "exits" => [-> { exit 7 }, 7], "fails" => [-> { raise "in the child" }, 1] }.each do |name, (child, code)|
      seen = nil
      worker = Qsidecar::Worker.new(logger: silent, **@options)
      worker.job("fork-#{name}") do |_|
        pid = fork
        pid ? seen = Process.wait2(pid)[1].exitstatus : child.call
      end
      id = @client.enqueue("fork-#{name}", 1, max_attempts: 1).id
      worker.run(concurrency: 1, drain: true)
      equal [code, []], [seen, @client.request("peek", queue: "fork-#{name}", ids: [id])["jobs"]], "a child that #{name}"
    end
  end

  # A queue can have a weight if it shares the concurrency, also if it is the only one that does.
  def check_weights_of_queues
    lines = []
    logger = Logger.new(StringIO.new, formatter: ->(_, _, _, text) { lines << text; "" })
    worker = Qsidecar::Worker.new(logger: logger, **@options)
    %w[weight-shared weight-own].each { |queue| worker.job(queue) {} }
    queues = { "weight-shared" => nil, "weight-own" => 2 }
    worker.run(queues: queues, concurrency: 3, weights: { "weight-shared" => 3 }, drain: true)
    equal "worker started: queues weight-shared=3, concurrency 3; queues weight-own, concurrency 2, processes 1", lines.first
    [queues, { "weight-own" => 2 }].each do |chosen|
      failed = raises(Qsidecar::Worker::WrongArgument) { worker.run(queues: chosen, weights: { "weight-own" => 3 }) }
      equal "weights has the queue weight-own, whose jobs have a number of their own: leave one of them out", failed.message
    end
  end

  def check_own_settle_then_failure
    out = StringIO.new
    worker = Qsidecar::Worker.new(logger: Logger.new(out), **@options)
    worker.job("own-settle") do |job|
      job.ack
      raise "after it"
    end
    @client.enqueue("own-settle", 1)
    worker.run(concurrency: 1, drain: true)
    equal true, out.string.include?("after it"), "the log #{out.string}"
  end

  # An exception whose message method raises ends neither the worker nor its other jobs.
  def check_exceptions_without_message
    wordless = Class.new(StandardError) { def message; raise "no words"; end }
    done = []
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("wordless") do |job|
      job.ack if job.payload == 1
      done << job.payload
      raise wordless if job.payload == 1
    end
    worker.after_job { raise wordless }
    2.times { |n| @client.enqueue("wordless", n + 1) }
    worker.run(concurrency: 1, drain: true)
    equal [1, 2], done
    equal [], @client.stats("wordless").reject { |q| q.values_at("ready", "scheduled", "claimed", "dead").sum.zero? }
  end

  # A program that ends while a worker runs in one of its threads prints nothing about it.
  def check_program_ends_during_jobs
    read, write = IO.pipe
    fork do
      $stderr.reopen(write)
      worker = Qsidecar::Worker.new(logger: silent, **@options)
      worked = Queue.new
      worker.job("program-ends") { worked << 1 }
      Thread.new { worker.run(concurrency: 2) }
      @client.enqueue("program-ends", 1)
      worked.pop
      exit
    end
    write.close
    equal "", read.read
  ensure
    read.close
    Process.wait
  end

  # The log reports an outage of the sidecar, although the claim waits for it, and its end.
  def check_outage
    Dir.mktmpdir do |dir|
      sidecar = Deaf.new(dir)
      lines = Queue.new
      worker = Qsidecar::Worker.new(logger: Logger.new(Struct.new(:lines) { def write(line); lines << line; end; def close; end }.new(lines)),
                                    socket: sidecar.path, codec: :json)
      worker.job("q") { nil }
      run = Thread.new { worker.run(concurrency: 2) }
      sidecar.accept
      lines.pop # the start message
      File.unlink(sidecar.path)
      sidecar.close
      equal true, lines.pop.include?("can't claim jobs: No such file")
      sidecar = Deaf.new(dir)
      sidecar.accept
      equal true, lines.pop.include?("jobs can be claimed again")
      worker.stop
      sidecar.serve
      run.join
      equal [true, 0], [lines.pop.include?("worker stopped"), lines.size]
    ensure
      sidecar.close
    end
  end

  def failing_thread
    Thread.new do
      Thread.current.report_on_exception = false
      raise Qsidecar::Dead, "in a thread"
    end
  end

  def silent
    quiet = Object.new
    %i[info warn error].each { |level| quiet.define_singleton_method(level) { |_| nil } }
    quiet
  end

  def check_inline
    worker, log = jobs_of_all_kinds
    did = Qsidecar::Testing.inline(worker, raises: false) do
      8.times { |n| @client.enqueue("kinds", n, key: "k#{n}", group: "g#{n}") }
      equal true, @client.enqueue("kinds", 0, key: "k0").duplicate
    end
    equal log.sort.to_h, did.select { |d| d.job.queue == "kinds" }.map { |d| [d.job.payload, d.outcome] }.to_h
    equal %w[g0 g1], did.map { |d| d.options[:group] }.compact.first(2)
    equal [["then", :enqueued]], did.reject { |d| d.job.queue == "kinds" }.map { |d| [d.job.payload, d.outcome] }
    equal "r", did.find { |d| d.job.payload == 5 }.result
    raises(RuntimeError) { Qsidecar::Testing.inline(worker) { @client.enqueue("kinds", 3) } }
    Qsidecar::Testing.inline(worker) do
      e = raises(Qsidecar::NotConnected) { Qsidecar::Client.open(socket: "/nonexistent/s", &:stats) }
      raise e.message unless e.message.start_with?("stats: Qsidecar::Testing.inline covers enqueue only; no sidecar answers on /nonexistent/s")
    end
    equal nil, Qsidecar::Client.inline
    later = Qsidecar::Worker.new(logger: silent, **@options)
    later.job("later") { raise Qsidecar::Snooze.new(delay: 60) }
    equal [:snooze], Qsidecar::Testing.inline(later) { @client.enqueue("later", 1) }.map(&:outcome)
  end

  # jobs_of_all_kinds returns a worker and the calls of its after_job hook.
  def jobs_of_all_kinds
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("kinds") do |job|
      case job.payload
      when 1 then raise Qsidecar::Retry.new(delay: 3600)
      when 2 then raise Qsidecar::Dead, "never"
      when 3 then raise "boom"
      when 4 then exit
      when 5 then job.ack(result: "r", enqueue: [{ queue: "then", payload: "then" }])
      when 7 then raise NotImplementedError, "later"
      end
    end
    worker.before_job { |job| raise ArgumentError, "before" if job.payload == 6 }
    log = Queue.new
    worker.after_job do |job, error|
      log << [job.payload, { nil => :acked, Qsidecar::Retry => :retry, Qsidecar::Dead => :dead }.fetch(error&.class, :failed)]
      raise "an after_job that fails changes nothing"
    end
    seen = Object.new
    seen.define_singleton_method(:sort) { Array.new(log.size) { log.pop }.sort }
    [worker, seen]
  end
end
