# frozen_string_literal: true

require "socket"

module Qsidecar
  # The result of an enqueue: the job's id, whether its key was already known, and if so the state
  # of the first job.
  Enqueued = Struct.new(:id, :duplicate, :state, :outcome)

  # A client of the sidecar of this host: one connection, which reconnects if it breaks. Any number
  # of threads can use it. After a fork the child can use it too and gets its own connection. It
  # connects at its first call.
  #
  #   Qsidecar::Client.open { |client| client.enqueue("mail", { "to" => "ada" }) }
  #
  # Time spans are in seconds and can be Floats.
  class Client
    include Waiting

    SETTLES = %w[ack nack extend].freeze
    private_constant :SETTLES

    # Default time limits of a call, in seconds.
    ENQUEUE_TIME = 2
    REQUEST_TIME = 60

    # on_outage is set by a Worker. It is called with a message if the sidecar is down, and with nil
    # when it is up again.
    attr_writer :on_outage

    class << self
      # inline replaces the sidecar in tests: Testing sets it.
      attr_accessor :inline
    end

    # open creates a client and closes it after the block.
    def self.open(**options)
      client = new(**options)
      begin
        yield client
      ensure
        client.close
      end
    end

    # socket:      the path of the socket; nil: QSIDECAR_SOCKET, or else the first of
    #              $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock, $XDG_STATE_HOME/qsidecar/qsidecar.sock
    #              (default: ~/.local/state; not for root) and /run/qsidecar/qsidecar.sock on which
    #              a sidecar listens. Root skips a runtime directory of another user.
    # worker:      a name for people, which is stored with claims.
    # codec:       :json or :msgpack; nil: msgpack if that gem is installed (on Ruby 2.7: 1.5 or newer).
    # request_timeout: the time limit of a call, not counting a claim's own wait. A settle that the sidecar
    #              can't carry out is repeated for that long. nil: one minute, and for an enqueue, because
    #              a user may wait for it, QSIDECAR_ENQUEUE_TIMEOUT seconds, or else 2 s.
    # on_lost:     called with each job whose lease was lost, in its own thread.
    # on_draining: called if the sidecar is about to exit.
    def initialize(socket: nil, worker: nil, codec: nil, request_timeout: nil, on_lost: nil, on_draining: nil)
      @options = {
        sockets: Connection.sockets(socket), codec: Codec.choose(codec),
        worker: Codec.text(worker || "#{Socket.gethostname}:#{Process.pid}").byteslice(0, 128).scrub(""),
        notify: ->(what, *more) { { lost: on_lost, draining: on_draining }.fetch(what) { @on_outage }&.call(*more) }
      }
      @request_timeout = Fields.time_limit(request_timeout)
      @on_outage = nil
      @lock = Mutex.new # guards the two fields below
      @pid = nil
      @session = nil
      session
    end

    # connect connects now if there was no call yet. It raises NotConnected.
    def connect
      callable_session("connect").connect
      self
    end

    # enqueue stores one job and returns an Enqueued when it is durable. The payload is stored as
    # JSON. With raw: true it is a String whose bytes are stored. delay is in seconds, run_at is a
    # Time. key makes the enqueue safe to repeat. headers is a Hash of Strings. timeout (seconds)
    # limits one run. Jobs of the queue with the same group run one at a time and in order, or as many
    # at once as the queue's group_limit allows. batch is the id of an open batch. No run starts at start_before (a Time) or later, or
    # start_within seconds after the job is ready first. on_expiry is what becomes of a job that didn't
    # start in time: :dead or :delete. The done job is kept for retain seconds at least, so that others
    # find its result. With key_until: :start the key returns the job only until a worker has it, so that a repeated enqueue can store a second
    # job. on_conflict is what becomes of the job if the key returns another one: :keep (it isn't stored),
    # :replace (the other one gets its payload, headers and time; while that runs, it waits for the end)
    # or :debounce (the same, and the other one waits for delay again, but at most debounce_max seconds
    # after it was stored). The outcome of the Enqueued is then "replaced" or "pending". It raises
    # UnknownOutcome only without a key. request_timeout is the time limit of this call.
    def enqueue(queue, payload, raw: false, priority: nil, delay: nil, run_at: nil, key: nil, headers: nil,
                max_attempts: nil, timeout: nil, group: nil, batch: nil, start_before: nil, start_within: nil, on_expiry: nil,
                retain: nil, key_until: nil, on_conflict: nil, debounce_max: nil, request_timeout: nil)
      job = Fields.job(queue: queue, payload: payload, raw: raw, priority: priority, delay: delay, run_at: run_at, key: key,
                       headers: headers, max_attempts: max_attempts, timeout: timeout, group: group, batch: batch,
                       start_before: start_before, start_within: start_within, on_expiry: on_expiry, retain: retain,
                       key_until: key_until, on_conflict: on_conflict, debounce_max: debounce_max)
      return Client.inline.enqueue([job]).first if Client.inline

      Client.enqueued(send_request("enqueue", job, limit: request_timeout)["job"])
    end

    # enqueue_many stores 1 to 1000 jobs, all or none. Each is a Hash of enqueue's arguments: {
    # queue: "mail", payload: {…}, key: "…" }. It returns a list of Enqueued.
    def enqueue_many(jobs, request_timeout: nil)
      jobs = Fields.jobs(jobs)
      return Client.inline.enqueue(jobs) if Client.inline

      send_request("enqueue", { jobs: jobs }, limit: request_timeout)["jobs"].map { |job| Client.enqueued(job) }
    end

    # schedule declares a schedule, which stores a job at each of its times, over all hosts. cron (five
    # fields, or "@daily" and the like, in the time zone tz) or every (seconds) are its times: see
    # PROTOCOL.md. payload, raw, priority and headers are those of the jobs. splay is in seconds. missed is :one,
    # :all or :skip, and overlap :allow or :skip. It returns "created", "updated", "unchanged", or
    # "ignored" if the database has a higher version. A call with the same values changes nothing, so each
    # start of a program can make it.
    def schedule(name, cron = nil, **definition)
      send_request("schedule", Fields.schedule(name, cron, **definition))["declared"]["outcome"]
    end

    # batch opens a batch of jobs. When they have ended, the callback is stored, exactly once over all hosts:
    #
    #   client.batch(on_success: ["reports", { day: 7 }]) { |batch| batch.enqueue("thumbnails", { image: 17 }) }
    #
    # The callback is a queue and a payload, or a Hash of enqueue's arguments: on_success is stored when all
    # jobs are done, on_finish when all have ended. The end of the block closes the batch. An exception in it
    # leaves the batch open. key: a second batch of the callback's queue with it is this one. of: the id of
    # the batch of which the callback is a job. It returns a Batch.
    def batch(on_success: nil, on_finish: nil, key: nil, of: nil)
      fields = Fields.batch(on_success, on_finish, key, of)
      batch = Batch.new(self, fields[:queue], send_request("open_batch", fields)["batch"]["id"])
      if block_given?
        yield batch
        batch.close
      end
      batch
    end

    # claim claims up to max jobs of the queues, and waits up to wait seconds for the first one.
    # order: :strict claims from a queue only if those before it are empty. With :rotate the queues
    # take turns. weights, with :rotate: how many turns a queue has where the others have one, as
    # { "mail" => 3 }. lease is the length of timed leases, which outlive the connection.
    # nil: this client holds the jobs until they are settled. It returns a list of Jobs, empty if
    # none became ready.
    def claim(*queues, max: 1, wait: 0, lease: nil, order: :strict, weights: nil)
      queues = queues.flatten.map { |q| Codec.text(q) }
      fields = queues.size == 1 ? { queue: queues.first } : { queues: queues }
      fields[:max] = max
      fields.merge!(Fields.order(queues, order, weights))
      fields[:lease_ms] = Fields.ms(:lease, lease) if lease
      Fields.ms(:wait, wait)
      send_request("claim", fields, wait: wait)["jobs"]
    end

    # ack, nack and extend_lease implement Job#ack, Job#nack and Job#extend.
    def ack(job, result: nil, enqueue: nil)
      fields = { lease: job.lease }
      raise ArgumentError, "result: takes a String, not #{result.class}: convert it, such as with to_json" unless result.nil? || result.is_a?(String)

      fields[:result] = result.b if result
      fields[:enqueue] = Fields.jobs(enqueue) if enqueue && !enqueue.empty?
      settle(job, "ack", fields)["enqueued"]&.map { |stored| Client.enqueued(stored) }
    end

    def nack(job, **how)
      settle(job, "nack", { lease: job.lease, **Fields.nack(**how) })
      nil
    end

    def extend_lease(job, seconds = nil)
      fields = { lease: job.lease }
      fields[:lease_ms] = Fields.ms(:lease, seconds) if seconds
      send_request("extend", fields)
      nil
    end

    def report_progress(job, done, total, data) # :nodoc:
      send_request("progress", { lease: job.lease, done: done, total: total, data: data&.b }.compact)
      nil
    end

    # ack_many settles 1 to 1000 jobs as done in one request and returns those whose lease was lost.
    # The others are settled. It raises SettledOrLost with the leases.
    def ack_many(jobs)
      settle_many("ack", jobs, {})
    end

    # nack_many settles 1 to 1000 jobs as failed, like Job#nack. It returns and raises the same as
    # ack_many.
    def nack_many(jobs, **how)
      settle_many("nack", jobs, Fields.nack(**how))
    end

    # stats counts the jobs of a queue, or of all queues. It returns a list of Hashes with String
    # keys, as in PROTOCOL.md.
    def stats(queue = nil)
      send_request("stats", queue ? { queue: Codec.text(queue) } : {})["queues"]
    end

    # cancel ends jobs that wait or run: those with the ids, or the one that has the key. They are dead, or
    # removed with delete. It returns how many are cancelled now; a repeated call returns the same number,
    # except with delete. A running job sees it by Job#cancelled? and Job#checkpoint.
    def cancel(queue, *ids, key: nil, delete: false)
      fields = { queue: Codec.text(queue) }
      fields[:ids] = ids.flatten.map { |id| Codec.text(id) } unless ids.empty?
      fields[:key] = Codec.text(key) if key
      fields[:delete] = true if delete
      send_request("cancel", fields)["count"]
    end

    # limit changes the limits of a queue, on all hosts together. Limits that are nil stay as they are;
    # 0 removes one. max_claimed: how many jobs can be claimed at a time. rate: how many can start in a
    # time, as "100/s", "30/m" or "5/h". burst: how many can start at once after a pause. group_limit:
    # how many jobs of a group can be claimed at a time; 0: one. group_on_failure: :hold (a failed job
    # keeps its slot of the group during its back-off, the default) or :skip. group_ready: how many jobs
    # of a group can be ready at a time, besides the claimed ones, so that groups take turns. none: first
    # remove all limits.
    def limit(queue, max_claimed: nil, rate: nil, burst: nil, group_limit: nil, group_on_failure: nil, group_ready: nil, none: false)
      fields = { max_claimed: max_claimed, rate: rate && Codec.text(rate.to_s), burst: burst, group_limit: group_limit,
                 group_on_failure: group_on_failure && Codec.text(group_on_failure), group_ready: group_ready, none: none || nil }
      send_request("limit", { queue: Codec.text(queue), **fields.compact })
      nil
    end

    # request sends any other op of PROTOCOL.md with its fields and returns the reply.
    def request(op, **fields)
      send_request(op.to_s, fields)
    end

    # stop_claiming ends waiting claims now, and later claims at once.
    def stop_claiming
      callable_session("cancel_claim").stop_claiming
    end

    # close returns the held jobs without using up an attempt, and closes the client, within limit
    # seconds. In a signal handler, and in a finalizer that interrupted this client, it can't wait:
    # then it returns at once, and a thread does this.
    def close(limit = 5)
      return Thread.new { close(limit) } && nil if unable_to_wait?

      @lock.synchronize { @session if @pid == Process.pid }&.close(limit)
      nil
    end

    # inspect is short, because a console prints it. The fields of a client have its whole connection.
    def inspect
      "#<#{self.class} #{@options[:sockets].join(" or ")}>"
    end

    def self.enqueued(reply)
      Enqueued.new(reply["id"], reply["duplicate"] || false, reply["state"], reply["outcome"])
    end

    # session returns this process's session.
    def session # :nodoc:
      return @session if @pid == Process.pid

      @lock.synchronize do
        next if @pid == Process.pid

        @session&.abandon
        @session = Session.new(self, **@options)
        @pid = Process.pid
      end
      @session
    end

    private

    # callable_session returns this process's session, if a call in this thread can be answered.
    def callable_session(op)
      return session unless (cause = unable_to_wait?)

      raise Reentrant, "#{op} was not sent: #{cause}; hand the data to another thread (Queue#push) and call there"
    end

    # unable_to_wait? returns why a call can't wait for its reply here, or nil.
    def unable_to_wait?
      Mutex.new.synchronize do
        current = @session if @pid == Process.pid
        return unless @lock.owned? || current&.reentrant?
      end
      "it came from a finalizer or a hook, which interrupted this client in the same thread and would wait for it"
    rescue ThreadError # "can't be called from trap context"
      "it came from a signal handler (trap), in which Ruby takes no lock"
    end

    # settle sends a settle, with the claim that a Worker adds to it.
    def settle(job, op, fields)
      fields[:claim] = job.next_claim if job.next_claim && job.next_jobs.empty?
      send_request(op, fields, claimed: job.next_jobs, over: job.over)
    end

    # send_request sends a request, and repeats it after transient errors. It adds the jobs of a
    # settle's claim to claimed.
    def send_request(op, fields, wait: nil, limit: nil, claimed: nil, over: nil)
      current = callable_session(op)
      began = Connection.now
      limit = Fields.time_limit(limit) || @request_timeout || (op == "enqueue" ? enqueue_time : REQUEST_TIME)
      how = { ends: began + limit + (wait || 0), wait_ends: wait && began + wait, claimed: claimed, over: over }
      return send_repeatedly(current, op, fields, how) unless SETTLES.include?(op)

      current.settling(fields[:leases] || [fields[:lease]]) { send_repeatedly(current, op, fields, how) }
    rescue NotConnected => e
      raise unless Client.inline

      raise NotConnected, "#{op}: Qsidecar::Testing.inline covers enqueue only; #{e.message}"
    end

    def enqueue_time
      text = ENV["QSIDECAR_ENQUEUE_TIMEOUT"].to_s
      return ENQUEUE_TIME if text.empty?

      seconds = Float(text, exception: false)
      return seconds if seconds&.between?(0.001, 1e9)

      raise ArgumentError, "QSIDECAR_ENQUEUE_TIMEOUT=#{text} isn't a number of seconds: write it without a unit, such as 2 or 0.5"
    end

    def send_repeatedly(current, op, fields, how)
      tries = 0
      resent = false
      begin
        current.call(op, fields, resent: resent, **how)
      rescue UnknownOutcome, Unavailable, Busy, Draining => e
        pause = e.retry_ms ? e.retry_ms / 1000.0 : Session.backoff(tries += 1)
        raise unless transient?(op, fields, e, how[:wait_ends]) && left(op, how) > pause && !how[:over]&.call

        resent ||= e.is_a?(UnknownOutcome)
        fields = fields.reject { |name, _| name == :claim } if how[:claimed]&.any?
        current.pause(pause)
        retry
      end
    end

    # transient? is whether the same request can succeed soon, and whether the client repeats it. It
    # does not repeat an enqueue that was not carried out: the caller decides whether to wait for a
    # database.
    def transient?(op, fields, error, wait_ends)
      return Call.new(op, fields).repeatable? if error.is_a?(UnknownOutcome)

      SETTLES.include?(op) || op == "progress" || (op == "claim" && wait_ends)
    end

    # left returns the rest of the caller's time, or of a claim's own wait.
    def left(op, how)
      ends = op == "claim" ? how[:wait_ends] : how[:ends]
      ends ? ends - Connection.now : Float::INFINITY
    end

    def settle_many(op, jobs, fields)
      other = jobs.find { |job| !job.respond_to?(:lease) }
      raise ArgumentError, "#{other.inspect} is no job: pass jobs that were claimed" if other

      lost = send_request(op, { leases: jobs.map(&:lease), **fields })["lost"]
      lost_jobs, done = lost.empty? ? [[], jobs] : jobs.partition { |job| lost.include?(job.lease) }
      done.each(&:settled!)
      lost_jobs.each(&:lost!)
    end
  end

  # Builds the maps of the wire from the callers' arguments.
  module Fields
    module_function

    # The limits of the protocol, in seconds.
    TEN_YEARS = 10 * 366 * 86_400
    MAX_WEIGHT = 1000 # of a queue
    SPANS = { delay: 0..TEN_YEARS, timeout: 0.001..TEN_YEARS, start_within: 0.001..TEN_YEARS, retain: 0.001..TEN_YEARS, debounce_max: 0.001..TEN_YEARS, lease: 1..86_400, wait: 0..3600, key_ttl: 0..TEN_YEARS,
              every: 1..366 * 86_400, splay: 1..86_400 }.freeze
    private_constant :TEN_YEARS, :SPANS

    # ms rounds up, so that a short wait does not become none. An error of the sidecar would name the
    # field of the wire, in another unit.
    def ms(name, seconds)
      span = SPANS.fetch(name)
      unless seconds.is_a?(Numeric) && span.cover?(seconds)
        raise ArgumentError, "#{name}: #{seconds.inspect} must be from #{span.begin} to #{span.end} seconds"
      end

      (seconds * 1000).ceil
    end

    # order returns the order of a claim, and the weights. Those of a single queue have no meaning.
    def order(queues, order, weights)
      raise ArgumentError, "order is #{order.inspect}, must be :strict or :rotate" unless %i[strict rotate].include?(order)

      weights = (weights || {}).transform_keys { |name| Codec.text(name.to_s) }
      raise ArgumentError, "weights need order: :rotate; with :strict, the first queue comes first" unless weights.empty? || order == :rotate

      weights.each do |name, weight|
        raise ArgumentError, "weights has the queue #{name}, which isn't one of #{queues.join(", ")}" unless queues.include?(name)
        raise ArgumentError, "the weight of #{name} is #{weight.inspect}, must be an integer from 1 to #{MAX_WEIGHT}" unless weight.is_a?(Integer) && (1..MAX_WEIGHT).cover?(weight)
      end
      return {} if order == :strict || queues.size == 1

      { order: "rotate", **(weights.empty? ? {} : { weights: weights }) }
    end

    def job(queue:, payload: nil, raw: false, priority: nil, delay: nil, run_at: nil, key: nil, headers: nil,
            max_attempts: nil, timeout: nil, group: nil, batch: nil, start_before: nil, start_within: nil, on_expiry: nil, retain: nil,
            key_until: nil, on_conflict: nil, debounce_max: nil)
      out = { queue: Codec.text(queue), payload: bytes(queue, payload, raw) }
      out[:priority] = priority if priority
      out[:delay_ms] = ms(:delay, delay) if delay
      out[:run_at] = instant(run_at, delay) if run_at
      out[:key] = Codec.text(key) if key
      out[:headers] = texts(headers) if headers
      out[:max_attempts] = max_attempts if max_attempts
      out[:timeout_ms] = ms(:timeout, timeout) if timeout
      out[:group] = Codec.text(group) if group
      out[:batch] = Codec.text(batch) if batch
      out[:retain_ms] = ms(:retain, retain) if retain
      out[:key_until] = Codec.text(key_until) if key_until
      out[:on_conflict] = Codec.text(on_conflict) if on_conflict
      out[:debounce_max_ms] = ms(:debounce_max, debounce_max) if debounce_max
      out.merge(expiry(start_before, start_within, on_expiry))
    end

    # expiry returns the fields of the time until which a job has to start.
    def expiry(start_before, start_within, on_expiry)
      raise ArgumentError, "give start_before or start_within, and not both" if start_before && start_within

      { start_before: start_before && instant(start_before, nil, "start_before"), start_within_ms: start_within && ms(:start_within, start_within),
        on_expiry: on_expiry && Codec.text(on_expiry) }.compact
    end

    # jobs returns the fields of several jobs.
    def jobs(list)
      list.each_with_index.map do |job, i|
        raise ArgumentError, "job #{i} is #{job.inspect}, must be a Hash such as { queue: \"mail\", payload: 1 }" unless job.is_a?(Hash)

        job(**job)
      end
    end

    # schedule returns the fields of a declaration. Without a payload, the jobs have no bytes.
    def schedule(name, cron, queue:, every: nil, tz: nil, payload: nil, raw: false, splay: nil, priority: nil, headers: nil,
                 missed: nil, overlap: nil, source: nil, version: nil)
      raise ArgumentError, "schedule #{name}: give cron or every" if cron.nil? == every.nil?

      job = job(queue: queue, payload: payload, raw: raw, priority: priority, headers: headers)
      job.delete(:payload) if payload.nil?
      texts = { name: name, cron: cron, tz: tz, missed: missed, overlap: overlap, source: source }.compact.transform_values { |v| Codec.text(v) }
      numbers = { every_ms: every && ms(:every, every), splay_ms: splay && ms(:splay, splay), version: version }.compact
      { queue: job.delete(:queue), schedule: { **texts, **numbers, **job } }
    end

    # batch returns the fields of a new batch.
    def batch(on_success, on_finish, key, of)
      raise ArgumentError, "batch: give on_success or on_finish" if on_success.nil? == on_finish.nil?

      callback = on_success || on_finish
      callback = { queue: callback[0], payload: callback[1] } if callback.is_a?(Array) && callback.size == 2
      raise ArgumentError, "batch: the callback must be a queue and a payload, or a Hash" unless callback.is_a?(Hash)

      wrong = %i[key delay run_at batch] & callback.keys
      raise ArgumentError, "batch: the callback has no #{wrong.first}" unless wrong.empty?

      { **job(**callback), on: on_success ? "success" : "finish", **{ key: key, batch: of }.compact.transform_values { |v| Codec.text(v) } }
    end

    # The end of the year 9999, in milliseconds.
    LAST_INSTANT = 253_402_300_799_999
    private_constant :LAST_INSTANT

    # instant returns a Time, or seconds since 1970, in milliseconds. A String has a to_r, too, which is mostly 0.
    def instant(at, delay, name = "run_at")
      raise ArgumentError, "delay and run_at exclude each other" if delay

      unless at.respond_to?(:to_r) && !at.is_a?(String)
        raise ArgumentError, "#{name}: #{at.inspect} must be a Time or a number of seconds since 1970"
      end

      ms = (at.to_r * 1000).ceil
      if ms > LAST_INSTANT && ms <= LAST_INSTANT * 1000
        raise ArgumentError, "#{name}: #{at.inspect} must be seconds since 1970, and this is probably milliseconds"
      end
      raise ArgumentError, "#{name}: #{at.inspect} must be in the years 1970 to 9999" unless (0..LAST_INSTANT).cover?(ms)

      ms
    end

    def texts(headers)
      raise ArgumentError, "headers: #{headers.inspect} must be a Hash" unless headers.respond_to?(:to_hash)

      headers.to_hash.to_h { |k, v| [Codec.text(k), Codec.text(v)] }
    end

    # time_limit returns a valid request_timeout, or nil for none.
    def time_limit(seconds)
      return seconds if seconds.nil? || (seconds.is_a?(Numeric) && seconds >= 0)

      raise ArgumentError, "request_timeout: #{seconds.inspect} must be a number of seconds, 0 or more"
    end

    def bytes(queue, payload, raw)
      raise ArgumentError, "raw: true takes a String as the payload, not #{payload.class}" if raw && !payload.is_a?(String)
      return payload.b if raw

      json = JSON.generate(payload)
      other = other_than_json(payload)
      return json.b unless other

      raise ArgumentError,
            "the payload of a job for #{queue} has a value of the class #{other}, which JSON lacks: convert it, or define its to_json"
    rescue JSON::JSONError, EncodingError => e
      hint = " (for bytes use raw: true)" unless e.message.match?(/not allowed in JSON|nesting/)
      raise ArgumentError, "the payload of a job for #{queue} can't be JSON#{hint}: #{e.message.sub(/\A\d+: /, "")}", cause: nil
    end

    # The modules whose to_json stores the to_s of any object. Those of Active Support call the first one here.
    GENERIC = /\A(JSON::.*Generator::GeneratorMethods::Object|ActiveSupport::ToJsonWithActiveSupportEncoder)\z/.freeze
    private_constant :GENERIC

    # other_than_json returns the class of a value in a payload that JSON.generate would store as its to_s, or nil.
    def other_than_json(value)
      case value
      when nil, true, false, Integer, Float, String, Symbol then nil
      when Array then first_other(value)
      when Hash then first_other(value.each_value)
      else
        own = value.method(:to_json)
        own = own.super_method while own&.owner&.name&.match?(GENERIC)
        value.class unless own
      end
    end

    def first_other(values)
      values.each { |value| (other = other_than_json(value)) && (return other) }
      nil
    end

    def nack(error: nil, delay: nil, dead: false, snooze: false)
      out = {}
      out[:error] = error_text(error) if error
      out[:delay_ms] = ms(:delay, delay) if delay
      out[:dead] = true if dead
      out[:snooze] = true if snooze
      out
    end

    # error_text returns an error's text as valid UTF-8, because other bytes must not prevent a
    # settle.
    def error_text(error)
      s = error.to_s
      s = s.encoding == Encoding::BINARY ? s.dup.force_encoding(Encoding::UTF_8) : s.encode(Encoding::UTF_8, invalid: :replace, undef: :replace)
      s.scrub.delete("\0").byteslice(0, 4096).scrub("")
    end
  end
end
