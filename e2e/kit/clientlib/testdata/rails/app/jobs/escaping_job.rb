class EscapingJob < ApplicationJob
  queue_as :failing

  def perform
    note "escaping"
    raise "no such address"
  end
end
