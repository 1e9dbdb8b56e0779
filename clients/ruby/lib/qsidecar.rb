# frozen_string_literal: true

# The Ruby client of qsidecar: enqueue, claim, ack and nack jobs through the sidecar of this host.
# README.md shows how to use it. The API is Client (client.rb), Worker (worker.rb), Job (job.rb),
# SQL (sql.rb) and Testing (testing.rb). The other files are internal: start with session.rb. The
# library needs only Ruby's standard library.
module Qsidecar
  VERSION = "1.0.0"
end

require_relative "qsidecar/library"
require_relative "qsidecar/railtie" if defined?(Rails::Railtie)
