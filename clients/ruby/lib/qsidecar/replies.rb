# frozen_string_literal: true

module Qsidecar
  # The part of Session that handles the sidecar's messages. The caller holds the lock, except for
  # bind.
  module Replies
    private

    def handle(link, message)
      case message["event"]
      when nil then answer(link, message)
      when "lost" then lose(message["leases"], message["reason"])
      when "draining" then notify(:draining)
      end # other events are of a later version
    end

    def answer(link, message)
      return refuse(message["error"]) if message["id"].nil?

      call = @open[message["id"]]
      return unless call # its caller no longer waits

      error = message["ok"] ? nil : Qsidecar.error(message["error"] || {})
      @joins = message["join"] == true if call.claim
      update_leases(link, call, message, error)
      error = resent_result(call, message, error) if call.resent && call.settle?
      finish(call, reply: message, error: error)
    end

    # refuse handles an error of the whole connection, which closes. Any open request can be the
    # cause. None is repeated, because the cause would break every later connection too.
    def refuse(fields)
      return unless fields

      @open.values.each { |call| finish(call, error: Qsidecar.error(fields)) }
    end

    # resent_result converts lost leases of a settle that was sent resent to a SettledOrLost.
    def resent_result(call, reply, error)
      return SettledOrLost.new(call.op, call.leases) if error.is_a?(LeaseLost)
      return error if error || reply["lost"].nil? || reply["lost"].empty?

      SettledOrLost.new(call.op, reply["lost"])
    end

    # update_leases updates the held session leases, and creates the jobs of a claim. A settle that
    # failed can have jobs of its claim.
    def update_leases(link, call, reply, error)
      claimed(link, call, reply) if call.settle? && call.claim && reply["jobs"]
      return @held.forget(call.leases) if error.is_a?(LeaseLost)
      return if error

      case call.op
      when "claim" then claimed(link, call, reply)
      when "wait" then reply["ended"]&.each { |job| job["result"] = link.bytes(job, "result") }
      when "ack", "nack" then @held.forget(call.leases)
      when "extend" then extended(link, call, reply)
      when "bye" # the sidecar closes the connection, and the client opens no other
        @held.clear
        @closed = true
      end
    end

    def claimed(link, call, reply)
      reply["jobs"] = reply["jobs"].map do |job|
        progress = job["progress"]
        Job.new(@client, job, link.bytes(job, "payload"), progress && Progress.of(progress, link.bytes(progress, "data")))
      end
      if call.abandoned
        return_jobs(reply["jobs"])
      elsif call.claim[:lease_ms].nil?
        reply["jobs"].each { |job| @held.hold(job, link.number) }
      end
    end

    def extended(link, call, reply)
      if call.only # the session's own extend after a reconnect
        lose(reply["lost"])
        @held.bound(call.leases, link.number)
      elsif call.fields[:lease_ms] # timed leases from now on
        @held.forget(call.leases)
      else
        @held.forget(reply["lost"])
      end
    end

    # lose reports lost leases to the program.
    def lose(leases, reason = nil)
      @held.lose(leases).each do |job|
        job.lost!(reason)
        notify(:lost, job)
      end
    end

    # notify calls the program in another thread, because the reader must not wait for it.
    def notify(*what)
      Thread.new { @notifying.synchronize { @notify.call(*what) } }
    end

    # return_jobs returns the jobs of an abandoned claim.
    def return_jobs(jobs)
      return if jobs.empty?

      @held.forget(jobs.map(&:lease))
      Thread.new do
        call("nack", { leases: jobs.map(&:lease), snooze: true, delay_ms: 0 }, ends: Connection.now + 60)
      rescue Error
        nil # the sidecar takes them back when the connection closes
      end
    end

    # bind binds the held leases to this connection, until all are bound or it ends. It continues
    # after errors: a job must not be lost because the database is unavailable for a moment.
    def bind(link)
      tries = 0
      until (leases = to_bind(link)).empty?
        begin
          call("extend", { leases: leases, bind: true }, only: link)
          tries = 0
        rescue SidecarError => e
          pause(e.retry_ms ? e.retry_ms / 1000.0 : Session.backoff(tries += 1))
        end
      end
    rescue Error
      nil # the client is closed, or the next connection binds them
    end

    # to_bind returns leases to bind, without those of a settle under way: a bind after it would find them lost.
    def to_bind(link)
      @lock.synchronize do
        settling = (@open.values + @queued).select(&:settle?).flat_map(&:leases)
        leases = @link.equal?(link) ? (@held.unbound(link.number) - settling).first(HeldLeases::MAX_LIST) : []
        @binding = link unless leases.empty?
        @binding = nil if leases.empty? && @link.equal?(link)
        leases
      end
    end

    # bind_unsettled binds leases whose settle failed. The caller holds the lock.
    def bind_unsettled(leases)
      link = @link
      return if link.nil? || @binding.equal?(link) || @held.bound?(leases, link.number)

      @binding = link
      Thread.new { bind(link) }
    end

    def unbound(link)
      @lock.synchronize { @link.equal?(link) ? @held.unbound(link.number) : [] }
    end
  end
end
