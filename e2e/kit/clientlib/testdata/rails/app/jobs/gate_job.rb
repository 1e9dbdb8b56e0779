# It runs until the worker gets the signal to stop, or until the gate opens. If the worker stops, the job is enqueued
# again and continues in the next worker, as a job with steps does in Rails 8.1.
class GateJob < ApplicationJob
  queue_as :gate

  def perform(until_stopped)
    return note("continued") if executions > 1

    note "begun"
    if until_stopped
      Thread.pass until queue_adapter.stopping? # as Rails 8.1 calls it
      raise "not stopping" unless queue_adapter.stopping?(self) # as later versions do
      retry_job
    else
      File.open(ENV.fetch("WORKER_GATE")).close
    end
    note "ended"
  end
end
