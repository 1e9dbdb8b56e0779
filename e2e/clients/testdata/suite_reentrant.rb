# frozen_string_literal: true

# Calls from where the program has no control: signal handlers, finalizers, loggers, at_exit. None
# hangs: each is carried out, or raises Reentrant at once.
class Suite
  LIBRARY = File.join(File.dirname($LOADED_FEATURES.find { |file| file.end_with?("/qsidecar.rb") }), "qsidecar", "")

  # A finalizer interrupts a call between any two lines of the library.
  def check_reentrant_everywhere
    job = nil
    {
      "enqueue" => [-> {}, -> { @client.enqueue("outer", 1, request_timeout: 1e6) }],
      "ack" => [-> { @client.enqueue("outer", 1) && job = one("outer") }, -> { job.ack }],
      "first" => [-> { @client.close && nil; @client = Qsidecar::Client.new(**@options) }, -> { @client.enqueue("outer", 1) }]
    }.each do |name, (prepare, outer)|
      refused = 0
      at = 0
      lines = 1
      while (at += 1) <= lines
        prepare.call
        result = nil
        lines = interrupted(at, outer) { result = @client.enqueue("inner", 1, request_timeout: 1e6) rescue $! }
        refused += 1 if result.is_a?(Qsidecar::Reentrant)
        raise result if result.is_a?(Exception) && !result.is_a?(Qsidecar::Reentrant)
      end
      raise "#{name}: none of #{lines} lines has a lock" if refused.zero?
    end
  end

  # interrupted runs outer, and the block before its line `at` of the library. It returns how many
  # lines outer has.
  def interrupted(at, outer)
    lines = 0
    mine = Thread.current
    trace = TracePoint.new(:line) do |point|
      yield if Thread.current.equal?(mine) && point.path.start_with?(LIBRARY) && (lines += 1) == at
    end
    trace.enable(&outer)
    lines
  end

  def check_reentrant_trap
    results = Queue.new
    old = trap("USR1") do
      results << [-> { @client.enqueue("trap", 1) }, -> { @client.stats }, -> { @client.stop_claiming }].map { |call| call.call rescue $! }
    end
    [-> {}, -> { @client.request("ping") }].each do |before|
      before.call
      Process.kill("USR1", Process.pid)
      equal [Qsidecar::Reentrant] * 3, results.pop.map(&:class)
    end
    trap("USR1") { Thread.new { results << @client.enqueue("trap", 1) } }
    Process.kill("USR1", Process.pid)
    results.pop
    one("trap").ack
    closing = Qsidecar::Client.new(**@options).connect
    trap("USR1") { results << closing.close }
    Process.kill("USR1", Process.pid)
    equal nil, results.pop
    Thread.pass until (closing.request("ping") rescue $!).is_a?(Qsidecar::Closed)
  ensure
    trap("USR1", old || "DEFAULT")
  end

  # A finalizer runs in the thread that reads, which would wait for its own reply.
  def check_reentrant_reader
    @client.connect
    results = []
    interrupt = ->(client) { results << (client.enqueue("reader", 1) rescue $!) }
    client = @client
    @client.session.define_singleton_method(:handle) do |link, message|
      interrupt.call(client)
      super(link, message)
    end
    @client.request("ping")
    equal [Qsidecar::Reentrant], results.map(&:class).uniq
  ensure
    @client.session.singleton_class.remove_method(:handle)
  end

  def check_reentrant_at_exit
    @client.close # which the child inherits
    pid = fork do
      client = Qsidecar::Client.new(**@options).connect
      $stderr = StringIO.new
      at_exit { client.enqueue("exit", 1, request_timeout: 1e6) }
      ObjectSpace.define_finalizer(Object.new, proc { client.enqueue("exit", 2, request_timeout: 1e6) })
      exit
    end
    Process.wait(pid)
    @client = Qsidecar::Client.new(**@options)
    equal 1, one("exit").tap(&:ack).payload
  end
end
