# frozen_string_literal: true

# How long a call takes if the sidecar does not read. The call's limit also applies to its write.
class Suite
  # More than the buffers of a socket.
  LARGE = ("x" * (3 << 20)).freeze
  private_constant :LARGE

  # A sidecar with JSON lines that reads only when the test lets it.
  class Deaf
    attr_reader :path

    def initialize(dir)
      @server = UNIXServer.new(@path = File.join(dir, "s"))
      @socket = nil # Ruby 2.7 warns about a variable that was never set
    end

    # accept accepts the next connection and answers its hello.
    def accept
      @socket&.close
      @socket = @server.accept
      answer("hello", max_frame: 64 << 20, max_payload: 60 << 20)
    end

    # expect reads the next request.
    def expect(op)
      request = JSON.parse(@socket.gets)
      raise "#{request.inspect[0, 200]} came, want #{op}" unless request["op"] == op

      request
    end

    def answer(op, **fields)
      @socket.puts(JSON.generate({ ok: true, id: expect(op)["id"], **fields }))
    end

    # acknowledge answers all requests until the connection ends, and returns them.
    def acknowledge
      requests = []
      while (line = @socket.gets)
        requests << JSON.parse(line)
        @socket.puts(JSON.generate({ ok: true, id: requests.last["id"], lost: [] }))
      end
      requests
    rescue SystemCallError
      requests # the client closed the connection first
    end

    # hang_up closes the connection.
    def hang_up
      @socket.close
    end

    # serve answers all requests.
    def serve
      while (line = @socket.gets)
        @socket.puts(JSON.generate({ ok: true, id: JSON.parse(line)["id"], jobs: [] }))
      end
    end

    def close
      [@socket, @server].compact.each(&:close)
    end
  end
  private_constant :Deaf

  # deaf yields such a sidecar and a client that is connected to it.
  def deaf
    Dir.mktmpdir do |dir|
      sidecar = Deaf.new(dir)
      client = Qsidecar::Client.new(socket: sidecar.path, codec: :json)
      call = Thread.new { client.connect }
      sidecar.accept
      call.value
      yield sidecar, client
    ensure
      sidecar.close
      client.close(0.01)
    end
  end

  # hold lets the client claim a job.
  def hold(sidecar, client)
    call = Thread.new { client.claim("q") }
    sidecar.answer("claim", jobs: [{ id: "7", queue: "q", lease: "1.a", attempt: 1, max_attempts: 20, fence: 1 }])
    call.value.first
  end

  def works(sidecar, client)
    call = Thread.new { client.request("ping") }
    yield if block_given?
    sidecar.answer("ping")
    equal true, call.value["ok"]
  end

  # Half of a frame ends the connection of a client that holds nothing. The next request uses
  # another connection.
  def check_stalled_enqueue
    deaf do |sidecar, client|
      [nil, "k"].each do |key|
        raises(Qsidecar::TimedOut) { client.enqueue("q", LARGE, raw: true, key: key, request_timeout: 0.01) }
        works(sidecar, client) { sidecar.accept }
      end
    end
  end

  # A client that closes its connection loses its jobs and uses up an attempt. After half of a
  # frame, the client must not close it.
  def check_stalled_enqueue_keeps_claimed_jobs
    deaf do |sidecar, client|
      job = hold(sidecar, client)
      raises(Qsidecar::UnknownOutcome) { client.enqueue("q", LARGE, raw: true, request_timeout: 0.01) }
      late = raises(Qsidecar::TimedOut) { client.enqueue("q", 1, request_timeout: 0.01) } # it waits for the write lock
      raise late.message unless late.message.match?(/\Athe sidecar on .*\/s doesn't read: enqueue was not sent in time\z/)

      equal LARGE, sidecar.expect("enqueue")["payload"]
      works(sidecar, client)
      call = Thread.new { job.ack }
      sidecar.answer("ack")
      call.value
    end
  end

  # Settles, claims and renewals have the client's limit.
  def check_stalled_settles
    deaf do |sidecar, client|
      job = hold(sidecar, client)
      raises(Qsidecar::UnknownOutcome) { client.enqueue("q", LARGE, raw: true, request_timeout: 0.01) }
      client.instance_variable_set(:@request_timeout, 0.01)
      [-> { job.ack }, -> { job.nack }, -> { job.extend }, -> { client.claim("q") }, -> { client.claim("q", wait: 0.01) }].each do |call|
        raises(Qsidecar::TimedOut, &call)
      end
      sidecar.expect("enqueue")
      client.instance_variable_set(:@request_timeout, nil)
      works(sidecar, client) # none of them arrived
      client.instance_variable_set(:@request_timeout, 0.01)
      raises(Qsidecar::UnknownOutcome) { job.ack(result: LARGE) }
      equal false, job.settled?
    end
  end

  # A client that is closed does not wait for a sidecar that does not read.
  def check_stalled_close
    deaf do |sidecar, client|
      hold(sidecar, client)
      raises(Qsidecar::UnknownOutcome) { client.enqueue("q", LARGE, raw: true, request_timeout: 0.01) }
      client.close(0.01)
    end
  end

  # A client that is closed while the sidecar restarts returns its jobs. A bye on the new connection
  # returns only the jobs that are bound to it.
  def check_close_during_a_restart
    deaf do |sidecar, client|
      hold(sidecar, client)
      sidecar.hang_up
      call = Thread.new { client.close(60) }
      sidecar.accept
      requests = sidecar.acknowledge
      call.join
      equal true, requests.any? { |request| request["op"] == "nack" && request["snooze"] && request["leases"] == ["1.a"] }, requests.inspect
    end
  end

  # A thread that is interrupted in the middle of a frame leaves no half of it behind.
  def check_stalled_interrupt
    deaf do |sidecar, client|
      thread = Thread.new { client.enqueue("q", LARGE, raw: true, request_timeout: 60) }
      Thread.pass until thread.stop?
      thread.kill.join
      works(sidecar, client) { sidecar.accept }
    end
  end

  # What several threads send while another one writes goes into one write.
  def check_stalled_threads_share_a_write
    deaf do |sidecar, client|
      link = client.send(:session).instance_variable_get(:@link)
      first, proceed, sizes = Queue.new, Queue.new, []
      link.define_singleton_method(:take) do |own|
        batch = super(own)
        next batch if batch.empty?

        sizes << batch.size
        (first << true) && proceed.pop if sizes.size == 1
        batch
      end
      calls = [Thread.new { client.request("ping") }]
      first.pop
      calls += Array.new(20) { Thread.new { client.request("ping") } }
      Thread.pass until link.instance_variable_get(:@pending).size == 20
      proceed << true
      calls.each { sidecar.answer("ping") }
      calls.each { |call| equal true, call.value["ok"] }
      equal [1, 20], sizes, "the number of requests in each write"
    end
  end

  # The limit also applies to work that another thread does for the call: the first connection.
  def check_stalled_connect
    Dir.mktmpdir do |dir|
      server = UNIXServer.new(path = File.join(dir, "s"))
      client = Qsidecar::Client.new(socket: path)
      first = Thread.new { client.claim("q") rescue nil } # waits for the reply to its hello
      Thread.pass until first.stop?
      late = raises(Qsidecar::TimedOut) { client.enqueue("q", 1, request_timeout: 0.01) }
      raise late.message unless late.message == "no sidecar has answered on #{path} yet: nothing was sent"

      first.kill.join
      server.listen(0)
      waiting = Array.new(2) { Socket.new(:UNIX, :STREAM) }
      waiting.each { |s| s.connect_nonblock(Socket.sockaddr_un(path)) rescue nil } # as many as a stopped sidecar accepts
      raises(Qsidecar::NotConnected) { Qsidecar::Client.open(socket: path) { |c| c.enqueue("q", 1, request_timeout: 0.01) } }
    ensure
      [server, *waiting].compact.each(&:close)
    end
  end
end
