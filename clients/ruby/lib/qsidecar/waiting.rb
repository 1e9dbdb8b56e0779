# frozen_string_literal: true

module Qsidecar
  # How a job ended. state is "done", "dead", or "deleted": the queue has no such job, or not any more. A
  # deleted job can have been done. raw is the bytes of its result, or nil, last_error the message of its
  # last failed attempt, or nil.
  EndedJob = Struct.new(:id, :state, :raw, :last_error) do
    # result parses the result as JSON. It is nil if there is none.
    def result
      raw && !raw.empty? ? JSON.parse(raw.dup.force_encoding(Encoding::UTF_8)) : nil
    end
  end

  # A job that a call waited for is dead, or gone without a result. job is an EndedJob.
  class JobFailed < Error
    attr_reader :job

    def initialize(queue, job)
      @job = job
      why = job.state == "dead" ? "is dead: #{job.last_error || "no attempt has an error"}" : GONE
      super("job #{job.id} of #{queue} #{why}")
    end

    GONE = "is gone: it was removed, or it ended through another sidecar and its queue keeps no done jobs (retention)"
    private_constant :GONE
  end

  # A job had not ended when the time of the call was over. It goes on. job is what its enqueue returned.
  class NotEnded < Error
    attr_reader :job

    def initialize(queue, job, wait)
      @job = job
      super("job #{job.id} of #{queue} has not ended within #{wait} s")
    end
  end

  # The waits of a Client.
  module Waiting
    # How long one request waits, in seconds. The sidecar queries the jobs by their ids when a request begins.
    PART = 60

    # How long a call keeps its done job, in seconds: the ends of another sidecar's jobs are found within two, and a sidecar can restart.
    RETAIN = 60
    private_constant :PART, :RETAIN

    # wait waits until the jobs have ended, or with any: true one of them, and returns those that have as a
    # list of EndedJobs, also if the time (wait, in seconds) is over. A job that its queue doesn't keep has a
    # result only if it ended through this client's sidecar.
    def wait(queue, *ids, any: false, wait: 60)
      Fields.ms(:wait, wait)
      ends = Connection.now + wait
      left = ids.flatten.map { |id| Codec.text(id) }.uniq
      ended = []
      loop do
        part = [PART, [0, ends - Connection.now].max].min
        some = ended_part(queue, left, any, part)
        ended.concat(some)
        left -= some.map(&:id)
        # with some, others possibly didn't fit the reply
        return ended if left.empty? || (any && !ended.empty?) || (some.empty? && part.zero?)
      end
    end

    # call stores a job, waits until it has ended, and returns its result. options are those of enqueue. The
    # done job is kept for a minute at least (retain), so that its result also arrives from another host. It
    # raises JobFailed if the job is dead or gone, and NotEnded if it has not ended after wait seconds.
    def call(queue, payload, wait: 60, **options)
      job = begin
        enqueue(queue, payload, retain: RETAIN, **options)
      rescue Unsupported
        raise if options.key?(:retain)

        enqueue(queue, payload, **options) # its result only arrives if it ends through this client's sidecar
      end
      ended = self.wait(queue, job.id, wait: wait).first
      raise NotEnded.new(queue, job, wait) unless ended
      raise JobFailed.new(queue, ended) unless ended.state == "done"

      ended.result
    end

    # job returns the job with an id, of any queue, as a Hash with String keys, as peek shows it (PROTOCOL.md).
    # nil: there is none.
    def job(id)
      send_request("peek", { ids: [Codec.text(id)] })["jobs"].first
    end

    def wait_for_batch(queue, id, wait) # :nodoc:
      Fields.ms(:wait, wait)
      ends = Connection.now + wait
      loop do
        part = [PART, [0, ends - Connection.now].max].min
        b = send_request("wait", { queue: queue, batch: id }, wait: part)["batch"]
        ended = EndedBatch.new(id, b["state"], b["done"] || 0, b["failed"] || 0, b["callback"])
        return ended if %w[ended cancelled].include?(ended.state) || part.zero?
      end
    end

    private

    def ended_part(queue, ids, any, part)
      reply = send_request("wait", { queue: Codec.text(queue), ids: ids, mode: any ? "any" : "all" }, wait: part)
      reply["ended"].map { |e| EndedJob.new(e["id"], e["state"], e["result"], e["last_error"]) }
    end
  end
end
