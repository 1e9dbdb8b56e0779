# frozen_string_literal: true

module Qsidecar
  # A lock with a time limit. Another thread than the owner can release it.
  class TimedLock
    def initialize
      @lock = Mutex.new
      @free = ConditionVariable.new
      @taken = false # or the thread that has it, or true if it is between two threads
    end

    # held? is whether this thread has the lock, or is about to take or release it. If so, it would
    # wait for itself.
    def held?
      @lock.owned? || @taken.equal?(Thread.current)
    end

    # hold runs the block with the lock and releases it, unless the block returns :kept. It returns
    # false if the lock was not free until ends (nil: no limit).
    def hold(ends)
      mine = false
      @lock.synchronize do
        wait(ends)
        return false if @taken

        mine = @taken = Thread.current
      ensure
        @free.signal unless @taken # a thread that was woken and then interrupted wakes the next one
      end
      mine = false if yield == :kept
      true
    ensure
      mine ? release : leave
    end

    def release
      @lock.synchronize do
        @taken = false
        @free.signal
      end
    end

    private

    # leave notes that another thread releases the lock, if it has not done so already.
    def leave
      @lock.synchronize { @taken = true if @taken.equal?(Thread.current) }
    end

    def wait(ends)
      while @taken
        left = ends && ends - Connection.now
        break if left && left <= 0

        @free.wait(@lock, left)
      end
    end
  end
end
