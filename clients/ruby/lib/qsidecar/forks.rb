# frozen_string_literal: true

module Qsidecar
  # After a fork the child closes its copies of the connections at once, also if it
  # never uses a client: a parent that dies would else leave its jobs to be held by the
  # child's copy. (A child made by other means notices at its first call.)
  module Forks
    @sessions = ObjectSpace::WeakMap.new

    class << self
      # watch has the session abandoned in every child that is forked. The session is the value too:
      # until Ruby 3.3 each_key checks only whether the value lives, and gives keys that do not.
      def watch(session)
        @sessions[session] = session
      end

      # in_child is called first thing in a child.
      def in_child
        inherited = @sessions
        @sessions = ObjectSpace::WeakMap.new
        inherited.each_value(&:abandon)
      end
    end

    # Ruby ≥ 3.1 forks here, whatever was called.
    module Hook
      def _fork
        pid = super
        Forks.in_child if pid.zero?
        pid
      end
    end

    # Before that, each way to call it.
    module OldHook
      def fork(&block)
        return super() { Forks.in_child; block.call } if block

        pid = super()
        Forks.in_child unless pid
        pid
      end
    end

    if Process.respond_to?(:_fork)
      Process.singleton_class.prepend(Hook)
    else
      Process.singleton_class.prepend(OldHook)
      Kernel.singleton_class.prepend(OldHook)
      Object.prepend(OldHook.dup.tap { |m| m.send(:private, :fork) }) # Kernel's own is private too
    end
  end
end
