# frozen_string_literal: true

module Qsidecar
  # What the messages of a sidecar do: a part of Session. The lock is held, but in bind.
  module Replies
    private

    def take(link, message)
      case message["event"]
      when nil then answer(link, message)
      when "lost" then drop(message["leases"])
      when "draining" then tell(:draining)
      end # another is a later version's
    end

    def answer(link, message)
      return refuse(message["error"]) if message["id"].nil?

      call = @open[message["id"]]
      return unless call # nobody waits for it

      error = message["ok"] ? nil : Qsidecar.error(message["error"] || {})
      account(link, call, message, error)
      error = second_try(call, message, error) if call.twice && call.settle?
      finish(call, reply: message, error: error)
    end

    # refuse is for an error of the whole connection, which closes now. It may be about
    # any of the open requests: none is sent again, lest the guilty one break every
    # connection to come.
    def refuse(said)
      return unless said

      @open.values.each { |call| finish(call, error: Qsidecar.error(said)) }
    end

    # second_try turns what a settle that was sent twice calls lost into what it is.
    def second_try(call, reply, error)
      return SettledOrLost.new(call.op, call.leases) if error.is_a?(LeaseLost)
      return error if error || reply["lost"].nil? || reply["lost"].empty?

      SettledOrLost.new(call.op, reply["lost"])
    end

    # account keeps the book of session leases, and makes the jobs of a claim.
    def account(link, call, reply, error)
      return @held.forget(call.leases) if error.is_a?(LeaseLost)
      return if error

      case call.op
      when "claim" then claimed(link, call, reply)
      when "ack", "nack" then @held.forget(call.leases)
      when "extend" then extended(link, call, reply)
      when "bye" then @held.clear
      end
    end

    def claimed(link, call, reply)
      reply["jobs"] = reply["jobs"].map { |job| Job.new(@client, job, link.bytes(job, "payload")) }
      if call.abandoned
        give_back(reply["jobs"])
      elsif call.fields[:lease_ms].nil?
        reply["jobs"].each { |job| @held.hold(job, link.number) }
      end
    end

    def extended(link, call, reply)
      if call.only # a bind, after a reconnect
        drop(reply["lost"])
        @held.bound(call.leases, link.number)
      elsif call.fields[:lease_ms] # timed from now on
        @held.forget(call.leases)
      else
        @held.forget(reply["lost"])
      end
    end

    # drop tells the program of leases that are lost.
    def drop(leases)
      @held.drop(leases).each do |job|
        job.lost!
        tell(:lost, job)
      end
    end

    # tell calls the program beside the reader, which must not wait for it.
    def tell(*what)
      Thread.new { @telling.synchronize { @tell.call(*what) } }
    end

    # give_back returns jobs that came for a claim nobody waits for.
    def give_back(jobs)
      return if jobs.empty?

      @held.forget(jobs.map(&:lease))
      Thread.new do
        call("nack", { leases: jobs.map(&:lease), charge: false, delay_ms: 0 }, ends: Link.now + 60)
      rescue Error
        nil # they go back with the connection
      end
    end

    # bind makes the leases held this connection's, until all are or it has ended. It
    # outlives errors: a database that is away for a moment must not cost a job.
    def bind(link)
      tries = 0
      until (leases = unbound(link)).empty?
        begin
          call("extend", { leases: leases, bind: true }, only: link)
          tries = 0
        rescue SidecarError => e
          rest(e.retry_ms ? e.retry_ms / 1000.0 : Session.backoff(tries += 1))
        end
      end
    rescue Error
      nil # closed, or the next connection binds anew
    end

    def unbound(link)
      @lock.synchronize { @link.equal?(link) ? @held.unbound(link.number) : [] }
    end
  end
end
