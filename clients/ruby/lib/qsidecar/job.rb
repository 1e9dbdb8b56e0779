# frozen_string_literal: true

module Qsidecar
  # A job that was claimed. It is settled once: by ack or nack.
  class Job
    # What the sidecar tells of it: id, queue and key are Strings, fence grows with each
    # delivery of the job, last_error is the message of the last failed attempt (or nil).
    attr_reader :id, :queue, :lease, :attempt, :max_attempts, :fence, :priority, :headers, :key, :last_error

    # The payload as it was enqueued: bytes, in a String of binary encoding.
    attr_reader :raw

    def initialize(client, fields, raw)
      @client = client
      @raw = raw || "".b
      @id, @queue, @lease, @attempt, @max_attempts, @fence, @priority, @key, @last_error =
        fields.values_at("id", "queue", "lease", "attempt", "max_attempts", "fence", "priority", "key", "last_error")
      @headers = fields["headers"] || {}
      @enqueued_at = fields["enqueued_at"]
      @timeout_ms = fields["timeout_ms"]
      @state = :held
    end

    # payload is what was enqueued, read as JSON; nil where there are no bytes.
    def payload
      return @payload if defined?(@payload)

      @payload = @raw.empty? ? nil : JSON.parse(@raw.dup.force_encoding(Encoding::UTF_8))
    rescue JSON::ParserError => e
      raise JSON::ParserError, "the payload of job #{@id} is not JSON (Job#raw has its bytes): #{e.message}"
    end

    # enqueued_at is a Time, by the clock of the sidecar's database.
    def enqueued_at
      Time.at(@enqueued_at / 1000r)
    end

    # timeout is the limit of this run in seconds, counted from the claim; nil: none.
    def timeout
      @timeout_ms && @timeout_ms / 1000.0
    end

    # ack settles the job as done. result (a String) is kept with a job that is kept;
    # enqueue is a list of jobs as of Client#enqueue_many, stored with the ack or not at
    # all, and what is given back for it. Raises LeaseLost, SettledOrLost.
    def ack(result: nil, enqueue: nil)
      settle { @client.ack(self, result: result, enqueue: enqueue) }
    end

    # nack settles the attempt as failed. error is text for people, delay in seconds until
    # it is ready again (nil: the queue's back-off), dead: no further attempt, charge:
    # false means *not now* rather than *failed*. Raises LeaseLost, SettledOrLost.
    def nack(error: nil, delay: nil, dead: false, charge: true)
      settle { @client.nack(self, error: error, delay: delay, dead: dead, charge: charge) }
    end

    # extend renews the lease, as a timed one of so many seconds from now; nil: for as
    # long as it was given. Raises LeaseLost. (It is not Object#extend.)
    def extend(seconds = nil)
      @client.extend_lease(self, seconds)
    end

    # settled? is whether an ack or nack has been answered.
    def settled?
      @state == :settled
    end

    # lost? is whether the lease is known to be lost: another worker may have the job,
    # so stop, if the work can be stopped. Only session leases are told of.
    def lost?
      @state == :lost
    end

    # settled! and lost! are the client's to call.
    def settled!
      @state = :settled
    end

    def lost!
      @state = :lost
    end

    # inspect shows no lease: that is the right to settle.
    def inspect
      "#<#{self.class} #{@queue} #{@id} attempt #{@attempt} of #{@max_attempts} #{@state}>"
    end

    private

    def settle
      raise LeaseLost, "job #{@id}: its lease was lost before" if lost?

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
