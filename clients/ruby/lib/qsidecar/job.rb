# frozen_string_literal: true

module Qsidecar
  # How far a job was when its worker last reported it. done and total are as reported, or nil. raw is
  # the bytes of its data. at is a Time: when the sidecar stored it.
  Progress = Struct.new(:done, :total, :raw, :at) do
    def self.of(fields, raw) # :nodoc:
      new(fields["done"], fields["total"], raw || "".b, Time.at(fields["at"] / 1000r))
    end

    # data parses the data as JSON. It is nil if there are no bytes.
    def data
      raw.empty? ? nil : JSON.parse(raw.dup.force_encoding(Encoding::UTF_8))
    end
  end

  # A job that was claimed. Settle it once, by ack or nack.
  class Job
    # Fields from the sidecar. id, queue and key are Strings. fence grows with each delivery of the
    # job. last_error is the message of the last failed attempt, or nil.
    attr_reader :id, :queue, :lease, :attempt, :max_attempts, :fence, :priority, :headers, :key, :last_error

    # A run whose lease is lost so shortly before its time limit was ended by it, in seconds, at most half of it. The sidecar
    # counts the run from the commit of the claim, and the client from the reply.
    ALMOST = 0.1
    private_constant :ALMOST

    attr_accessor :next_claim # :nodoc: set by the Worker: the claim that the settle carries
    attr_accessor :over # :nodoc: set by the Worker: called for whether nothing waits for the settle any more
    attr_accessor :loss_logged # :nodoc: set by the Worker
    attr_reader :next_jobs # :nodoc: the jobs that it got

    # The payload's bytes, a String of binary encoding.
    attr_reader :raw

    # What an earlier attempt reported last, a Progress, or nil: continue there.
    attr_reader :last_progress

    def initialize(client, fields, raw, last_progress = nil)
      @client = client
      @last_progress = last_progress
      @raw = raw || "".b
      @id, @queue, @lease, @attempt, @max_attempts, @fence, @priority, @key, @last_error =
        fields.values_at("id", "queue", "lease", "attempt", "max_attempts", "fence", "priority", "key", "last_error")
      @headers = fields["headers"] || {}
      @enqueued_at = fields["enqueued_at"]
      @timeout_ms = fields["timeout_ms"]
      @began = Connection.now if @timeout_ms
      @state = :held
      @cancelled = @loss_logged = false
      @next_jobs = []
    end

    # payload parses the payload as JSON. It is nil if there are no bytes. It raises
    # JSON::ParserError if the bytes are not JSON: use raw then.
    def payload
      return @payload if defined?(@payload)

      @payload = @raw.empty? ? nil : JSON.parse(@raw.dup.force_encoding(Encoding::UTF_8))
    rescue JSON::ParserError, EncodingError => e
      raise JSON::ParserError, "the payload of job #{@id} is not JSON (Job#raw has its bytes): #{e.message}"
    end

    # enqueued_at is a Time, by the database's clock.
    def enqueued_at
      Time.at(@enqueued_at / 1000r)
    end

    # timeout is the time limit of this run in seconds since the claim, or nil.
    def timeout
      @timeout_ms && @timeout_ms / 1000.0
    end

    # ack settles the job as done. result (a String) is stored with the job if its queue keeps done
    # jobs. enqueue is a list of jobs as in Client#enqueue_many, which are stored in the same
    # transaction. ack returns their results. It raises LeaseLost or SettledOrLost.
    def ack(result: nil, enqueue: nil)
      settle { @client.ack(self, result: result, enqueue: enqueue) }
    end

    # nack settles the attempt as failed. error is text for people. delay is in seconds (nil: the
    # queue's back-off). dead: no more attempts. snooze: not now, this delivery uses up no attempt. It
    # raises LeaseLost or SettledOrLost.
    def nack(error: nil, delay: nil, dead: false, snooze: false)
      settle { @client.nack(self, error: error, delay: delay, dead: dead, snooze: snooze) }
    end

    # extend renews the lease for that many seconds from now, or for the same time as before (nil).
    # It raises LeaseLost. (It is not Object#extend.)
    def extend(seconds = nil)
      @client.extend_lease(self, seconds)
    end

    # progress reports how far the job is, in any unit, with any JSON values by name, or raw bytes: 4 KiB at
    # most. The sidecar stores the last report of a job about once a second, and last_progress of the next
    # attempt has it. It raises LeaseLost.
    def progress(done = nil, total = nil, raw: nil, **data)
      checkpoint
      @client.report_progress(self, done, total, raw || (data.empty? ? nil : JSON.generate(data)))
    end

    # settled? is whether an ack or nack has been answered.
    def settled?
      @state == :settled
    end

    # lost? is whether the lease is known to be lost. Another worker can have the job, so stop if
    # possible. Only session leases are reported as lost.
    def lost?
      @state == :lost
    end

    # cancelled? is whether the job was cancelled while it runs. Then it is also lost, and no worker gets
    # it: stop the work.
    def cancelled?
      @cancelled
    end

    # checkpoint raises Cancelled if the job was cancelled, and LeaseLost if its lease is known to be
    # lost otherwise. Call it in long work, where it can stop. It sends nothing.
    def checkpoint
      raise Cancelled, "job #{@id} of #{@queue} was cancelled" if cancelled?
      raise LeaseLost, "job #{@id}: #{loss}; another worker may have it" if lost?
    end

    # The client calls settled! and lost!.
    def settled!
      @state = :settled
    end

    def lost!(reason = nil)
      @cancelled ||= reason == "cancelled"
      @state = :lost
    end

    def loss(now = Connection.now) # :nodoc: why the lease was lost
      over = @timeout_ms && now - @began > timeout - [ALMOST, timeout / 2].min
      over ? format("it ran longer than its time limit of %g s", timeout) : "its lease was lost"
    end

    # inspect omits the lease, because it is the right to settle.
    def inspect
      "#<#{self.class} #{@queue} #{@id} attempt #{@attempt} of #{@max_attempts} #{@state}>"
    end

    private

    def settle
      checkpoint

      done = yield
      @state = :settled
      done
    rescue SettledOrLost
      @state = :settled
      raise
    rescue LeaseLost
      @state = :lost
      raise
    end
  end
end
