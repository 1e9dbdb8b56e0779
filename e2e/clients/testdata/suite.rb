# frozen_string_literal: true

# What a Ruby program sees of the client and the worker, against a real sidecar, on any
# Ruby: each check is a method, and runs on queues of its own.

require "qsidecar"
require "stringio"
require "timeout"
require "tmpdir"

class Suite
  def initialize
    @failed = 0
    codec = ENV["WORKER_CODEC"]
    raise "msgpack is #{Qsidecar::Codec.msgpack? ? "" : "not "}there" if ENV["MSGPACK"] && ENV["MSGPACK"] != Qsidecar::Codec.msgpack?.to_s

    @options = codec ? { codec: codec } : {}
    @client = Qsidecar::Client.new(**@options)
  end

  def run
    methods(false).concat(self.class.instance_methods(false)).grep(/\Acheck_/).sort.each do |name|
      Timeout.timeout(60) { send(name) }
    rescue StandardError => e
      @failed += 1
      puts "#{name}: #{e.class}: #{e.message}", e.backtrace.first(8)
    end
    @client.close
    exit(@failed.zero?)
  end

  def equal(want, got, what = "")
    raise "#{what} is #{got.inspect}, want #{want.inspect}" unless got == want
  end

  def raises(kind)
    yield
  rescue kind => e
    e
  else
    raise "#{kind} was not raised"
  end

  def one(queue, wait: 20)
    @client.claim(queue, wait: wait).first || raise("no job in #{queue}")
  end

  def stat(queue)
    @client.stats(queue).first.slice("ready", "scheduled", "claimed", "dead")
  end

  def check_payloads
    [{ a: 1, "b" => [nil, "é"] }, { "a" => 1 }, {}, [], nil, "text", 17, 1.5, false].each do |payload|
      @client.enqueue("payloads", payload)
      job = one("payloads")
      equal JSON.parse(JSON.generate([payload]))[0], job.payload
      job.ack
    end
    [(0..255).to_a.pack("C*"), "", "\0", "é", "\xff"].each do |bytes|
      @client.enqueue("payloads", bytes, raw: true)
      job = one("payloads")
      equal bytes.b, job.raw
      equal Encoding::BINARY, job.raw.encoding
      job.ack
    end
    raises(ArgumentError) { @client.enqueue("payloads", { a: 1 }, raw: true) }
    @client.enqueue("payloads", "{", raw: true)
    job = one("payloads")
    raises(JSON::ParserError) { job.payload }
    job.ack
  end

  def check_fields
    at = Time.now + 3600
    stored = @client.enqueue_many(
      [{ queue: "fields", payload: 1, key: "k", headers: { "lang" => "é", trace: "17" }, priority: -3, max_attempts: 5, timeout: 90 },
       { queue: "fields", payload: 2, key: "k" }, { queue: "fields", payload: 3, delay: 0.001 }, { queue: "fields", payload: 4, run_at: at }]
    )
    equal [false, true, false, false], stored.map(&:duplicate)
    equal stored[0].id, stored[1].id
    jobs = []
    jobs.concat(@client.claim("nothing", "fields", max: 5, wait: 20)) until jobs.size == 2
    jobs.sort_by!(&:payload)
    equal [1, 3], jobs.map(&:payload)
    job = jobs[0]
    equal [{ "lang" => "é", "trace" => "17" }, -3, 5, 90.0, 1, "k"], [job.headers, job.priority, job.max_attempts, job.timeout, job.attempt, job.key]
    equal true, (Time.now - job.enqueued_at).abs < 3600
    equal at.to_i, @client.request("peek", queue: "fields", state: "scheduled")["jobs"][0]["run_at"] / 1000
    equal [], @client.ack_many(jobs)
    equal true, jobs.all?(&:settled?)
  end

  def check_settles
    @client.enqueue("settles", 1)
    job = one("settles")
    more = job.ack(result: "done", enqueue: [{ queue: "settles", payload: "more" }])
    equal 1, more.size
    raises(Qsidecar::LeaseLost) { job.ack }
    job = one("settles")
    equal "more", job.payload
    job.nack(error: "not UTF-8: \xff \0", delay: 0)
    job = one("settles")
    equal [2, "not UTF-8: \uFFFD "], [job.attempt, job.last_error]
    job.nack(charge: false, delay: 0)
    job = one("settles")
    equal 2, job.attempt
    job.extend
    job.nack(dead: true)
    equal({ "ready" => 0, "scheduled" => 0, "claimed" => 0, "dead" => 1 }, stat("settles"))
    equal false, job.inspect.include?(job.lease)
  end

  def check_timed_leases
    @client.enqueue("timed", 1)
    Qsidecar::Client.open(**@options) do |other|
      @timed = other.claim("timed", lease: 60).first
      @timed.extend(120)
    end
    @client.ack(@timed)
    equal [], @client.stats("timed").reject { |q| q["claimed"].zero? }
  end

  def check_errors
    e = raises(Qsidecar::BadRequest) { @client.claim("errors", max: 0) }
    equal %w[bad_request max], [e.code, e.field]
    equal 1, raises(Qsidecar::BadRequest) { @client.enqueue_many([{ queue: "errors" }, { queue: "no queue" }]) }.index
    raises(Qsidecar::UnknownOp) { @client.request("no_such_op") }
    raises(Qsidecar::TooLarge) { @client.enqueue("errors", "x" * (5 << 20), raw: true) }
    raises(Qsidecar::TooLarge) { @client.enqueue("errors", "\xff" * ((4 << 20) - 1000), raw: true) }
    raises(ArgumentError) { @client.enqueue("\xff", 1) }
    raises(ArgumentError) { Qsidecar::Client.new(codec: :xml) }
    raises(Qsidecar::NotConnected) { Qsidecar::Client.open(socket: "/nonexistent/s", &:connect) }
    closed = Qsidecar::Client.new(**@options).connect
    closed.close
    raises(Qsidecar::Closed) { closed.request("ping") }
    equal true, @client.request("ping")["ok"]
  end

  # A claim whose thread was interrupted takes no job away.
  def check_interrupted
    raises(Timeout::Error) { Timeout.timeout(0.1) { @client.claim("interrupted", wait: 60) } }
    waiting = Thread.new { @client.claim("interrupted", wait: 60) }
    Thread.pass until waiting.stop?
    waiting.kill.join
    @client.enqueue("interrupted", 1)
    job = one("interrupted")
    equal 1, job.attempt
    job.ack
  end

  def check_many_threads
    threads = Array.new(8) do |i|
      Thread.new do
        20.times { |n| @client.enqueue("threads", [i, n]) }
        Array.new(20) { one("threads").tap(&:ack).payload }
      end
    end
    equal 160, threads.flat_map(&:value).uniq.size
  end

  # The child has a connection of its own, and nothing of its parent's.
  def check_fork
    @client.enqueue("fork", 1)
    job = one("fork")
    child { sockets.empty? }
    child { Process.daemon(true, true).zero? && @client.enqueue("fork", 2) && sockets.size == 1 }
    child { job.attempt == 1 && @client.enqueue("fork", 3) && one("fork").ack.nil? && @client.close.nil? }
    other = one("fork")
    equal 1, other.attempt
    @client.ack_many([job, other])
    equal 0, @client.stats("fork").sum { |q| q["claimed"] + q["ready"] }
  end

  def sockets
    Dir["/proc/self/fd/*"].map { |fd| File.readlink(fd) rescue "" }.grep(/\Asocket:/)
  end

  def child(&block)
    read, write = IO.pipe
    fork { read.close; write.write(block.call ? "well" : "not so"); write.close; exit! }
    write.close
    equal "well", read.read, "the child's word"
  ensure
    read.close
    Process.wait
  end

  def check_lost
    told = Queue.new
    Qsidecar::Client.open(**@options, on_lost: ->(job) { told << job }) do |client|
      id = client.enqueue("lost", 1).id
      job = client.claim("lost", wait: 20).first
      equal [id, false], [job.id, job.lost?]
      equal 1, @client.request("release", queue: "lost", ids: [id])["count"]
      equal job, told.pop
      equal true, job.lost?
      raises(Qsidecar::LeaseLost) { job.ack }
    end
  end

  # What is held goes back uncharged where a client is closed in order.
  def check_close
    @client.enqueue("close", 1)
    Qsidecar::Client.open(**@options) { |client| equal 1, client.claim("close", wait: 20).first.attempt }
    equal 1, one("close").tap(&:ack).attempt
  end

  # A client leaves no thread and no descriptor behind.
  def check_leaves_nothing
    before = [Thread.list.size, sockets.size]
    3.times { Qsidecar::Client.open(**@options) { |client| client.request("ping") } }
    equal before, [Thread.list.size, sockets.size]
  end

  # Whatever comes, a decoder gives a message or says that it is none.
  def check_decoders
    seeds = { Qsidecar::Codec::JSONLines => %({"id":7,"ok":true,"jobs":[{"id":"é","payload_b64":"/w=="}]}) }
    if Qsidecar::Codec.msgpack?
      seeds[Qsidecar::Codec::Msgpack] = MessagePack.pack("id" => 7, "jobs" => [{ "lease" => "1.a", "payload" => "x\xff".b, "fence" => 2**40 }])
    end
    chance = Random.new(Integer(ENV["SEED"] || Random.new_seed))
    seeds.to_a.product(Array.new(300) { chance }).each do |(codec, seed), _|
      text = mangled(seed.b, chance)
      frame = codec == Qsidecar::Codec::JSONLines ? "#{text}\n".b : [text.bytesize].pack("N") + text
      codec.read(StringIO.new(frame), 1 << 20)
    rescue Qsidecar::Codec::Garbage
      next
    rescue Exception => e # rubocop:disable Lint/RescueException
      raise "#{codec} of #{text.inspect} (SEED=#{chance.seed}): #{e.class}: #{e.message}"
    end
  end

  def mangled(text, chance)
    case chance.rand(4)
    when 0 then text[0, chance.rand(text.size)]
    when 1 then text.tap { |t| 3.times { t.setbyte(chance.rand(t.size), chance.rand(256)) } }
    when 2 then chance.bytes(chance.rand(40))
    else ["\xdd\xff\xff\xff\xff".b, ("\x91" * 1000).b, "[" * 200, "\xc6\x7f\xff\xff\xff".b].sample(random: chance) + text
    end
  end

  # What is no sidecar's answer ends a connection, and not the client.
  def check_garbage
    [nil, "", "{", "[]", "17", '{"id":1,"ok":true}', '{"id":1,"ok":true,"jobs":7}', '{"event":"lost","leases":{}}', '{"ok":false}'].each do |line|
      Dir.mktmpdir do |dir|
        server = UNIXServer.new(path = File.join(dir, "s"))
        side = Thread.new { [line, '{"id":%d,"ok":true,"jobs":[]}'].each { |answer| play(server.accept, answer) } }
        Qsidecar::Client.open(socket: path, codec: :json) { |client| equal [], client.claim("q", wait: 20), line.inspect }
        side.kill.join
        server.close
      end
    end
  end

  # play is a sidecar that answers the first request with that, and then hangs up.
  def play(socket, answer)
    socket.gets
    socket.puts('{"id":0,"ok":true,"max_frame":4194304,"max_payload":4177920}')
    id = JSON.parse(socket.gets)["id"]
    socket.puts(answer.sub("%d", id.to_s)) if answer
    socket.gets if answer&.include?("%d") # its bye
  ensure
    socket.close
  end

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

  # What a Logger is told.
  def check_logger
    out = StringIO.new
    logger = Logger.new(out, formatter: ->(level, _, _, text) { "#{level} #{text.lines.first.chomp}\n" })
    worker = Qsidecar::Worker.new(logger: logger, **@options)
    worker.job("logged") do |job|
      case job.payload
      when 0 then raise Qsidecar::Retry.new("busy there", delay: 3600)
      when 1 then raise Qsidecar::Dead, "no use"
      else raise "boom"
      end
    end
    ids = [2, 2, 2, 1].each_with_index.map { |most, n| @client.enqueue("logged", n, max_attempts: most).id }
    worker.run(concurrency: 1, drain: true)
    equal ["INFO worker started: queues logged, 1 jobs at once, 1 process", "WARN job #{ids[0]} of logged is to be tried again: busy there",
           "ERROR job #{ids[1]} of logged is dead: no use", "ERROR job #{ids[2]} of logged is to be tried again: RuntimeError: boom",
           "ERROR job #{ids[3]} of logged is dead, after its last attempt: RuntimeError: boom", "INFO worker stopped"], out.string.lines.map(&:chomp)
  end

  # Who waits how long for a sidecar that is away, or that says nothing.
  def check_patience
    Dir.mktmpdir do |dir|
      file = File.join(dir, "worker.rb")
      File.write(file, 'Qsidecar::Worker.new.job("q") { nil }')
      exe = File.expand_path("../exe/qsidecar-work", $LOAD_PATH.find { |d| File.exist?(File.join(d, "qsidecar.rb")) })
      [[], ["-p", "2"]].each do |how|
        socket = { "QSIDECAR_SOCKET" => File.join(dir, "none") }
        load_path = $LOAD_PATH.find { |d| File.exist?(File.join(d, "qsidecar.rb")) }
        pid = fork do
          ENV.update(socket)
          $stderr.reopen(File::NULL)
          $LOAD_PATH.unshift(load_path)
          Qsidecar::Worker.made.clear
          ARGV.replace(["--drain", *how, file])
          load exe
        end
        equal 5, Process.wait2(pid)[1].exitstatus, "the exit of a drain without a sidecar (#{how})"
      end
      server = UNIXServer.new(path = File.join(dir, "s")) # connections come up, and nobody reads
      Qsidecar::Client.open(socket: path) do |client|
        2.times { raises(Qsidecar::NotConnected) { client.enqueue("q", 1, request_timeout: 0.01) } }
      end
      server.close
    end
    equal [2, 60], [Qsidecar::Client::ENQUEUE_TIME, Qsidecar::Client::REQUEST_TIME]
  end

  # What the package's README shows is run as it stands there, but for its example and its last
  # block, which TestRubyExample and sql.rb run.
  def check_readme
    blocks = Suite.readme
    equal 4, blocks.size, "the README's blocks"
    silently do
      eval(blocks[1]) # rubocop:disable Security/Eval
      work_resizes(Qsidecar::Worker.made.last)
      printed = printed_by { eval(blocks[2]) } # rubocop:disable Security/Eval
      equal "\x89PNG".b, printed.b.chomp
    end
    equal ["ada", 17], one("audit").tap(&:ack).payload
  end

  def self.readme
    File.read(File.join($LOAD_PATH.find { |dir| File.exist?(File.join(dir, "qsidecar.rb")) }, "../README.md")).scan(/^```ruby\n(.*?)^```/m).flatten
  end

  def work_resizes(worker)
    big, small = [10_001, 10].map { |size| @client.enqueue("resize", { "size" => size }, max_attempts: 1).id }
    worker.run(concurrency: 1, drain: true)
    equal ["the disk is full"], @client.request("peek", queue: "resize", ids: [big])["jobs"][0]["errors"].map { |e| e["message"] }
    equal({ "picture" => small }, one("publish").tap(&:ack).payload)
  end

  # silently is for programs that warn.
  def silently
    old, $stderr = $stderr, StringIO.new
    yield
  ensure
    $stderr = old
  end

  def printed_by
    old, $stdout = $stdout, StringIO.new
    yield
    $stdout.string
  ensure
    $stdout = old
  end

  # No job is acked whose work did not run, and none stays with a worker that cannot settle it.
  def check_handlers
    ran = []
    later = ->(job) { ran << job.id }
    {
      "lazy" => ->(job) { [job].lazy.map(&later) }, "enumerator" => ->(job) { [job].each }, "proc" => ->(job) { proc { later.call(job) } },
      "method" => ->(_) { ran.method(:push) }, "fiber" => ->(job) { Fiber.new { later.call(job) } },
      "thread exits" => ->(_) { Thread.exit }, "thread killed" => ->(_) { Thread.current.kill }, "thread fails" => ->(_) { failing_thread },
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
    equal [], ran, "what was run all the same"
  end

  # A thread that a job leaves to work is waited for, and one that a job ended is replaced.
  def check_handlers_threads
    ran = []
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("threads-left") { |job| job.payload == 0 ? Thread.exit : Thread.new { ran << job.payload } }
    4.times { |n| @client.enqueue("threads-left", n, max_attempts: 1) }
    worker.run(concurrency: 1, drain: true)
    equal [1, 2, 3], ran
    equal({ "ready" => 0, "scheduled" => 0, "claimed" => 0, "dead" => 1 }, stat("threads-left"))
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
      8.times { |n| @client.enqueue("kinds", n, key: "k#{n}") }
      equal true, @client.enqueue("kinds", 0, key: "k0").duplicate
    end
    equal log.sort.to_h, did.select { |d| d.job.queue == "kinds" }.map { |d| [d.job.payload, d.outcome] }.to_h
    equal [["then", :enqueued]], did.reject { |d| d.job.queue == "kinds" }.map { |d| [d.job.payload, d.outcome] }
    equal "r", did.find { |d| d.job.payload == 5 }.result
    raises(RuntimeError) { Qsidecar::Testing.inline(worker) { @client.enqueue("kinds", 3) } }
    equal nil, Qsidecar::Client.inline
  end

  # jobs_of_all_kinds is a worker, and what its after_job hook saw.
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

require "qsidecar/testing"
Suite.new.run
