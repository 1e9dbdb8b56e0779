# frozen_string_literal: true

module Qsidecar
  # What every error of this library is.
  class Error < StandardError; end

  # No sidecar answers on the socket, or what answers is none. Nothing was sent.
  class NotConnected < Error; end

  # The client was closed, before the call or while it was made. Nothing was done
  # that an answer had told of.
  class Closed < Error; end

  # A call took longer than the client's +timeout+ and was never sent.
  class TimedOut < Error; end

  # An error that the sidecar answered. There is a class below it for each code;
  # a code that this version does not know is an Internal.
  class SidecarError < Error
    # The code on the wire, the request's field at fault, the index in a list at
    # fault, and in how many milliseconds to try again; nil where it is not told.
    attr_reader :code, :field, :index, :retry_ms

    def initialize(message = nil, code: self.class::CODE, field: nil, index: nil, retry_ms: nil)
      super(message || code)
      @code = code
      @field = field
      @index = index
      @retry_ms = retry_ms
    end
  end

  # The stream was broken. A bug of this library, or something else at the other end.
  class BadFrame < SidecarError; CODE = "bad_frame"; end
  # The request is wrong as it stands, or the database refuses it by a rule of its own.
  class BadRequest < SidecarError; CODE = "bad_request"; end
  # The sidecar has no such operation: it may be older than this library.
  class UnknownOp < SidecarError; CODE = "unknown_op"; end
  # The sidecar's config names its queues, and this is none of them.
  class UnknownQueue < SidecarError; CODE = "unknown_queue"; end
  # This user may not do this to this queue.
  class Forbidden < SidecarError; CODE = "forbidden"; end
  # Over a limit of the sidecar's: store the data elsewhere.
  class TooLarge < SidecarError; CODE = "too_large"; end
  # The lease is not valid any more: another worker may have the job.
  class LeaseLost < SidecarError; CODE = "lease_lost"; end
  # The sidecar or this queue's table cannot do this.
  class Unsupported < SidecarError; CODE = "unsupported"; end
  # Too many claims of this connection wait.
  class Busy < SidecarError; CODE = "busy"; end
  # The sidecar is about to stop and gives out no more jobs.
  class Draining < SidecarError; CODE = "draining"; end
  # The database cannot be reached or written just now. Nothing was written.
  class Unavailable < SidecarError; CODE = "unavailable"; end
  # It may have been carried out and may not: the sidecar cannot tell, or its
  # answer did not arrive. Give an enqueue a key, and it is sent again instead.
  class UnknownOutcome < SidecarError; CODE = "unknown_outcome"; end
  # An error that the sidecar (or this library) does not know.
  class Internal < SidecarError; CODE = "internal"; end

  # A settle was sent twice, and the second try found its lease not valid: the first
  # try settled the job, or the lease had been lost before. A worker may take it as
  # settled: where it was not, the job is delivered again, as after any lost lease.
  class SettledOrLost < Error
    # The leases it is about; those of the call that are not among them were settled.
    # Not for logs: a lease is the right to settle.
    attr_reader :leases

    def initialize(op, leases)
      super("#{op}: sent twice, as the first answer did not come; #{leases.size} of its leases " \
            "were settled by the first try or had been lost")
      @leases = leases
    end
  end

  # Raised by a job: it is to be tried again, in +delay+ seconds (nil: after the queue's
  # back-off). The attempt counts as failed, unless +charge+ is false: *not now*
  # rather than *failed*.
  class Retry < StandardError
    attr_reader :delay, :charge

    def initialize(message = "retry", delay: nil, charge: true)
      super(message)
      @delay = delay
      @charge = charge
    end
  end

  # Raised by a job: no further attempt, the job is dead.
  class Dead < StandardError; end

  CODES = constants.map { |name| const_get(name) }
                   .select { |c| c.is_a?(Class) && c < SidecarError }
                   .map { |c| [c::CODE, c] }.to_h.freeze
  private_constant :CODES

  # error makes the exception for what a reply's error says.
  def self.error(said)
    code = said["code"].to_s
    CODES.fetch(code, Internal).new(said["message"], code: code, field: said["field"], index: said["index"], retry_ms: said["retry_ms"])
  end
end
