# frozen_string_literal: true

# The worker of e2e's client tests: see clientWorker.

log = File.open(ENV.fetch("WORKER_LOG"), File::WRONLY | File::APPEND | File::CREAT)
log.sync = true

worker = Qsidecar::Worker.new(codec: ENV["WORKER_CODEC"])
worker.job("quick") { |job| log.write("#{job.raw} #{job.attempt}\n") }
worker.job("long") do |job|
  log.write("#{job.raw} #{job.attempt}\n")
  sleep Float(ENV.fetch("WORKER_SECONDS"))
end
