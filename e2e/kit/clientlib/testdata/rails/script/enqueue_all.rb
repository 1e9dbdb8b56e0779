# perform_all_later, with requests that are counted, and jobs that can't be stored.
requests = 0
Qsidecar::Client.prepend(Module.new do
  define_method(:enqueue_many) do |*jobs, **options|
    requests += 1
    super(*jobs, **options)
  end
end)

jobs = Array.new(1500) { |i| NoteJob.new(i).set(queue: "bulk") }
jobs[7].set(wait: 1.hour)
ActiveJob.perform_all_later(jobs)
puts "stored #{jobs.count(&:successfully_enqueued?)} in #{requests} requests, ids #{jobs.map(&:provider_job_id).uniq.compact.size}"

jobs = Array.new(8) { |i| NoteJob.new(i).set(queue: "bulk") }
jobs[5].priority = 1_000_000
ActiveJob.perform_all_later(jobs)
puts "stored #{jobs.count(&:successfully_enqueued?)}, and #{jobs[5].enqueue_error.class}: #{jobs[5].enqueue_error.message}"

jobs = Array.new(3) { |i| NoteJob.new(i).set(queue: "bulk") }
jobs[0].queue_name = "no queue's name!"
jobs[1].arguments = ["\x89PNG".b]
jobs[2].queue_name = "no queue's name!"
ActiveJob.perform_all_later(jobs)
jobs.each { |job| puts "rejected: #{job.enqueue_error.message}" }

large = Array.new(3) { NoteJob.new("x" * 900_000).set(queue: "bulk") }
requests = 0
ActiveJob.perform_all_later(large)
puts "stored #{large.count(&:successfully_enqueued?)} in #{requests} requests"

Order.transaction do
  NoteJob.set(queue: "transaction").perform_later("rolled back")
  raise ActiveRecord::Rollback
end
Order.transaction do
  NoteJob.set(queue: "transaction").perform_later("committed")
  stats = Qsidecar::Client.open { |client| client.stats("transaction") }
  puts "before the commit: #{stats.sum { |queue| queue["ready"] }}"
end

adapter = ActiveJob::QueueAdapters::QsidecarAdapter.new(socket: "/nonexistent", request_timeout: 0.1)
jobs = [NoteJob.new("a"), NoteJob.new("b")]
begin
  adapter.enqueue_all(jobs)
rescue Qsidecar::NotConnected
  puts "not connected: #{jobs.map { |job| [job.successfully_enqueued?, job.enqueue_error.class] }.uniq.inspect}"
end
