# frozen_string_literal: true

require "active_job"
require "active_support/core_ext/class/subclasses"
require_relative "library"

module Qsidecar
  # Runs the jobs of Active Job. `qsidecar-work --rails` uses it.
  #
  #   worker = Qsidecar::ActiveJobWorker.new
  #   worker.job("thumbnails") { |job| … } # jobs of other producers, too
  #   worker.run(concurrency: 5)
  #
  # Active Job runs a job in the reloader and executor of the Rails application, and handles the errors of
  # retry_on and discard_on. Any other error is a failed attempt. The result of a job is ignored.
  class ActiveJobWorker < Worker
    # queues lists the queues of all job classes. In a Rails application it loads them first. A queue that is only
    # named in an enqueue, or in a block of queue_as that needs the arguments, is not among them.
    def self.queues
      ::Rails.application.eager_load! if defined?(::Rails.application) && ::Rails.application
      classes = [::ActiveJob::Base, *::ActiveJob::Base.descendants]
      names = classes.map { |job| queue_of(job) }
      names << (::ActionMailer::Base.deliver_later_queue_name || ::ActiveJob::Base.default_queue_name) if defined?(::ActionMailer::Base)
      names.compact.map(&:to_s).uniq
    end

    # concurrency is how many jobs have a database connection: the size of Active Record's pool, or 8 without it.
    def self.concurrency
      defined?(::ActiveRecord::Base) ? ::ActiveRecord::Base.connection_pool.size.clamp(1, 256) : 8
    end

    # The queues are those to work, by default the queues of all job classes. The options are those of Worker.
    def initialize(*queues, **options)
      super(**options)
      known = ActiveJobWorker.queues
      unknown = queues.map(&:to_s) - known
      unless unknown.empty?
        log(:warn, "no job class has the queue #{unknown.join(", ")}, only #{known.join(", ")}; if it isn't misspelt, its jobs name it in set(queue: …)")
      end
      queues = known if queues.empty?
      queues.each { |queue| job(queue) { |job| execute(job) } }
    end

    # queue_of returns the queue of a job without arguments, or nil if it needs them.
    def self.queue_of(job)
      job.new.queue_name
    rescue StandardError
      nil
    end
    private_class_method :queue_of

    private

    def execute(job)
      ::ActiveJob::Base.execute(job.payload.merge("provider_job_id" => job.id))
      nil
    end
  end
end
