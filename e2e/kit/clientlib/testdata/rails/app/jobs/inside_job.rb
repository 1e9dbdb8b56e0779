# It runs in the executor of the application, and has the id of its qsidecar job.
class InsideJob < ApplicationJob
  queue_as :inside

  def perform
    note "executor:#{Rails.application.executor.active?} id:#{provider_job_id.to_i.positive?}"
  end
end
