# It ends after the first attempt, without the attempts of the queue.
class FinalJob < ApplicationJob
  queue_as :failing
  retry_on(RuntimeError, attempts: 1) { |_, error| raise Qsidecar::Dead, error.message }

  def perform
    note "final"
    raise "no more"
  end
end
