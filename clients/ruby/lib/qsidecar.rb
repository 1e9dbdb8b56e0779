# frozen_string_literal: true

# The Ruby client of qsidecar: enqueue, claim, ack and nack jobs through the sidecar of this host.
# README.md shows how to use it. The API is Client (client.rb), Worker (worker.rb), Job (job.rb),
# SQL (sql.rb) and Testing (testing.rb). The other files are internal: start with session.rb. The
# library needs only Ruby's standard library.
module Qsidecar
  VERSION = "1.0.0"
end

require "logger"
require "set"
require "fiber" # Fiber#alive? on Ruby older than 3.1

require_relative "qsidecar/errors"
require_relative "qsidecar/codec"
require_relative "qsidecar/timed_lock"
require_relative "qsidecar/connection"
require_relative "qsidecar/fork_hooks"
require_relative "qsidecar/held_leases"
require_relative "qsidecar/calls"
require_relative "qsidecar/replies"
require_relative "qsidecar/session"
require_relative "qsidecar/job"
require_relative "qsidecar/client"
require_relative "qsidecar/process_group"
require_relative "qsidecar/first_process"
require_relative "qsidecar/folder"
require_relative "qsidecar/behind"
require_relative "qsidecar/worker"
