Rails.application.configure do
  # config.active_job.queue_adapter = :resque
  config.active_job.queue_adapter = :solid_queue
end
