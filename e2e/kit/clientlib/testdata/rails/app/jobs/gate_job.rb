# It runs until the worker gets the signal to stop, or until the gate opens.
class GateJob < ApplicationJob
  queue_as :gate

  def perform(until_stopped)
    note "begun"
    if until_stopped
      Thread.pass until queue_adapter.stopping?
    else
      File.open(ENV.fetch("WORKER_GATE")).close
    end
    note "ended"
  end
end
