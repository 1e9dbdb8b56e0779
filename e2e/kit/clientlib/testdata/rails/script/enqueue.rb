# Enqueues in all ways of Active Job, and prints what the test compares.
require "qsidecar/sql"

ActiveRecord::Base.connection.create_table(:orders) { |t| t.string :item }

NoteJob.perform_later("later")
InsideJob.perform_later
NoteJob.set(wait_until: 1.hour.from_now).perform_later("tomorrow")
{ "last" => 20, "middle" => nil, "first" => -5 }.each { |text, priority| NoteJob.set(queue: "ordered", priority: priority).perform_later(text) }
OrderJob.perform_later(Order.create!(item: "lamp"))
Order.create!(item: "deleted").tap { |order| OrderJob.perform_later(order) }.destroy!
[RetriedJob, ExhaustedJob, DiscardedJob, EscapingJob, FinalJob].each(&:perform_later)
WelcomeMailer.welcome("ada").deliver_later

# By an INSERT in a transaction of the application, which uses the database of the sidecar.
Order.transaction { Qsidecar::SQL.enqueue(Order.connection, "default", NoteJob.new("inserted").serialize) }
Order.transaction do
  Qsidecar::SQL.enqueue(Order.connection, "default", NoteJob.new("rolled back").serialize)
  raise ActiveRecord::Rollback
end

# An object that is enqueued twice is two jobs.
twice = NoteJob.new("twice")
2.times { twice.enqueue }

# A job whose delivery is repeated has one retry.
once = RetriedJob.new.tap { |job| job.queue_name = "once" }
data = once.serialize
2.times { ActiveJob::Base.execute(data) }
