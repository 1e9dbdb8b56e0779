# frozen_string_literal: true

# The worker of the end-to-end tests of Ruby: see kit.ClientWorker.

log = File.open(ENV.fetch("WORKER_LOG"), File::WRONLY | File::APPEND | File::CREAT)
log.sync = true

worker = Qsidecar::Worker.new(codec: ENV["WORKER_CODEC"])
worker.job("quick") { |job| log.write("#{job.raw} #{job.attempt}\n") }
worker.job("long") do |job|
  log.write("#{job.raw} #{job.attempt}\n")
  File.open(ENV.fetch("WORKER_GATE")).close
end
