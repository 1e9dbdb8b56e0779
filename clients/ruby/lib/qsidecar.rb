# frozen_string_literal: true

# The Ruby client of qsidecar: enqueue, claim, ack and nack jobs through the sidecar
# of this host. README.md beside it shows the use; Client and Worker are the doors.
module Qsidecar
  VERSION = "1.0.0"
end

require "logger"
require "fiber" # Fiber#alive?, on a Ruby older than 3.1

require_relative "qsidecar/errors"
require_relative "qsidecar/codec"
require_relative "qsidecar/turn"
require_relative "qsidecar/link"
require_relative "qsidecar/forks"
require_relative "qsidecar/held"
require_relative "qsidecar/calls"
require_relative "qsidecar/replies"
require_relative "qsidecar/session"
require_relative "qsidecar/job"
require_relative "qsidecar/client"
require_relative "qsidecar/fleet"
require_relative "qsidecar/worker"
