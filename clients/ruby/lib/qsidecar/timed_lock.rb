# frozen_string_literal: true

module Qsidecar
  # A lock with a time limit. Another thread than the owner can release it.
  class TimedLock
    def initialize
      @lock = Mutex.new
      @free = ConditionVariable.new
      @taken = false
    end

    # hold runs the block with the lock and releases it, unless the block returns :kept. It returns
    # false if the lock was not free until ends (nil: no limit).
    def hold(ends)
      mine = false
      @lock.synchronize do
        wait(ends)
        return false if @taken

        mine = @taken = true
      ensure
        @free.signal unless @taken # a thread that was woken and then interrupted wakes the next one
      end
      mine = false if yield == :kept
      true
    ensure
      release if mine
    end

    def release
      @lock.synchronize do
        @taken = false
        @free.signal
      end
    end

    private

    def wait(ends)
      while @taken
        left = ends && ends - Connection.now
        break if left && left <= 0

        @free.wait(@lock, left)
      end
    end
  end
end
