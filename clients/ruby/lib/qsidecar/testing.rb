# frozen_string_literal: true

require_relative "../qsidecar"

module Qsidecar
  # For unit tests of programs that enqueue: jobs run at once, without a sidecar.
  #
  #   did = Qsidecar::Testing.inline { sign_up("ada") } # enqueues as usual
  #   assert_equal [["mail", :acked]], did.map { |done| [done.job.queue, done.outcome] }
  module Testing
    # An enqueued job and its result. outcome is :acked, :retry, :snooze, :dead, :failed, or
    # :enqueued if no worker has its queue. error is the exception, result the result of the ack, options the
    # options of the enqueue as the wire has them.
    Done = Struct.new(:job, :options, :outcome, :error, :result, keyword_init: true)

    # inline runs the jobs that any Client or SQL.enqueue of this process enqueues during the block,
    # at once and in the caller's thread. The given workers run them, or all workers if none is
    # given. Delays are ignored. An exception of a job, except Retry, Snooze and Dead, is raised by
    # the enqueue (raises: false: only recorded). It returns a list of Done, and yields it.
    def self.inline(*workers, raises: true)
      inline = Inline.new(workers.empty? ? Worker.made : workers, raises)
      before = Client.inline
      Client.inline = inline
      yield inline.done
      inline.done
    ensure
      Client.inline = before
    end

    # Replaces the sidecar.
    class Inline
      attr_reader :done

      def initialize(workers, raises)
        @workers = workers
        @raises = raises
        @done = []
        @keys = {}
      end

      # enqueue runs jobs in the wire's form and returns what a Client would.
      def enqueue(jobs)
        jobs.map { |job| one(job) }
      end

      # ack, nack and extend_lease are called if a job settles itself.
      def ack(job, result: nil, enqueue: nil)
        done = of(job)
        done.outcome = :acked
        done.result = result
        enqueue && enqueue(Fields.jobs(enqueue))
      end

      def nack(job, **how)
        fields = Fields.nack(**how)
        of(job).outcome = %i[dead snooze].find { |outcome| fields[outcome] } || :failed
        of(job).error = how[:error]
        nil
      end

      def extend_lease(_job, _seconds = nil); end

      def report_progress(_job, _done, _total, _data); end

      private

      def of(job)
        @done.find { |done| done.job.equal?(job) }
      end

      def one(fields)
        known = fields[:key] && @keys[[fields[:queue], fields[:key]]]
        return repeated(known, fields) if known && (known.outcome == :enqueued || !again?(known, fields))

        done = Done.new(job: job(fields), options: fields, outcome: :enqueued)
        @done << done
        @keys[[fields[:queue], fields[:key]]] = done if fields[:key]
        worker = @workers.find { |w| w.handles?(fields[:queue]) }
        perform(worker, done) if worker
        Enqueued.new(done.job.id, false, nil)
      end

      # again? reports whether a job is stored although its key was known, because the first one has ended.
      def again?(known, fields)
        known.options[:key_until].to_s == "start" || replaces?(fields)
      end

      def replaces?(fields)
        %w[replace debounce].include?(fields[:on_conflict].to_s)
      end

      def repeated(known, fields)
        return Enqueued.new(known.job.id, true, known.outcome == :enqueued ? "ready" : "deleted") unless replaces?(fields)

        known.options = fields
        known.job = job(fields, known.job.fence)
        Enqueued.new(known.job.id, false, "ready", "replaced")
      end

      def job(fields, number = @done.size + 1)
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
        when Snooze then :snooze
        when Dead then :dead
        else :failed
        end
      end
    end
  end
end
