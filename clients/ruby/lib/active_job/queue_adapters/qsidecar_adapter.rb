# frozen_string_literal: true

require "active_job"
require "qsidecar"

module ActiveJob
  module QueueAdapters
    # Stores the jobs of Active Job in the sidecar of this host, in the form that Active Job serializes them to.
    # Set it with
    #
    #   config.active_job.queue_adapter = :qsidecar
    #
    # Qsidecar::ActiveJobWorker runs them.
    class QsidecarAdapter < (defined?(AbstractAdapter) ? AbstractAdapter : Object)
      # Limits of one request of enqueue_all. The jobs' bytes stay well below max_frame.
      BATCH_JOBS = 1000
      BATCH_BYTES = 1 << 20

      # Errors of a job, not of the sidecar: other jobs of the same request can be stored.
      REJECTED = [Qsidecar::BadRequest, Qsidecar::Forbidden, Qsidecar::TooLarge, Qsidecar::UnknownQueue, Qsidecar::Unsupported].freeze

      # The range of qsidecar, with the opposite sign.
      PRIORITIES = (-32_767..32_768).freeze
      private_constant :BATCH_JOBS, :BATCH_BYTES, :REJECTED, :PRIORITIES

      # The options are those of Qsidecar::Client.
      def initialize(**options)
        super()
        @client = Qsidecar::Client.new(**options)
      end

      # enqueue stores a job and sets its provider_job_id. It raises the errors of Qsidecar::Client#enqueue.
      def enqueue(job)
        enqueue_at(job, nil)
      end

      # enqueue_at stores a job that runs at a time, in seconds since 1970.
      def enqueue_at(job, timestamp)
        fields = fields(job, timestamp)
        job.provider_job_id = @client.enqueue(fields.delete(:queue), fields.delete(:payload), **fields).id
      end

      # enqueue_all stores the jobs of perform_all_later, up to 1000 in one request, and returns their number. A job that
      # the sidecar rejects has an enqueue_error, and the others are stored. If the sidecar can't be
      # reached, the remaining jobs have an enqueue_error, and enqueue_all raises it.
      def enqueue_all(jobs)
        jobs.each { |job| job.successfully_enqueued = false }
        all = jobs.filter_map do |job|
          [job, fields(job, job.scheduled_at&.to_f)]
        rescue Qsidecar::BadRequest => e
          job.enqueue_error = enqueue_error(e)
          nil
        end
        batches(all).each { |batch| store(batch) }
        jobs.count(&:successfully_enqueued?)
      rescue Qsidecar::Error => e
        jobs.each { |job| job.enqueue_error ||= enqueue_error(e) unless job.successfully_enqueued? }
        raise
      end

      # enqueue_after_transaction_commit? makes Active Job (7.2) wait for the commit of an open
      # transaction. The sidecar stores a job in its own transaction, so a worker could be faster.
      def enqueue_after_transaction_commit?
        true
      end

      # stopping? is whether the worker of this process was stopped. Active Job (8.1) then interrupts jobs with steps.
      # Versions after 8.1 pass the job.
      def stopping?(_job = nil)
        Qsidecar::Worker.made.any?(&:stopping?)
      end

      private

      # fields returns the arguments of Client#enqueue. In Active Job a lower priority comes first.
      #
      # The key makes a repeated enqueue safe. A retry by Active Job has the job_id of the job that it replaces, and is
      # enqueued before that one is acked. It differs in provider_job_id, which is the one of the job that runs. If that job
      # is delivered again, its retry is stored once.
      def fields(job, timestamp)
        fields = { queue: job.queue_name, payload: payload(job), raw: true,
                   key: [job.job_id, job.provider_job_id, job.executions].join("/") }
        fields[:priority] = priority(job.priority) if job.priority
        fields[:run_at] = timestamp if timestamp
        fields
      end

      def payload(job)
        JSON.generate(job.serialize)
      rescue JSON::JSONError, EncodingError => e
        raise Qsidecar::BadRequest, "an argument of #{job.class} can't be JSON (encode bytes, with Base64 for example): #{e.message}"
      end

      # priority returns a priority of qsidecar. Its own error would name the range of the opposite sign.
      def priority(priority)
        return -priority if PRIORITIES.cover?(priority)

        raise Qsidecar::BadRequest, "priority #{priority} is out of range: #{PRIORITIES.begin} to #{PRIORITIES.end}"
      end

      # batches divides the jobs into requests.
      def batches(all)
        number = size = 0
        all.chunk_while do |(_, fields), (_, following)|
          number += 1
          size += fields[:payload].bytesize
          fits = number < BATCH_JOBS && size + following[:payload].bytesize <= BATCH_BYTES
          number = size = 0 unless fits
          fits
        end
      end

      # store stores the jobs of one request, all or none. If it is rejected, it halves them, to find the job
      # that is the cause.
      def store(batch)
        @client.enqueue_many(batch.map(&:last)).zip(batch) do |enqueued, (job, _)|
          job.provider_job_id = enqueued.id
          job.successfully_enqueued = true
        end
      rescue *REJECTED => e
        return batch[0][0].enqueue_error = enqueue_error(e) if batch.size == 1

        batch.each_slice((batch.size / 2.0).ceil) { |half| store(half) }
      end

      def enqueue_error(error)
        EnqueueError.new("#{error.class}: #{error.message.sub(/\Ajobs\[\d+\]: /, "")}") # the number is that in a request, not in the list
      end
    end
  end
end
