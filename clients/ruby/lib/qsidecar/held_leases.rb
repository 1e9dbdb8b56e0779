# frozen_string_literal: true

module Qsidecar
  # The session leases that a client holds. The session's lock guards it.
  class HeldLeases
    # The largest number of leases in one extend.
    MAX_LIST = 1000

    Entry = Struct.new(:job, :link, :settling)

    def initialize
      @entries = {}
    end

    def empty?
      @entries.empty?
    end

    def clear
      @entries.clear
    end

    # hold adds a job that was claimed on that connection.
    def hold(job, link)
      @entries[job.lease] = Entry.new(job, link, 0)
    end

    def forget(leases)
      leases.each { |lease| @entries.delete(lease) }
    end

    # settling counts settles in progress. The reply to a settle reports a lease that is lost in the
    # meantime.
    def settling(leases, by)
      leases.each do |lease|
        entry = @entries[lease]
        entry.settling += by if entry
      end
    end

    # lose removes lost leases and returns their jobs, except those that are being settled.
    def lose(leases)
      lost = leases.map { |lease| @entries.delete(lease) }.compact
      lost.select { |entry| entry.settling.zero? }.map(&:job)
    end

    def bound(leases, link)
      leases.each do |lease|
        entry = @entries[lease]
        entry.link = link if entry
      end
    end

    # idle returns the leases that are not being settled.
    def idle
      @entries.select { |_, entry| entry.settling.zero? }.keys
    end

    # bound? is whether the connection has those of the leases that are held.
    def bound?(leases, link)
      leases.all? { |lease| !@entries.key?(lease) || @entries[lease].link == link }
    end

    # unbound returns the leases that are not known to be bound to that connection.
    def unbound(link)
      @entries.reject { |_, entry| entry.link == link }.keys
    end
  end
end
