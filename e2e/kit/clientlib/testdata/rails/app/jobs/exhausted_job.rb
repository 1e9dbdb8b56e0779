# Active Job tries it twice, and then gives up. The queue tries it once more.
class ExhaustedJob < ApplicationJob
  queue_as :failing
  retry_on RuntimeError, wait: 0, attempts: 2

  def perform
    note "exhausted"
    raise "never"
  end
end
