# frozen_string_literal: true

# Checks of the client and the worker against a real sidecar, on any Ruby. Each check is a method
# and has its own queues.

require "qsidecar"
require "stringio"
require "timeout"
require "tmpdir"

# A machine can stand still for ten seconds, so that a hello takes longer than a client otherwise waits for it.
Qsidecar::Connection.send(:remove_const, :HELLO_TIME)
Qsidecar::Connection.const_set(:HELLO_TIME, Integer(ENV.fetch("SUITE_LIMIT")))

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
      Timeout.timeout(Integer(ENV.fetch("SUITE_LIMIT"))) { send(name) }
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

  def check_progress
    @client.enqueue("progress", 1)
    job = one("progress")
    equal(nil, job.last_progress)
    job.progress(1)
    job.progress(6, 10, note: "page 6")
    equal(false, job.settled?)
    job.nack(delay: 0)
    job = one("progress")
    got = job.last_progress
    equal([6, 10, { "note" => "page 6" }], [got.done, got.total, got.data])
    equal(true, got.at >= job.enqueued_at)
    job.progress(raw: "\xff".b)
    job.nack(delay: 0)
    job = one("progress")
    equal([nil, "\xff".b], [job.last_progress.done, job.last_progress.raw])
    raises(Qsidecar::BadRequest) { job.progress(note: "x" * 5000) }
    raises(Qsidecar::BadRequest) { job.progress }
    job.ack
    raises(Qsidecar::LeaseLost) { job.progress(7) }
  end

  def check_wait_and_call
    answer = lambda do |queue = "waited", &settle|
      Thread.new { settle.call(one(queue)) }
    end
    called = nil
    thread = answer.call("called") { |job| (called = job).ack(result: JSON.generate("sum" => job.payload.sum)) }
    equal({ "sum" => 3 }, @client.call("called", [1, 2]))
    thread.join
    equal("done", @client.job(called.id)["state"]) # although its queue keeps no done jobs
    thread = answer.call { |job| job.nack(error: "no such address", dead: true) }
    failed = raises(Qsidecar::JobFailed) { @client.call("waited", nil) }
    thread.join
    equal(["dead", true], [failed.job.state, failed.message.include?("is dead: no such address")])
    late = raises(Qsidecar::NotEnded) { @client.call("unworked", 7, wait: 0) }.job
    equal(["unworked", "7"], @client.job(late.id).values_at("queue", "payload"))
    @client.cancel("unworked", late.id, delete: true) # a claim can still get it, so no other job is in this queue
    gone = @client.wait("unworked", late.id, wait: 0).first
    equal(["deleted", nil, nil], [gone.state, gone.result, gone.raw])
    equal(nil, @client.job(late.id))
    first, second = [1, 2].map { |n| @client.enqueue("waited", n).id }
    thread = answer.call { |job| job.ack(result: "\xff".b) }
    ended = @client.wait("waited", [first, second], any: true)
    equal([[first, "done", "\xff".b]], ended.map { |e| [e.id, e.state, e.raw] })
    thread.join
    answer.call(&:ack)
    equal([second], @client.wait("waited", second).map(&:id))
  end

  def check_batch
    batch = @client.batch(on_finish: ["reports", { "day" => 7 }]) do |b|
      b.enqueue("images", 1)
      b.enqueue_many([{ queue: "images", payload: 2 }])
      equal([b.id, "open", 0, 0, nil], b.wait(0).to_a)
    end
    thread = Thread.new { @client.claim("images", max: 2).each { |job| job.payload == 1 ? job.ack : job.nack(error: "no", dead: true) } }
    ended = batch.wait
    thread.join
    report = one("reports")
    equal([[batch.id, "ended", 1, 1, report.id], { "day" => 7 }], [ended.to_a, report.payload])
    report.ack
    other = @client.batch(on_success: ["reports", nil])
    other.enqueue("images", 3)
    equal([1, "cancelled"], [other.cancel, other.wait.state])
    raises(ArgumentError) { other.wait(-1) }
  end

  def check_limit
    limits = -> { @client.stats("limits").first.slice("max_claimed", "rate", "burst") }
    @client.limit("limits", max_claimed: 3, rate: "100/s", burst: 5)
    equal({ "max_claimed" => 3, "rate" => "100/s", "burst" => 5 }, limits.call)
    @client.limit("limits", rate: 0)
    equal({ "max_claimed" => 3 }, limits.call)
    @client.limit("limits", max_claimed: 0, group_limit: 2, group_on_failure: :skip, group_ready: 3)
    equal [2, "skip", 3], @client.stats("limits").first.values_at("group_limit", "group_on_failure", "group_ready")
    @client.limit("limits", none: true)
    equal({}, limits.call)
    raises(Qsidecar::BadRequest) { @client.limit("limits", rate: "5/d") }
  end

  # Jobs of a group run one at a time and in order, whichever way they are enqueued.
  def check_group
    stored = [@client.enqueue("grouped", 1, group: "é"), *@client.enqueue_many([{ queue: "grouped", payload: 2, group: "é" }])]
    (1..3).each do |n|
      job = one("grouped")
      equal [stored[n - 1].id, n], [job.id, job.payload]
      equal "é", @client.request("peek", queue: "grouped", ids: [job.id])["jobs"][0]["group"]
      equal [], @client.claim("grouped"), "a second job of the group"
      stored.concat(job.ack(enqueue: n == 1 ? [{ queue: "grouped", payload: 3, group: "é" }] : []) || [])
    end
    equal "group", raises(Qsidecar::BadRequest) { @client.enqueue("grouped", 1, group: "") }.field
  end

  # A second enqueue replaces the content of the first one.
  def check_unique
    first = @client.enqueue("unique", 1, key: "k", on_conflict: :replace)
    equal [first.id, false, "ready", "replaced"], @client.enqueue("unique", 2, key: "k", on_conflict: :replace).to_a
    later = { queue: "unique", payload: 3, key: "k", on_conflict: :debounce, delay: 0.002 }
    equal "debounce_max_ms", raises(Qsidecar::BadRequest) { @client.enqueue_many([{ **later, debounce_max: 0.001 }]) }.field
    @client.enqueue_many([{ **later, debounce_max: 60 }])
    job = one("unique")
    equal 3, job.payload
    equal [first.id, false, "claimed", "pending"], @client.enqueue("unique", 4, key: "k", on_conflict: :replace).to_a
    job.ack
    next_one = one("unique")
    equal 4, next_one.payload
    next_one.ack
    @client.enqueue("unique", 5, key: "s", key_until: :start)
    one("unique")
    equal false, @client.enqueue("unique", 6, key: "s", key_until: :start).duplicate
    equal "delay_ms", raises(Qsidecar::BadRequest) { @client.enqueue("unique", 1, key: "k", on_conflict: :debounce) }.field
  end

  # A job whose time to start is over doesn't start.
  def check_expiry
    past = Time.utc(2001, 2, 3)
    dead = @client.enqueue("expiring", 1, start_before: past)
    gone = @client.enqueue_many([{ queue: "expiring", payload: 2, start_before: past, on_expiry: :delete }]).first
    @client.enqueue("expiring", 3, start_within: 3600, retain: 60)
    job = one("expiring")
    equal 3, job.payload
    shown = @client.request("peek", queue: "expiring", ids: [dead.id, gone.id])["jobs"]
    equal [[dead.id, "dead", "expired"]], (shown.map { |j| [j["id"], j["state"], j["errors"][0]["cause"]] })
    job.ack
    equal "done", @client.request("peek", queue: "expiring", ids: [job.id])["jobs"][0]["state"]
    raises(ArgumentError) { @client.enqueue("expiring", 1, start_before: past, start_within: 1) }
    equal "on_expiry", raises(Qsidecar::BadRequest) { @client.enqueue("expiring", 1, on_expiry: :drop) }.field
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

  def check_unknown_names_are_errors
    @client.enqueue("unknown-names", 1)
    job = one("unknown-names")
    calls = [-> { job.nack(shade: 1) }, -> { @client.nack_many([job], shade: 1) }, -> { Qsidecar::Retry.new(shade: 1) }]
    calls.each { |call| equal "unknown keyword: :shade", raises(ArgumentError, &call).message }
    job.ack
  end

  def check_inspect
    client = Qsidecar::Client.new(socket: "/nowhere/s.sock", **@options)
    equal "#<Qsidecar::Client /nowhere/s.sock>", client.inspect
    client.close
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
    job.nack(snooze: true, delay: 0)
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
    equal "delay and run_at exclude each other", raises(ArgumentError) { @client.enqueue("errors", 1, delay: 1, run_at: Time.now) }.message
    equal "run_at: -5 must be in the years 1970 to 9999", raises(ArgumentError) { @client.enqueue("errors", 1, run_at: -5) }.message
    equal "order is :random, must be :strict or :rotate", raises(ArgumentError) { @client.claim("errors", order: :random) }.message
    equal "delay: -1 must be from 0 to 316224000 seconds", raises(ArgumentError) { @client.enqueue("errors", 1, delay: -1) }.message
    {
      'run_at: "tomorrow" must be a Time or a number of seconds since 1970' => -> { @client.enqueue("errors", 1, run_at: "tomorrow") },
      'headers: ["a"] must be a Hash' => -> { @client.enqueue("errors", 1, headers: ["a"]) },
      'request_timeout: "5s" must be a number of seconds, 0 or more' => -> { @client.enqueue("errors", 1, request_timeout: "5s") },
      'job 1 is ["q", 1], must be a Hash such as { queue: "mail", payload: 1 }' => -> { @client.enqueue_many([{ queue: "errors" }, ["q", 1]]) },
      '"17" is no job: pass jobs that were claimed' => -> { @client.ack_many(["17"]) },
      "socket: 5 must be a path" => -> { Qsidecar::Client.new(socket: 5).connect },
      "request_timeout: -1 must be a number of seconds, 0 or more" => -> { Qsidecar::Client.new(request_timeout: -1) }
    }.each { |message, call| equal message, raises(ArgumentError, &call).message }
    raises(ArgumentError) { @client.enqueue("errors", 1, timeout: "soon") }
    raises(ArgumentError) { @client.claim("errors", wait: -1) }
    nan = raises(ArgumentError) { @client.enqueue("errors", Float::NAN) }
    equal ["the payload of a job for errors can't be JSON: NaN not allowed in JSON", nil], [nan.message[/.*not allowed in JSON/], nan.cause]
    equal true, raises(ArgumentError) { @client.enqueue("errors", "\xff") }.message.include?("for bytes use raw: true")
    raises(ArgumentError) { @client.claim("errors", lease: Float::NAN) }
    raises(Qsidecar::NotConnected) { Qsidecar::Client.open(socket: "/nonexistent/s", &:connect) }
    closed = Qsidecar::Client.new(**@options).connect
    closed.close
    raises(Qsidecar::Closed) { closed.request("ping") }
    equal true, @client.request("ping")["ok"]
  end

  # A claim whose thread was interrupted keeps no job claimed.
  def check_interrupted_claim
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

  # The child has its own connection and none of its parent's jobs.
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

  def check_lost_leases
    lost = Queue.new
    Qsidecar::Client.open(**@options, on_lost: ->(job) { lost << job }) do |client|
      id = client.enqueue("lost", 1).id
      job = client.claim("lost", wait: 20).first
      equal [id, false], [job.id, job.lost?]
      equal 1, @client.request("reclaim", queue: "lost", ids: [id])["count"]
      equal job, lost.pop
      equal true, job.lost?
      raises(Qsidecar::LeaseLost) { job.ack }
    end
  end

  # A client that is closed returns its jobs without using up an attempt.
  def check_close
    @client.enqueue("close", 1)
    Qsidecar::Client.open(**@options) { |client| equal 1, client.claim("close", wait: 20).first.attempt }
    equal 1, one("close").tap(&:ack).attempt
  end

  # A client leaves no thread and no descriptor behind.
  def check_threads_and_descriptors_are_released
    before = [Thread.list.size, sockets.size]
    3.times { Qsidecar::Client.open(**@options) { |client| client.request("ping") } }
    equal before, [Thread.list.size, sockets.size]
  end

  # For any bytes, a decoder returns a message or raises Garbage. msgpack reserves memory for as many
  # elements as a list declares. While a process reserves more than the machine has, the kernel
  # refuses its forks, so a child does this.
  def check_decoders_of_any_bytes
    child { decode_any_bytes }
  end

  def decode_any_bytes
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

  # A reply that is not from a sidecar ends the connection, not the client.
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

  # play is a sidecar that sends the given answer to the first request and closes the connection.
  def play(socket, answer)
    socket.gets
    socket.puts('{"id":0,"ok":true,"max_frame":4194304,"max_payload":4177920}')
    id = JSON.parse(socket.gets)["id"]
    socket.puts(answer.sub("%d", id.to_s)) if answer
    socket.gets if answer&.include?("%d") # its bye
  ensure
    socket.close
  end

  # How long calls wait for a sidecar that is down or does not answer.
  def check_request_timeouts
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
      server = UNIXServer.new(path = File.join(dir, "s")) # connections are accepted by the kernel, and no program reads
      Qsidecar::Client.open(socket: path) do |client|
        2.times { raises(Qsidecar::NotConnected) { client.enqueue("q", 1, request_timeout: 0.01) } }
      end
      server.close
    end
    equal [2, 60], [Qsidecar::Client::ENQUEUE_TIME, Qsidecar::Client::REQUEST_TIME]
    %w[2s nan 0 -1].each do |text|
      with_enqueue_timeout(text) { equal true, raises(ArgumentError) { @client.enqueue("q", 1) }.message.include?("QSIDECAR_ENQUEUE_TIMEOUT") }
    end
    with_enqueue_timeout("") { equal 2, @client.send(:enqueue_time) } # as if it was not set
  end

  def with_enqueue_timeout(text)
    before = ENV["QSIDECAR_ENQUEUE_TIMEOUT"]
    ENV["QSIDECAR_ENQUEUE_TIMEOUT"] = text
    yield
  ensure
    ENV["QSIDECAR_ENQUEUE_TIMEOUT"] = before
  end

  # Runs the code of the package's README, except its example and its last block, which
  # TestRubyExample and sql.rb run.
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

  # silently is for programs that print warnings.
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
end

require "qsidecar/testing"
require_relative "suite_next_claim"
require_relative "suite_stalled"
require_relative "suite_behind"
require_relative "suite_worker"
require_relative "suite_schedule"
require_relative "suite_reentrant"
Suite.new.run
