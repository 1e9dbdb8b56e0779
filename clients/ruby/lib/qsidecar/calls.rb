# frozen_string_literal: true

module Qsidecar
  # One request that waits for its reply. The session's lock guards it.
  class Call
    # Operations that must not be sent resent.
    ONCE = %w[reclaim change_schedule bye].freeze

    # How often a call asks whether its caller's time is over, in seconds.
    CHECK = 0.2

    attr_reader :op, :fields, :ends, :only, :claimed, :wake, :on_done, :over
    attr_accessor :id, :state, :reply, :error, :resent, :abandoned

    # ends: the end of the caller's time, by Connection.now (nil: no limit). wait_ends: the end of a
    # claim's own wait. resent: an earlier request may have been carried out. only: the only
    # connection to send it on (nil: any). claimed: a list to which the jobs of a settle's claim are
    # added, also if the settle failed. on_done: called when it is done, under the session's lock. No
    # thread waits for such a call. over: called for whether the caller's time is over, also before ends.
    def initialize(op, fields, ends: nil, wait_ends: nil, resent: false, only: nil, claimed: nil, on_done: nil, over: nil)
      @op = op
      @fields = fields
      @ends = ends
      @wait_ends = wait_ends
      @resent = resent
      @only = only
      @claimed = claimed
      @on_done = on_done
      @over = over
      @wake = ConditionVariable.new
      @state = :queued # then :sent, then :done
      @abandoned = false # the caller no longer waits for the reply
    end

    def claim?
      @op == "claim"
    end

    def settle?
      @op == "ack" || @op == "nack"
    end

    # claim returns the fields of the claim that it is or, as a settle, carries. nil: it claims
    # nothing.
    def claim
      return @fields if claim?

      @fields[:claim] if settle?
    end

    def leases
      @fields[:leases] || [@fields[:lease]].compact
    end

    # repeatable? is whether it can be sent again although the sidecar may have carried out the
    # first one.
    def repeatable?
      return false if ONCE.include?(@op) || @only || @abandoned
      return !@fields[:key].nil? if @op == "open_batch"
      return true unless @op == "enqueue"

      (@fields[:jobs] || [@fields]).all? { |job| job[:key] }
    end

    # request returns the message. A claim that is sent again asks for the rest of its wait.
    def request
      request = { id: @id, op: @op, **@fields }
      request[:wait_ms] = [0, ((@wait_ends - Connection.now) * 1000).ceil].max if @wait_ends
      request
    end

    # largest returns the size of its largest payload or result, or nil.
    def largest
      maps = [@fields, *@fields[:jobs], *@fields[:enqueue]]
      maps.flat_map { |m| [m[:payload], m[:result]] }.compact.map(&:bytesize).max
    end
  end

  # The part of Session that runs in the callers' threads.
  module Calls
    private

    # await sends a call and waits for its reply.
    def await(call)
      @lock.synchronize do
        raise Closed, "the client is closed" if @closed

        @queued << call
      end
      follow(call)
    end

    # follow sends a queued call, waits for the reply of a call, and sends it again on the next
    # connection.
    def follow(call)
      while (link = step(call))
        transmit(call, link)
      end
      whole = true
      call.claimed&.concat(call.reply["jobs"] || []) if call.reply
      raise call.error if call.error

      call.reply
    ensure
      abandon_call(call) unless whole # its time is over, or the thread was interrupted
    end

    # step waits until the call can be sent or is done. It returns the connection to write to, or
    # nil.
    def step(call)
      @lock.synchronize do
        until call.state == :done
          break if call.state == :queued && unwanted(call)
          return ready(call) if call.state == :queued && @link

          left = call.ends && call.ends - Connection.now
          raise late(call) if (left && left <= 0) || call.over&.call

          call.wake.wait(@lock, call.over ? [left, Call::CHECK].compact.min : left)
        end
        nil
      end
    end

    # transmit_all writes calls at once. Each one that can't be encoded is done.
    def transmit_all(calls, link)
      frames = calls.map do |call|
        link.encode(call.request, call.largest)
      rescue StandardError => e
        @lock.synchronize { finish(call, error: e) }
        "".b
      end
      link.write(frames.join)
    end

    # resend sends the calls that no thread waits for, on a new connection.
    def resend(link)
      calls = @lock.synchronize { @link.equal?(link) ? @queued.select(&:on_done).each { |call| ready(call) } : [] }
      transmit_all(calls, link) unless calls.empty?
    end

    # unwanted ends a call that need not be sent any more.
    def unwanted(call)
      if call.only && call.only != @link
        finish(call, error: NotConnected.new("#{call.op}: that connection has ended"))
      elsif call.claim? && @stopping
        finish(call, reply: { "ok" => true, "jobs" => [] })
      end
    end

    # ready marks a call as sent, just before it is written.
    def ready(call)
      @queued.delete(call)
      call.id = @last_id += 1
      call.state = :sent
      @open[call.id] = call
      @link
    end

    def transmit(call, link)
      frame = link.encode(call.request, call.largest)
    rescue StandardError => e # it was not sent
      @lock.synchronize { finish(call, error: e) }
    else
      link.write(frame, call.ends) { |left| finish_frame?(call, left < frame.bytesize, left > 1) }
    end

    # finish_frame? is whether the rest of a frame is written although its caller's time is over. A
    # client that closes its connection loses its jobs. It ends a call that was not sent. (The
    # sidecar accepts a JSON line without its newline. It drops any other partial frame.)
    def finish_frame?(call, begun, unsent)
      @lock.synchronize do
        return false unless @open[call.id].equal?(call) # it is a call of an earlier connection
        return true if begun && (!@held.empty? || @open.each_value.any?(&:claim))

        call.state = :queued if unsent
        finish(call, error: late(call))
        false
      end
    end

    def late(call)
      return UnknownOutcome.new("#{call.op}: no answer in time; it may or may not have been carried out") if call.state == :sent || call.resent

      sockets = @sockets.join(" or ")
      TimedOut.new("#{@link ? "the sidecar on #{sockets} doesn't read" : "no sidecar answers on #{sockets}"}: #{call.op} was not sent in time")
    end

    # abandon_call ends a call whose caller leaves before it read the reply.
    def abandon_call(call)
      link = nil
      @lock.synchronize do
        case call.state
        when :queued then finish(call)
        when :sent
          call.abandoned = true
          link = @link if call.claim?
        when :done
          return_jobs(call.reply["jobs"]) if call.claim && call.reply && call.reply["jobs"]
        end
      end
      Thread.new { post(link, "cancel_claim", request: call.id) } if link # post can block
    end

    # post sends a request and does not wait for the reply.
    def post(link, op, **fields)
      id = @lock.synchronize { @last_id += 1 }
      link.write(link.encode({ id: id, op: op, **fields }, nil), Connection.now + Connection::STALLED)
    end

    # finish gives a call its outcome. The caller holds the lock.
    def finish(call, reply: nil, error: nil)
      return if call.state == :done

      @open.delete(call.id)
      @queued.delete(call)
      call.state = :done
      call.reply = reply
      call.error = error
      bind_unsettled(call.leases) if call.settle? && (error || reply.nil?)
      call.on_done ? call.on_done.call(call) : call.wake.signal
    end

    # requeue handles the open calls of a connection that ended: their callers repeat those that are
    # repeatable. The caller holds the lock.
    def requeue(why)
      calls = @open.values
      @open.clear
      calls.each do |call|
        if call.repeatable?
          call.state = :queued
          call.resent = true
          @queued << call
          call.wake.signal # a claim of a worker that stops is done
        else
          finish(call, error: UnknownOutcome.new("#{call.op}: no answer: #{why}; it may or may not have been carried out"))
        end
      end
    end
  end
end
