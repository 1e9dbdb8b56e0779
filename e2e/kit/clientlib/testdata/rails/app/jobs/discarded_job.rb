class DiscardedJob < ApplicationJob
  queue_as :failing
  discard_on RuntimeError

  def perform
    note "discarded"
    raise "not worth it"
  end
end
