# frozen_string_literal: true

module Qsidecar
  # A batch, and how many of its jobs were done and failed if it has ended. state is "open", "closed", "ended",
  # "cancelling" or "cancelled". callback is the id of the callback's job, or nil if it isn't stored.
  EndedBatch = Struct.new(:id, :state, :done, :failed, :callback)

  # A batch of jobs, which Client#batch opened: when they have ended, one more job is stored, the callback.
  class Batch
    # The batch's id.
    attr_reader :id

    def initialize(client, queue, id)
      @client = client
      @queue = queue
      @id = id
    end

    # enqueue stores a job of the batch. The arguments are those of Client#enqueue.
    def enqueue(queue, payload, **options)
      @client.enqueue(queue, payload, batch: @id, **options)
    end

    # enqueue_many stores 1 to 1000 jobs of the batch, all or none. See Client#enqueue_many.
    def enqueue_many(jobs, **options)
      @client.enqueue_many(jobs.map { |job| { **job, batch: @id } }, **options)
    end

    # close closes the batch: it ends when its jobs have ended. A second call does nothing.
    def close
      @client.request("close_batch", queue: @queue, batch: @id)
      nil
    end

    # cancel cancels the jobs of the batch, which ends without its callback. It returns how many jobs.
    def cancel
      @client.request("cancel_batch", queue: @queue, batch: @id)["count"]
    end

    # wait waits until the batch has ended, for that many seconds, and returns it as an EndedBatch, also if
    # the time is over. An EndedBatch has id, state, done, failed and callback.
    def wait(wait = 60)
      @client.wait_for_batch(@queue, @id, wait)
    end
  end
end
