# frozen_string_literal: true

module Qsidecar
  # After a fork, the child closes its copies of the connections at once, even if it never uses a
  # client. Otherwise, if the parent dies, the child's copy keeps the parent's jobs claimed. (A
  # child that was created by other means does this at its first call.)
  module ForkHooks
    @sessions = ObjectSpace::WeakMap.new

    class << self
      # watch abandons the session in every child that is forked. The session is also the value:
      # until Ruby 3.3, each_key checks only whether the value is alive, and returns keys that are
      # not.
      def watch(session)
        @sessions[session] = session
      end

      # in_child runs first in a child.
      def in_child
        inherited = @sessions
        @sessions = ObjectSpace::WeakMap.new
        inherited.each_value(&:abandon)
      end
    end

    # Ruby 3.1 and newer fork here, whichever method was called.
    module Hook
      def _fork
        pid = super
        ForkHooks.in_child if pid.zero?
        pid
      end
    end

    # Older versions: each method that forks.
    module OldHook
      def fork(&block)
        return super() { ForkHooks.in_child; block.call } if block

        pid = super()
        ForkHooks.in_child unless pid
        pid
      end
    end

    if Process.respond_to?(:_fork)
      Process.singleton_class.prepend(Hook)
    else
      Process.singleton_class.prepend(OldHook)
      Kernel.singleton_class.prepend(OldHook)
      Object.prepend(OldHook.dup.tap { |m| m.send(:private, :fork) }) # Kernel#fork is private too
    end
  end
end
