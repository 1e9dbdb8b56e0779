# frozen_string_literal: true

module Qsidecar
  # The superclass of all errors of this library.
  class Error < StandardError; end

  # No sidecar answers on the socket. Nothing was sent.
  class NotConnected < Error; end

  # The client was closed, before or during the call.
  class Closed < Error; end

  # A call exceeded the client's +request_timeout+ and was never sent.
  class TimedOut < Error; end

  # The call would wait for itself, or Ruby allows no waiting there. Nothing was sent. A signal handler
  # (trap) made it, or a finalizer that interrupted this client in the same thread. Hand the data to
  # a thread, with Queue#push for example, and make the call there.
  class Reentrant < Error; end

  # An error that the sidecar reported. Each code has its own subclass. A code that this version
  # does not support is an Internal.
  class SidecarError < Error
    # The code on the wire, the wrong field of the request, the index of the wrong list element, and
    # after how many milliseconds to try again. Each can be nil.
    attr_reader :code, :field, :index, :retry_ms

    def initialize(message = nil, code: self.class::CODE, field: nil, index: nil, retry_ms: nil)
      super(message || code)
      @code = code
      @field = field
      @index = index
      @retry_ms = retry_ms
    end
  end

  # The sidecar could not parse the bytes. This is a bug of the library, or the other end is not a
  # sidecar.
  class BadFrame < SidecarError; CODE = "bad_frame"; end
  # The request is invalid, or a rule of the database rejects it.
  class BadRequest < SidecarError; CODE = "bad_request"; end
  # The sidecar does not support the operation. It is possibly older than this library.
  class UnknownOp < SidecarError; CODE = "unknown_op"; end
  # The sidecar's config lists its queues, and this queue is not one of them.
  class UnknownQueue < SidecarError; CODE = "unknown_queue"; end
  # This user is not permitted to do this on this queue.
  class Forbidden < SidecarError; CODE = "forbidden"; end
  # It exceeds a limit of the sidecar. Store the data elsewhere.
  class TooLarge < SidecarError; CODE = "too_large"; end
  # The lease is no longer valid. Another worker possibly has the job.
  class LeaseLost < SidecarError; CODE = "lease_lost"; end
  # The sidecar, or this queue's table, can't do this.
  class Unsupported < SidecarError; CODE = "unsupported"; end
  # Too many claims of this connection are waiting.
  class Busy < SidecarError; CODE = "busy"; end
  # The sidecar is about to stop and delivers no more jobs.
  class Draining < SidecarError; CODE = "draining"; end
  # The sidecar can't reach or write the database now. Nothing was written.
  class Unavailable < SidecarError; CODE = "unavailable"; end
  # The request may or may not have been carried out: the sidecar can't find out, or its reply did
  # not arrive. If an enqueue has a key, the client repeats it instead.
  class UnknownOutcome < SidecarError; CODE = "unknown_outcome"; end
  # An error without a more specific code, or a code that this library does not support.
  class Internal < SidecarError; CODE = "internal"; end

  # A settle was sent twice, and its lease was invalid the second time. Either the first request
  # settled the job, or the lease was lost before. Treat the job as settled: if it was not, it is
  # delivered again, as after any lost lease.
  class SettledOrLost < Error
    # The leases in question. Other leases of the call were settled. Do not log them: a lease is the
    # right to settle.
    attr_reader :leases

    def initialize(op, leases)
      super("#{op}: sent twice, as the first answer did not come; #{leases.size} of its leases " \
            "were settled by the first try or had been lost")
      @leases = leases
    end
  end

  # Raise it in a job to try the job again in +delay+ seconds (nil: after the queue's back-off). The
  # attempt counts as failed.
  class Retry < StandardError
    attr_reader :delay

    def initialize(message = "retry", delay: nil)
      super(message)
      @delay = delay
    end
  end

  # Raise it in a job to run the job later: in +delay+ seconds, or after the queue's back-off (nil).
  # This delivery uses up no attempt.
  class Snooze < StandardError
    attr_reader :delay

    def initialize(message = "snooze", delay: nil)
      super(message)
      @delay = delay
    end
  end

  # Raise it in a job that must not be tried again. The job is then dead.
  class Dead < StandardError; end

  # The job was cancelled while it ran: stop the work. Job#checkpoint raises it. Nothing changes the job
  # any more.
  class Cancelled < LeaseLost; end

  CODES = constants.map { |name| const_get(name) }
                   .select { |c| c.is_a?(Class) && c.superclass == SidecarError }
                   .map { |c| [c::CODE, c] }.to_h.freeze
  private_constant :CODES

  # error returns the exception for the map of an error reply.
  def self.error(fields)
    code = fields["code"].to_s
    CODES.fetch(code, Internal).new(fields["message"], code: code, field: fields["field"], index: fields["index"], retry_ms: fields["retry_ms"])
  end
end
