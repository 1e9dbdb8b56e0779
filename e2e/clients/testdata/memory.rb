# frozen_string_literal: true

# Works so many jobs, and prints the bytes of the live objects after a tenth of them and after all. In a Rails
# application the jobs are those of Active Job. Usage: memory.rb JOBS ACK

require "json"
require "objspace"
require "qsidecar"

total = Integer(ARGV[0])
sizes = []
done = 0
lock = Mutex.new
measure = lambda do
  lock.synchronize do
    next unless ((done += 1) % (total / 10)).zero?

    GC.start
    sizes << ObjectSpace.memsize_of_all
  end
end

if defined?(ActiveJob)
  require "qsidecar/active_job_worker"
  Measured = Class.new(ActiveJob::Base) { define_method(:perform) { |_| measure.call } }
  worker = Qsidecar::ActiveJobWorker.new("memory", request_timeout: 600)
  payload = -> { Measured.new({ "to" => "ada" }).serialize }
else
  worker = Qsidecar::Worker.new(request_timeout: 600)
  worker.job("memory") { measure.call }
  payload = -> { { "to" => "ada" } }
end
Qsidecar::Client.open(request_timeout: 600) do |client|
  (total / 1000).times { client.enqueue_many(Array.new(1000) { { queue: "memory", payload: payload.call } }) }
end
worker.run(drain: true, ack: ARGV[1].to_sym)
puts JSON.generate(done: done, first: sizes.first, last: sizes.last)
