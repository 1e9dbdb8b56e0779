# frozen_string_literal: true

module Qsidecar
  # The book of the session leases that a client holds. The session's lock guards it.
  class Held
    # What a bind takes at most.
    MOST = 1000

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

    # hold enters a job that was claimed on that connection.
    def hold(job, link)
      @entries[job.lease] = Entry.new(job, link, 0)
    end

    def forget(leases)
      leases.each { |lease| @entries.delete(lease) }
    end

    # settling counts the settles under way: a lease that is lost meanwhile is told by
    # the settle's own answer.
    def settling(leases, by)
      leases.each do |lease|
        entry = @entries[lease]
        entry.settling += by if entry
      end
    end

    # drop forgets lost leases, and gives those jobs of them that nobody is settling.
    def drop(leases)
      dropped = leases.map { |lease| @entries.delete(lease) }.compact
      dropped.select { |entry| entry.settling.zero? }.map(&:job)
    end

    def bound(leases, link)
      leases.each do |lease|
        entry = @entries[lease]
        entry.link = link if entry
      end
    end

    # unbound are leases that are not known to be bound to that connection.
    def unbound(link)
      @entries.each_with_object([]) do |(lease, entry), out|
        out << lease if entry.link != link && out.size < MOST
      end
    end
  end
end
