# Active Job tries it again twice. Then it succeeds.
class RetriedJob < ApplicationJob
  queue_as :retried
  retry_on RuntimeError, wait: 0, attempts: 5

  def perform
    note "retried"
    raise "not yet" if executions < 3
  end
end
