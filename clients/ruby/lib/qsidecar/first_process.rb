# frozen_string_literal: true

module Qsidecar
  # The first process of a container. The processes that a job leaves behind become its children, and
  # would stay as zombies, up to the limit of processes. A worker can't reap them itself: it doesn't
  # know which children a job waits for. So a child works, and the first process reaps.
  module FirstProcess
    # The signals that it passes on.
    SIGNALS = %w[TERM INT HUP QUIT USR1 USR2].freeze

    # fork_if_first returns in a child, if this is a first process.
    def self.fork_if_first
      return unless Process.pid == 1

      child = nil
      early = []
      SIGNALS.each { |name| trap(name) { child ? Process.kill(name, child) : early << name } }
      ready, begun = IO.pipe
      pid = fork
      return start_child(begun) unless pid

      begun.close
      ready.read # until the child has its own handlers
      child = pid
      early.each { |name| Process.kill(name, child) }
      reap(child)
    end

    # start_child leaves the session. Otherwise a terminal sends the child a signal that the first
    # process passes on, too.
    def self.start_child(begun)
      SIGNALS.each { |name| trap(name, "DEFAULT") }
      Process.setsid
      begun.close
    end

    def self.reap(child)
      loop do
        pid, status = Process.wait2(-1)
        exit!(status.exitstatus || (128 + status.termsig)) if pid == child
      end
    end
    private_class_method :start_child, :reap
  end
end
