class OrderJob < ApplicationJob
  queue_as { :orders }
  discard_on(ActiveJob::DeserializationError) { |job, _| job.note "gone" }

  def perform(order)
    note order.item
  end
end
