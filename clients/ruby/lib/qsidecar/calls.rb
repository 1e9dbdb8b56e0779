# frozen_string_literal: true

module Qsidecar
  # One request on its way to an answer. The session's lock guards it.
  class Call
    # What may not be carried out twice.
    ONCE = %w[release bye].freeze

    attr_reader :op, :fields, :ends, :only, :wake
    attr_accessor :id, :state, :reply, :error, :twice, :abandoned

    # ends: when its caller's patience is over, by Link.now (nil: never). wait_ends:
    # when a claim's wait is over. twice: an earlier try may have been carried out.
    # only: the link that it is for (nil: whichever is there).
    def initialize(op, fields, ends: nil, wait_ends: nil, twice: false, only: nil)
      @op = op
      @fields = fields
      @ends = ends
      @wait_ends = wait_ends
      @twice = twice
      @only = only
      @wake = ConditionVariable.new
      @state = :queued # then :sent, then :done
      @abandoned = false # nobody waits for the answer
    end

    def claim?
      @op == "claim"
    end

    def settle?
      @op == "ack" || @op == "nack"
    end

    def leases
      @fields[:leases] || [@fields[:lease]].compact
    end

    # repeatable? is whether it may be sent again although an earlier try may have
    # been carried out.
    def repeatable?
      return false if ONCE.include?(@op) || @only || @abandoned
      return true unless @op == "enqueue"

      (@fields[:jobs] || [@fields]).all? { |job| job[:key] }
    end

    # request is what goes over the wire: a claim asks for what is left of its wait.
    def request
      request = { id: @id, op: @op, **@fields }
      request[:wait_ms] = [0, ((@wait_ends - Link.now) * 1000).ceil].max if @wait_ends
      request
    end

    # largest is the size of its largest payload or result; nil: none.
    def largest
      maps = [@fields, *@fields[:jobs], *@fields[:enqueue]]
      maps.flat_map { |m| [m[:payload], m[:result]] }.compact.map(&:bytesize).max
    end
  end

  # What a caller's thread does for its call: a part of Session.
  module Calls
    private

    # await sees a call through.
    def await(call)
      @lock.synchronize do
        raise Closed, "the client is closed" if @closed && call.op != "bye"

        @queued << call
      end
      while (link = step(call))
        transmit(call, link)
      end
      whole = true
      raise call.error if call.error

      call.reply
    ensure
      leave(call) unless whole # its patience is over, or the thread was interrupted
    end

    # step waits until there is something to do: it gives the link to write the
    # call to, or nil where the call is done.
    def step(call)
      @lock.synchronize do
        until call.state == :done
          return ready(call) if call.state == :queued && @link && !unwanted(call)

          left = call.ends && call.ends - Link.now
          raise late(call) if left && left <= 0

          call.wake.wait(@lock, left) unless call.state == :done
        end
        nil
      end
    end

    # unwanted ends a call that is not to be sent any more.
    def unwanted(call)
      if call.only && call.only != @link
        finish(call, error: NotConnected.new("#{call.op}: that connection is gone"))
      elsif call.claim? && @stopping
        finish(call, reply: { "ok" => true, "jobs" => [] })
      end
    end

    # ready enters a call as sent, just before it is.
    def ready(call)
      @queued.delete(call)
      call.id = @last_id += 1
      call.state = :sent
      @open[call.id] = call
      @link
    end

    def transmit(call, link)
      frame = link.encode(call.request, call.largest)
    rescue StandardError => e # not sent
      @lock.synchronize { finish(call, error: e) }
    else
      link.write(frame, call.ends) { |left| goes_on?(call, left < frame.bytesize, left > 1) }
    end

    # goes_on? is whether the rest of a frame is written although its caller's time is over: a
    # client that ends its connection loses what it holds. A call that was not sent is ended. (The
    # sidecar takes a JSON line without its newline too. It drops other halves of a frame.)
    def goes_on?(call, begun, unsent)
      @lock.synchronize do
        return false unless @open[call.id].equal?(call) # it is of an earlier connection
        return true if begun && (!@held.empty? || @open.each_value.any?(&:claim?))

        call.state = :queued if unsent
        finish(call, error: late(call))
        false
      end
    end

    def late(call)
      return UnknownOutcome.new("#{call.op}: no answer in time; it may have been carried out and may not") if call.state == :sent || call.twice

      TimedOut.new("#{call.op}: not sent: there was no connection to the sidecar in time")
    end

    # leave is for a caller that goes before its answer is there, or is read.
    def leave(call)
      link = nil
      @lock.synchronize do
        case call.state
        when :queued then finish(call)
        when :sent
          call.abandoned = true
          link = @link if call.claim?
        when :done
          give_back(call.reply["jobs"]) if call.claim? && call.reply && call.reply["jobs"]
        end
      end
      Thread.new { post(link, "cancel", request: call.id) } if link # which may have to wait
    end

    # post sends a request whose answer nobody waits for.
    def post(link, op, **fields)
      id = @lock.synchronize { @last_id += 1 }
      link.write(link.encode({ id: id, op: op, **fields }, nil), Link.now + Link::STALLED)
    end

    # finish gives a call its outcome. The lock is held.
    def finish(call, reply: nil, error: nil)
      return if call.state == :done

      @open.delete(call.id)
      @queued.delete(call)
      call.state = :done
      call.reply = reply
      call.error = error
      call.wake.signal
    end

    # requeue sorts the open calls of a connection that ended: the callers send those
    # again that may be. The lock is held.
    def requeue(why)
      calls = @open.values
      @open.clear
      calls.each do |call|
        if call.repeatable?
          call.state = :queued
          call.twice = true
          @queued << call
        else
          finish(call, error: UnknownOutcome.new("#{call.op}: no answer: #{why}; it may have been carried out and may not"))
        end
      end
    end
  end
end
