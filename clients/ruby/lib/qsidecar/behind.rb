# frozen_string_literal: true

module Qsidecar
  # The settles of a Worker that no thread waits for: the next job begins before they are answered.
  # The session's thread notes those that succeed. One thread handles the others.
  class Behind
    # How many jobs can be begun and not settled. If the worker dies, they are delivered again,
    # although most of them are done. One commit of the sidecar answers all settles that arrived by
    # then, and these are enough to keep a thread busy until then.
    MOST = 32

    # The same for each thread, for workers with many threads. A thread that waits for its settles has
    # one, so with fewer than two these workers would wait more than that one.
    MOST_EACH = 2

    # No job begins while a settle is unanswered for so long, in seconds. No commit takes that long
    # unless the database is in trouble, and each further job could be delivered again.
    LONGEST = 1

    # How old an unanswered settle can be when the worker drains or stops, in seconds. A sidecar that
    # was killed and is not started again never answers.
    LAST = 60

    # How often a waiting thread checks whether the worker stops, in seconds.
    CHECK = 0.2

    # Errors of which the client itself repeats a settle.
    AGAIN = [Unavailable, UnknownOutcome, Busy, Draining].freeze

    # A settle that is not carried out yet. refused: it is the nack that replaces an invalid one.
    # internal: the last try ended with an internal error.
    Settle = Struct.new(:job, :op, :fields, :tries, :resent, :refused, :internal, :due)

    # now is a clock, which tests replace.
    @clock = nil
    class << self
      attr_writer :clock

      def now
        @clock ? @clock.call : Connection.now
      end
    end

    # outcome returns the operation and the fields that settle a job with an exception, or nil. log
    # is called with a level and a text. stopping is called for whether the worker stops.
    def initialize(client, threads:, drain:, outcome:, log:, stopping:)
      @client = client
      @most = [MOST, MOST_EACH * threads].max
      @outcome = outcome
      @log = log
      @drain = drain
      @stopping = stopping
      @lock = Mutex.new # guards the fields below
      @changed = ConditionVariable.new # a settle has ended
      @work = ConditionVariable.new # a settle has failed, or all have ended
      @begun = {}.compare_by_identity # jobs after begin_job, before settle or leave
      @unanswered = {}.compare_by_identity # jobs: since when; infinity once the database has rejected it
      @sent = {}.compare_by_identity # the jobs of @unanswered: since when, also then; the oldest is the first
      @given_up = 0
      @over = 0 # how many settles have ended
      @failed = []
      @ended = false
      @later = [] # used by the thread only
      @thread = Thread.new { run }
      @thread.name = "qsidecar-settle"
    end

    # settle sends the settle of a job and, if further jobs can begin, a claim. It returns the jobs of
    # the claim when it is answered. It waits until a settle is too old.
    def settle(job, error, claim)
      settle = Settle.new(job, nil, nil, 0, false, false, false)
      form(settle, error)
      begins = @lock.synchronize do
        @begun.delete(job)
        @unanswered[job] = @sent[job] = Behind.now
        can_begin_now?
      end
      send_request(settle, begins ? claim : nil, +1)
    end

    # can_begin? waits until a job can begin. It returns false if the worker stops before, or a settle is too old.
    def can_begin?
      @lock.synchronize { wait_to_begin }
    end

    # begin_job waits until the job can begin, and counts it until settle or leave. It returns false if
    # the worker stops before.
    def begin_job(job)
      @lock.synchronize { wait_to_begin && @begun[job] = true }
    end

    # leave ends a job after begin_job. It does nothing after settle.
    def leave(job)
      @lock.synchronize { @changed.broadcast if @begun.delete(job) }
    end

    # running is how many jobs have begun and are not settled yet.
    def running
      @lock.synchronize { @begun.size }
    end

    def idle?
      @lock.synchronize { @unanswered.empty? }
    end

    # wait returns when a settle has ended, or if none is unanswered, or one is too old, or the worker stops.
    def wait
      @lock.synchronize do
        count = @over
        @changed.wait(@lock, CHECK) until @over > count || @unanswered.empty? || late? || @stopping.call
      end
    end

    # over? is whether the worker drains or stops, and a settle that was sent then is too old.
    def over?(since)
      Behind.now - since >= LAST && (@drain || @stopping.call)
    end

    # give_up notes that nothing waits for the settle of the job any more. It is unanswered.
    def give_up(job)
      log(:error, job, "could not be settled: no answer from the sidecar")
      @lock.synchronize { @given_up += 1 }
    end

    # finish waits until all settles have ended. It gives up if one is too old, and returns the error
    # of those without an answer.
    def finish
      left = @lock.synchronize do
        @changed.wait(@lock, CHECK) until @unanswered.empty? || late?
        @ended = true
        @work.signal
        @unanswered.keys
      end
      left.each { |job| give_up(job) }
      @thread.join(left.empty? ? nil : CHECK) # it can wait for a sidecar that doesn't read
      return if @given_up.zero?

      Unavailable.new("no answer for a minute to the settles of finished jobs (#{@given_up}): the sidecar or its database is unavailable; " \
                      "check that it runs: these jobs are delivered again, after the sidecar timeout at the latest")
    end

    private

    def late?
      _, since = @sent.first
      since && over?(since)
    end

    def wait_to_begin
      until can_begin_now?
        return false if @stopping.call || late?

        @changed.wait(@lock, CHECK)
      end
      true
    end

    def can_begin_now?
      @begun.size + @unanswered.size < @most && (@unanswered.empty? || Behind.now - @unanswered.each_value.min < LONGEST)
    end

    # form sets the operation and the fields of a settle. If they can't be formed, the attempt fails.
    def form(settle, error)
      settle.op, settle.fields = @outcome.call(settle.job, error)
    rescue StandardError => e
      raise if settle.refused

      refuse(settle, e)
    end

    def refuse(settle, error)
      log(:error, settle.job, "its outcome was refused: #{error.message}")
      settle.refused = true
      settle.resent = false
      form(settle, error)
    end

    def send_request(settle, claim = nil, settling = 0)
      call = Call.new(settle.op, settle.fields, resent: settle.resent, on_done: ->(done) { answered(settle, done.error) })
      @client.session.settle_behind(call, claim && Call.new("claim", claim, over: -> { late? }), settling)
    rescue Error => e
      answered(settle, e) unless call.nil? || call.id # otherwise only the claim failed, and the next claim reports that
      []
    end

    # answered notes an answer, mostly in the thread that reads. It must not wait, log or call the
    # program.
    def answered(settle, error)
      return over(settle) { settle.job.settled! } unless error

      @lock.synchronize do
        @failed << [settle, error]
        @work.signal
      end
    end

    def over(settle)
      yield if block_given?
      @lock.synchronize do
        @unanswered.delete(settle.job)
        @sent.delete(settle.job)
        @over += 1
        @changed.broadcast
      end
    end

    def run
      while (failed = next_failed)
        failed.each { |settle, error| guard(settle) { handle(settle, error) } }
        due, @later = @later.partition { |settle| settle.due <= Connection.now }
        due.each { |settle| guard(settle) { send_request(settle) } }
        end_rejected if @stopping.call
      end
    end

    # next_failed returns the settles that failed, or nil after the end.
    def next_failed
      @lock.synchronize do
        pause = @later.empty? ? nil : (@later.map(&:due).min - Connection.now).clamp(0, CHECK)
        @work.wait(@lock, pause) if @failed.empty? && !@ended && pause != 0
        return if @ended

        failed, @failed = @failed, []
        failed
      end
    end

    # end_rejected ends the settles that the database rejects when the worker stops.
    def end_rejected
      ended, @later = @later.partition(&:internal)
      ended.each do |settle|
        log(:error, settle.job, "could not be settled")
        over(settle)
      end
    end

    def guard(settle)
      yield
    rescue StandardError => e
      log(:error, settle.job, "could not be settled: #{e.message}")
      over(settle)
    end

    def handle(settle, error)
      settle.internal = false
      case error
      when *AGAIN then again(settle, error)
      when Internal then rejected(settle, error)
      when SettledOrLost
        log(:info, settle.job, error.message)
        over(settle) { settle.job.settled! }
      when LeaseLost
        @client.session.report_lost(settle.job)
        over(settle)
      when Closed, NotConnected then raise error
      else
        raise error if settle.refused

        refuse(settle, error)
        send_request(settle)
      end
    end

    def again(settle, error)
      settle.resent ||= error.is_a?(UnknownOutcome)
      settle.tries += 1
      later(settle, error.retry_ms ? error.retry_ms / 1000.0 : Session.backoff(settle.tries))
    end

    # rejected repeats after an internal error. Otherwise the job would stay with this worker. Other
    # jobs can begin, because the database works.
    def rejected(settle, error)
      log(:warn, settle.job, "could not be settled yet: #{error.message}")
      settle.internal = true
      @lock.synchronize do
        @unanswered[settle.job] = Float::INFINITY
        @changed.broadcast
      end
      later(settle, 4 * Session.backoff(settle.tries += 1))
    end

    def later(settle, pause)
      settle.due = Connection.now + pause
      @later << settle
    end

    def log(level, job, text)
      @log.call(level, "job #{job.id} of #{job.queue}: #{text}")
    end
  end
end
