# frozen_string_literal: true

require_relative "../qsidecar"

module Qsidecar
  # For the unit tests of programs that enqueue: jobs are done at once, without a sidecar.
  #
  #   did = Qsidecar::Testing.inline { sign_up("ada") } # enqueues as ever
  #   assert_equal [["mail", :acked]], did.map { |done| [done.job.queue, done.outcome] }
  module Testing
    # A job that was enqueued, and what became of it: outcome is :acked, :retry, :dead,
    # :failed, or :enqueued where no worker has its queue; error what was raised; result what
    # the job was acked with; options what it was enqueued with, as the wire has it.
    Done = Struct.new(:job, :options, :outcome, :error, :result, keyword_init: true)

    # inline has what any Client or SQL.enqueue of this process enqueues while the block runs
    # done at once, in the caller's thread: by the workers named, or by any that there is.
    # A delay is not waited for. What a job raises comes out of the enqueue, but Retry
    # and Dead; with raises: false it is noted only. Gives a list of Done, and yields it.
    def self.inline(*workers, raises: true)
      inline = Inline.new(workers.empty? ? Worker.made : workers, raises)
      before = Client.inline
      Client.inline = inline
      yield inline.done
      inline.done
    ensure
      Client.inline = before
    end

    # The stand-in for the sidecar.
    class Inline
      attr_reader :done

      def initialize(workers, raises)
        @workers = workers
        @raises = raises
        @done = []
        @keys = {}
      end

      # enqueue does jobs as the wire has them, and gives what a Client would.
      def enqueue(jobs)
        jobs.map { |job| one(job) }
      end

      # ack, nack and extend_lease are what a job does by itself.
      def ack(job, result: nil, enqueue: nil)
        done = of(job)
        done.outcome = :acked
        done.result = result
        enqueue && enqueue(enqueue.map { |more| Fields.job(**more) })
      end

      def nack(job, error: nil, dead: false, **)
        of(job).outcome = dead ? :dead : :failed
        of(job).error = error
        nil
      end

      def extend_lease(_job, _seconds = nil); end

      private

      def of(job)
        @done.find { |done| done.job.equal?(job) }
      end

      def one(fields)
        known = fields[:key] && @keys[[fields[:queue], fields[:key]]]
        return Enqueued.new(known.job.id, true, known.outcome == :enqueued ? "ready" : "deleted") if known

        done = Done.new(job: job(fields), options: fields, outcome: :enqueued)
        @done << done
        @keys[[fields[:queue], fields[:key]]] = done if fields[:key]
        worker = @workers.find { |w| w.handles?(fields[:queue]) }
        perform(worker, done) if worker
        Enqueued.new(done.job.id, false, nil)
      end

      def job(fields)
        number = @done.size + 1
        Job.new(self, {
          "id" => "inline-#{number}", "queue" => fields[:queue], "lease" => "inline.#{number}", "attempt" => 1,
          "max_attempts" => fields[:max_attempts] || 20, "fence" => number, "priority" => fields[:priority] || 0,
          "enqueued_at" => (Time.now.to_r * 1000).to_i, "headers" => fields[:headers], "key" => fields[:key],
          "timeout_ms" => fields[:timeout_ms]
        }, fields[:payload])
      end

      def perform(worker, done)
        error = worker.perform(done.job)
        done.error = error if error
        done.outcome = outcome(error) unless done.job.settled?
        raise error if error && @raises && done.outcome == :failed
      end

      def outcome(error)
        case error
        when nil then :acked
        when Retry then :retry
        when Dead then :dead
        else :failed
        end
      end
    end
  end
end
