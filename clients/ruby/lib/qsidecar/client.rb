# frozen_string_literal: true

require "socket"

module Qsidecar
  # What an enqueue answers: the job's id, whether its key was known already, and if so
  # the first job's state.
  Enqueued = Struct.new(:id, :duplicate, :state)

  # A client of the sidecar of this host: one connection, which comes back when it
  # breaks. It may be used by any number of threads, and after a fork by the child, which
  # gets a connection of its own. It connects at its first call.
  #
  #   Qsidecar::Client.open { |client| client.enqueue("mail", { "to" => "ada" }) }
  #
  # Spans of time are in seconds, Floats allowed.
  class Client
    SETTLES = %w[ack nack extend].freeze
    private_constant :SETTLES

    # How long a call may take where nothing else is said, in seconds.
    ENQUEUE_TIME = 2
    REQUEST_TIME = 60

    # on_outage is the Worker's: called with a message as the sidecar is away, and with nil as it is back.
    attr_writer :on_outage

    class << self
      # inline takes what is enqueued in place of the sidecar: Testing sets it.
      attr_accessor :inline
    end

    # open makes a client, and closes it after the block.
    def self.open(**options)
      client = new(**options)
      begin
        yield client
      ensure
        client.close
      end
    end

    # socket:      its path; else QSIDECAR_SOCKET, $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock,
    #              /run/qsidecar/qsidecar.sock.
    # worker:      a name for people, kept with what is claimed.
    # codec:       :json or :msgpack; nil: msgpack where that gem is installed (on Ruby 2.7: 1.5 or newer).
    # request_timeout: how long a call may take in all, a claim beyond its wait. As long a settle
    #              is tried that the sidecar cannot carry out just now. nil: a minute, and for an
    #              enqueue, as a user may wait for its answer, QSIDECAR_ENQUEUE_TIMEOUT seconds, else 2 s.
    # on_lost:     called with each job whose lease was lost, in a thread of its own.
    # on_draining: called when the sidecar is about to exit.
    def initialize(socket: nil, worker: nil, codec: nil, request_timeout: nil, on_lost: nil, on_draining: nil)
      @options = {
        sockets: Link.sockets(socket), codec: Codec.choose(codec),
        worker: Codec.text(worker || "#{Socket.gethostname}:#{Process.pid}").byteslice(0, 128).scrub(""),
        tell: ->(what, *more) { { lost: on_lost, draining: on_draining }.fetch(what) { @on_outage }&.call(*more) }
      }
      @request_timeout = request_timeout
      @on_outage = nil
      @lock = Mutex.new # guards the two below
      @pid = nil
      @session = nil
      session
    end

    # connect connects now, where there was no call yet. Raises NotConnected.
    def connect
      session.connect
      self
    end

    # enqueue stores one job, durably. The payload is written as JSON; with raw: true it
    # is a String, and its bytes are the payload. delay in seconds or run_at (a Time), key
    # makes it safe to be sent twice, headers is a Hash of Strings, timeout (seconds)
    # limits one run. Gives an Enqueued. Raises UnknownOutcome only without a key.
    # request_timeout is the client's for this call.
    def enqueue(queue, payload, raw: false, priority: nil, delay: nil, run_at: nil, key: nil, headers: nil,
                max_attempts: nil, timeout: nil, request_timeout: nil)
      job = Fields.job(queue: queue, payload: payload, raw: raw, priority: priority, delay: delay, run_at: run_at, key: key,
                       headers: headers, max_attempts: max_attempts, timeout: timeout)
      return Client.inline.enqueue([job]).first if Client.inline

      Client.enqueued(carry_out("enqueue", job, patience: request_timeout)["job"])
    end

    # enqueue_many stores 1 to 1000 jobs, all or none. Each is a Hash of what enqueue
    # takes: { queue: "mail", payload: {…}, key: "…" }. Gives a list of Enqueued.
    def enqueue_many(jobs, request_timeout: nil)
      jobs = jobs.map { |job| Fields.job(**job) }
      return Client.inline.enqueue(jobs) if Client.inline

      carry_out("enqueue", { jobs: jobs }, patience: request_timeout)["jobs"].map { |job| Client.enqueued(job) }
    end

    # claim takes up to max jobs of the queues, in order of preference, and waits for the
    # first one for so many seconds. lease: so many seconds, for leases that outlive the
    # connection (timed leases); nil: they are this client's until they are settled.
    # Gives a list of Jobs, empty where the wait ended.
    def claim(*queues, max: 1, wait: 0, lease: nil)
      queues = queues.flatten.map { |q| Codec.text(q) }
      fields = queues.size == 1 ? { queue: queues.first } : { queues: queues }
      fields[:max] = max
      fields[:lease_ms] = Fields.ms(lease) if lease
      carry_out("claim", fields, wait: wait)["jobs"]
    end

    # ack, nack and extend_lease are Job#ack, Job#nack and Job#extend.
    def ack(job, result: nil, enqueue: nil)
      fields = { lease: job.lease }
      fields[:result] = result.b if result
      fields[:enqueue] = enqueue.map { |more| Fields.job(**more) } if enqueue && !enqueue.empty?
      carry_out("ack", fields)["enqueued"]&.map { |stored| Client.enqueued(stored) }
    end

    def nack(job, **how)
      carry_out("nack", { lease: job.lease, **Fields.nack(**how) })
      nil
    end

    def extend_lease(job, seconds = nil)
      fields = { lease: job.lease }
      fields[:lease_ms] = Fields.ms(seconds) if seconds
      carry_out("extend", fields)
      nil
    end

    # ack_many settles 1 to 1000 jobs as done, in one request, and gives those whose lease
    # was lost; the others are settled. Raises SettledOrLost, which names the leases.
    def ack_many(jobs)
      settle_many("ack", jobs, {})
    end

    # nack_many does with 1 to 1000 jobs what Job#nack does, likewise.
    def nack_many(jobs, **how)
      settle_many("nack", jobs, Fields.nack(**how))
    end

    # stats counts the jobs of a queue, or of all: a list of Hashes with Strings, as
    # PROTOCOL.md has them.
    def stats(queue = nil)
      carry_out("stats", queue ? { queue: Codec.text(queue) } : {})["queues"]
    end

    # request is any other op of PROTOCOL.md by its name and fields, and gives its reply.
    def request(op, **fields)
      carry_out(op.to_s, fields)
    end

    # stop_claiming has waiting claims end now, and those to come at once.
    def stop_claiming
      session.stop_claiming
    end

    # close gives back what is held, uncharged, and ends. It takes at most so many seconds.
    def close(patience = 5)
      @lock.synchronize { @session if @pid == Process.pid }&.close(patience)
      nil
    end

    def self.enqueued(reply)
      Enqueued.new(reply["id"], reply["duplicate"] || false, reply["state"])
    end

    private

    # session is this process's.
    def session
      return @session if @pid == Process.pid

      @lock.synchronize do
        next if @pid == Process.pid

        @session&.abandon
        @session = Session.new(self, **@options)
        @pid = Process.pid
      end
      @session
    end

    # carry_out carries a request out, and again where the sidecar's answer is that it
    # cannot just now and that is the client's to wait for.
    def carry_out(op, fields, wait: nil, patience: nil)
      at = session
      began = Link.now
      patience ||= @request_timeout || (op == "enqueue" ? enqueue_time : REQUEST_TIME)
      how = { ends: began + patience + (wait || 0), wait_ends: wait && began + wait }
      return insist(at, op, fields, how) unless SETTLES.include?(op)

      at.settling(fields[:leases] || [fields[:lease]]) { insist(at, op, fields, how) }
    end

    def enqueue_time
      text = ENV["QSIDECAR_ENQUEUE_TIMEOUT"].to_s
      return ENQUEUE_TIME if text.empty?

      seconds = Float(text, exception: false)
      return seconds if seconds&.between?(0.001, 1e9)

      raise ArgumentError, "QSIDECAR_ENQUEUE_TIMEOUT=#{text} is no number of seconds"
    end

    def insist(at, op, fields, how)
      tries = 0
      twice = false
      begin
        at.call(op, fields, twice: twice, **how)
      rescue UnknownOutcome, Unavailable, Busy, Draining => e
        pause = e.retry_ms ? e.retry_ms / 1000.0 : Session.backoff(tries += 1)
        raise unless passing?(op, fields, e, how[:wait_ends]) && left(op, how) > pause

        twice ||= e.is_a?(UnknownOutcome)
        at.rest(pause)
        retry
      end
    end

    # passing? is whether the same request may do better in a moment, and whether that
    # is the client's to try. An enqueue that could not be done is told: its caller may
    # have better things to do than to wait for a database.
    def passing?(op, fields, error, wait_ends)
      return Call.new(op, fields).repeatable? if error.is_a?(UnknownOutcome)

      SETTLES.include?(op) || (op == "claim" && wait_ends)
    end

    # left is how long the caller's patience, or a claim's own wait, goes on.
    def left(op, how)
      ends = op == "claim" ? how[:wait_ends] : how[:ends]
      ends ? ends - Link.now : Float::INFINITY
    end

    def settle_many(op, jobs, fields)
      lost = carry_out(op, { leases: jobs.map(&:lease), **fields })["lost"]
      gone, done = lost.empty? ? [[], jobs] : jobs.partition { |job| lost.include?(job.lease) }
      done.each(&:settled!)
      gone.each(&:lost!)
    end
  end

  # The maps of the wire, made from what callers give.
  module Fields
    module_function

    # ms rounds up: a short wait stays a wait.
    def ms(seconds)
      (seconds * 1000).ceil
    end

    def job(queue:, payload: nil, raw: false, priority: nil, delay: nil, run_at: nil, key: nil, headers: nil,
            max_attempts: nil, timeout: nil)
      out = { queue: Codec.text(queue), payload: bytes(payload, raw) }
      out[:priority] = priority if priority
      out[:delay_ms] = ms(delay) if delay
      out[:run_at] = (run_at.to_r * 1000).ceil if run_at
      out[:key] = Codec.text(key) if key
      out[:headers] = headers.map { |k, v| [Codec.text(k), Codec.text(v)] }.to_h if headers
      out[:max_attempts] = max_attempts if max_attempts
      out[:timeout_ms] = ms(timeout) if timeout
      out
    end

    def bytes(payload, raw)
      raise ArgumentError, "raw: true takes a String as the payload, not #{payload.class}" if raw && !payload.is_a?(String)

      (raw ? payload : JSON.generate(payload)).b
    end

    def nack(error: nil, delay: nil, dead: false, charge: true)
      out = {}
      out[:error] = told(error) if error
      out[:delay_ms] = ms(delay) if delay
      out[:dead] = true if dead
      out[:charge] = false unless charge
      out
    end

    # told is text for people: what is not UTF-8 in it must not keep a job from being settled.
    def told(error)
      s = error.to_s
      s = s.encoding == Encoding::BINARY ? s.dup.force_encoding(Encoding::UTF_8) : s.encode(Encoding::UTF_8, invalid: :replace, undef: :replace)
      s.scrub.delete("\0").byteslice(0, 4096).scrub("")
    end
  end
end
