# frozen_string_literal: true

# Ack behind: the worker begins its next job before the settle of the last one is answered.
class Suite
  # A sidecar with JSON lines whose claims always have a job. It leaves the answers to settles to the test.
  class Holding < Deaf
    attr_reader :settles, :requests
    attr_accessor :extra, :ready, :before_claim, :holds

    def initialize(dir)
      super
      @number = 0
      @lock = Mutex.new
      @settles = [] # settles without an answer
      @requests = [] # settles and claims
      @ready = Float::INFINITY # how many jobs are ready
      @extra = {} # further fields of replies to claims
      @holds = false # also settles that claim
      @before_claim = nil # called with this sidecar before a claim is answered
    end

    def serve
      while (line = @socket.gets)
        handle(JSON.parse(line))
      end
    rescue SystemCallError, IOError
      nil # the connection has ended
    end

    def handle(request)
      @requests << request if %w[ack nack claim].include?(request["op"])
      case request["op"]
      when "claim"
        @before_claim&.call(self)
        reply(request, jobs: jobs, **@extra)
      when "ack", "nack"
        return @settles << request unless (request["claim"] && !@holds) || request["snooze"]

        reply(request, jobs: request["claim"] ? jobs : [], **@extra)
      else reply(request, lost: [])
      end
    end

    def jobs
      return [] unless @ready.positive?

      @ready -= 1
      [job]
    end

    def job
      @number += 1
      { id: @number.to_s, queue: "q", lease: "1.#{@number}", attempt: 1, max_attempts: 20, fence: @number }
    end

    def reply(request, **fields)
      @lock.synchronize { @socket.puts(JSON.generate({ ok: true, id: request["id"], **fields })) }
    end

    # die ends the sidecar. No other one starts.
    def die
      @server.close
      File.unlink(@path)
      @socket.shutdown
    end

    def lose(lease)
      @lock.synchronize { @socket.puts(JSON.generate({ event: "lost", leases: [lease] })) }
    end

    def refuse(request, code, **fields)
      reply(request, ok: false, error: { code: code, message: "no", **fields })
    end
  end
  private_constant :Holding

  def check_behind_bound
    behind do |sidecar, _, began, client|
      eventually { sidecar.settles.size == 32 }
      equal %w[claim ack claim ack], sidecar.requests.first(4).map { |request| request["op"] }
      client.call.request("ping")
      equal 32, began.size
      sidecar.reply(sidecar.settles.delete_at(5))
      eventually { began.size == 33 }
    end
  end

  # A job that runs counts as one that is not settled.
  def check_behind_bound_with_running_jobs
    gate = Queue.new
    behind(work: -> { gate.pop }, concurrency: 8) do |sidecar, _, began, client|
      24.times { gate << 1 }
      eventually { sidecar.settles.size == 24 && began.size == 32 }
      gate << 1
      eventually { sidecar.settles.size == 25 }
      client.call.request("ping")
      equal 32, began.size
      sidecar.reply(sidecar.settles.shift)
      eventually { began.size == 33 }
      1000.times { gate << 1 }
    end
  end

  def check_behind_slow_answer
    clock = 0
    gate = Queue.new
    behind(work: -> { gate.pop }, clock: -> { clock }) do |sidecar, _, began, client|
      gate << 1
      eventually { began.size == 2 }
      clock = Qsidecar::Behind::LONGEST
      gate << 1
      eventually { sidecar.settles.size == 2 }
      client.call.request("ping")
      equal 2, began.size
      sidecar.reply(sidecar.settles.shift)
      eventually { began.size == 3 }
      1000.times { gate << 1 }
    end
  end

  # A job whose lease is lost while it waits to begin doesn't begin: another worker can have it.
  def check_behind_lost_before_it_began
    clock = 0
    late = ->(sidecar) { clock = Qsidecar::Behind::LONGEST if sidecar.settles.any? } # the settle of the first job is old then
    behind(clock: -> { clock }, before_claim: late) do |sidecar, lines, began, client, lost|
      eventually { clock.positive? }
      client.call.request("ping")
      sidecar.lose("1.2")
      sidecar.reply(sidecar.settles.shift)
      eventually { began.size > 1 }
      equal %w[1 3], began.first(2)
      eventually { lost.map(&:id) == ["2"] } # another thread reports it
      equal 1, lines.grep(/job 2 of q: its lease was lost; another worker may have it/).size
    end
  end

  def check_behind_refused_and_lost
    behind do |sidecar, lines, _, _, lost|
      eventually { sidecar.settles.size == 32 }
      refused, gone, twice, later = sidecar.settles.shift(4)
      sidecar.refuse(gone, "lease_lost")
      eventually { lost.size == 1 }
      equal ["2", true], [lost[0].id, lost[0].lost?]
      sidecar.refuse(refused, "bad_request")
      sidecar.refuse(twice, "bad_request")
      nacks = -> { sidecar.settles.select { |request| request["op"] == "nack" } }
      eventually { nacks.call.size == 2 }
      sidecar.refuse(later, "internal")
      eventually { sidecar.settles.any? { |request| request["lease"] == later["lease"] } }
      nacks.call.each do |nack|
        sidecar.settles.delete(nack)
        nack["lease"] == twice["lease"] ? sidecar.refuse(nack, "bad_request") : sidecar.reply(nack)
      end
      eventually { lines.grep(/job 3 of q: could not be settled/).size == 1 }
      equal 1, lines.grep(/job 2 of q: its lease was lost/).size
      equal [1, 1], [1, 3].map { |n| lines.grep(/job #{n} of q: its outcome was refused/).size }
      equal 1, lines.grep(/job 4 of q: could not be settled yet/).size
    end
  end

  # A settle that is sent again and finds its lease lost was done, or is delivered again.
  def check_behind_reconnect
    behind do |sidecar, lines, began, _, lost, serve|
      eventually { sidecar.settles.size == 32 }
      leases = sidecar.settles.map { |request| request["lease"] }.sort
      sidecar.settles.clear
      sidecar.hang_up
      serve.call
      eventually { sidecar.settles.size == 32 }
      equal leases, sidecar.settles.map { |request| request["lease"] }.sort
      sidecar.refuse(sidecar.settles.shift, "lease_lost")
      eventually { began.size == 33 }
      eventually { lines.grep(/INFO.*job \d+ of q/).size == 1 }
      equal [], lost
    end
  end

  # A settle that the database could not carry out is sent again, and holds other jobs back until then.
  def check_behind_unavailable
    behind do |sidecar, _, began, client|
      eventually { sidecar.settles.size == 32 }
      first = sidecar.settles.shift
      sidecar.refuse(first, "unavailable", retry_ms: 0)
      eventually { sidecar.settles.last["lease"] == first["lease"] }
      client.call.request("ping")
      equal 32, began.size
    end
  end

  # If the sidecar asks for one request, or with ack: :sync, the worker waits for the reply to each
  # settle.
  def check_behind_join_and_sync
    { join: {}, sync: { ack: :sync } }.each do |name, how|
      behind(extra: name == :join ? { join: true } : {}, **how) do |sidecar, _, began, _|
        eventually { began.size > 3 }
        equal [true] * 3, sidecar.requests[1, 3].map { |request| request.key?("claim") }
      end
    end
    raises(ArgumentError) { Qsidecar::Worker.new(logger: silent).run(ack: :later) }
  end

  # If the sidecar was killed and does not come back, a worker that drains or stops ends a minute after its oldest
  # settle without an answer. The same holds for a database that stays away.
  def check_behind_ends_without_a_sidecar
    [{ drain: true }, {}].product([:behind, :sync], [true, false]).each do |how, ack, killed|
      clock = checks = 0
      counted = lambda do
        checks += 1
        clock
      end
      behind(clock: counted, ready: 1, holds: true, ack: ack, **how) do |sidecar, lines, _, _, _, _, run, worker|
        what = [how, ack, killed]
        eventually { sidecar.settles.size == 1 }
        clock = 30
        worker.stop unless how[:drain]
        if killed
          sidecar.die
        else
          refusing = Thread.new do
            eventually do
              sidecar.refuse(sidecar.settles.shift, "unavailable", retry_ms: 5) until sidecar.settles.empty?
              !run.alive?
            end
          rescue SystemCallError
            nil # the worker has closed the connection
          end
        end
        clock = 59.999
        before = checks
        eventually { checks > before + 1 }
        equal true, run.alive?, what
        clock = 60
        failed = raises(Qsidecar::Unavailable) { run.value }
        equal 0, failed.message =~ /no answer for a minute to the settles of finished jobs \(1\): the sidecar or its database is unavailable; check/, what
        equal 5, Qsidecar::Worker.exit_status(failed)
        equal 1, lines.grep(/ERROR job 1 of q: could not be settled: no answer from the sidecar/).size, what
        refusing&.join
      end
    end
  end

  def check_behind_drain_ends_if_its_sidecar_dies_during_a_job
    %i[behind sync].each do |ack|
      clock = 0
      gate = Queue.new
      behind(work: -> { gate.pop }, clock: -> { clock }, ready: 1, ack: ack, drain: true) do |sidecar, lines, began, client, _, _, run|
        eventually { began.size == 1 }
        sidecar.die
        gate << 1
        session = client.call.session
        eventually { session.instance_variable_get(:@queued).any?(&:settle?) }
        clock = 60
        raises(Qsidecar::Unavailable) { run.value }
        equal 1, lines.grep(/ERROR job 1 of q: could not be settled: no answer from the sidecar/).size, ack
      end
    end
  end

  # A worker that neither drains nor stops waits. When it is stopped, its settle is too old already.
  def check_behind_waits_for_its_sidecar
    clock = 0
    behind(clock: -> { clock }, ready: 1, holds: true) do |sidecar, _, _, _, _, _, run, worker|
      eventually { sidecar.settles.size == 1 }
      sidecar.die
      clock = 3600
      equal true, run.alive?
      worker.stop
      raises(Qsidecar::Unavailable) { run.value }
    end
  end

  # An unanswered ack can store a job, so that an empty claim before its answer doesn't end the worker.
  def check_behind_drain_waits_for_the_answers
    behind(ready: 1, drain: true) do |sidecar, _, began, client|
      eventually { sidecar.settles.size == 1 && sidecar.requests.count { |request| request["op"] == "claim" } > 2 }
      client.call.request("ping")
      sidecar.ready = 1
      sidecar.reply(sidecar.settles.shift)
      eventually { began.size == 2 }
    end
  end

  def check_behind_drain_sees_follow_ups
    did = []
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("behind-chain") do |job|
      did << job.payload
      @client.enqueue("behind-chain", job.payload - 1) if job.payload.positive?
    end
    @client.enqueue("behind-chain", 50)
    worker.run(concurrency: 4, drain: true)
    equal (0..50).to_a.reverse, did
  end

  def check_behind_nothing_grows
    jobs = Integer(ENV.fetch("QSIDECAR_BEHIND_JOBS", "500"))
    (jobs / 500).times { @client.enqueue_many(Array.new(500) { { queue: "behind-many", payload: 1 } }) }
    seen = Queue.new
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job("behind-many") { seen << Thread.list.size }
    before = Thread.list.size
    worker.run(concurrency: 8, drain: true)
    equal jobs, seen.size
    most = Array.new(jobs) { seen.pop }.max
    equal true, most <= before + 8 + 3, "#{most} threads, #{before} before" # the jobs, the settles, the reader and the drain
  end

  private

  def eventually
    until yield
      Thread.pass
      IO.select(nil, nil, nil, 0.005)
    end
  end

  # behind runs a worker of one thread, unless how has another number, on such a sidecar until the block returns, and then answers all
  # settles until the worker has ended.
  def behind(work: -> {}, clock: -> { 0 }, extra: {}, ready: Float::INFINITY, before_claim: nil, holds: false, **how)
    Dir.mktmpdir do |dir|
      sidecar = Holding.new(dir)
      sidecar.extra = extra
      sidecar.before_claim = before_claim
      Qsidecar::Behind.clock = clock # stands still, so that a slow machine doesn't reach LONGEST
      sidecar.ready = ready
      sidecar.holds = holds
      lines, began, lost, served = [], [], [], nil
      logger = Logger.new(StringIO.new, formatter: ->(level, _, _, text) { lines << "#{level} #{text}"; "" })
      worker = Qsidecar::Worker.new(logger: logger, socket: sidecar.path, codec: :json, on_lost: ->(job) { lost << job })
      worker.job("q") do |job|
        began << job.id
        work.call
      end
      run = Thread.new { worker.run(concurrency: 1, **how) }
      run.report_on_exception = false
      serve = lambda do
        sidecar.accept
        served = Thread.new { sidecar.serve }
      end
      serve.call
      yield sidecar, lines, began, -> { worker.instance_variable_get(:@client) }, lost, serve, run, worker
      next unless run.alive?

      worker.stop
      eventually do
        sidecar.reply(sidecar.settles.shift) until sidecar.settles.empty?
        !run.alive?
      end
      run.value
    ensure
      Qsidecar::Behind.clock = nil
      served&.kill
      sidecar.close
    end
  end
end
