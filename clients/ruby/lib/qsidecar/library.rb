# frozen_string_literal: true

# The files of the library. qsidecar-work loads them in place of qsidecar.rb. So a Rails application that it
# loads then still runs qsidecar.rb, which adds the railtie.

require "logger"
require "set"
require "fiber" # Fiber#alive? on Ruby older than 3.1

require_relative "errors"
require_relative "codec"
require_relative "timed_lock"
require_relative "connection"
require_relative "fork_hooks"
require_relative "held_leases"
require_relative "calls"
require_relative "replies"
require_relative "session"
require_relative "job"
require_relative "waiting"
require_relative "client"
require_relative "batch"
require_relative "process_group"
require_relative "first_process"
require_relative "folder"
require_relative "behind"
require_relative "worker"
