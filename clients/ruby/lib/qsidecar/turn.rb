# frozen_string_literal: true

module Qsidecar
  # A lock that is waited for until a given time, and that another thread may give back.
  class Turn
    def initialize
      @lock = Mutex.new
      @free = ConditionVariable.new
      @taken = false
    end

    # take calls the block when it has the turn, and gives it back, unless the block's value is
    # :kept. It is false where the turn was not free until then (nil: there is no end).
    def take(ends)
      mine = false
      @lock.synchronize do
        wait(ends)
        return false if @taken

        mine = @taken = true
      ensure
        @free.signal unless @taken # a thread that was woken and then interrupted wakes the next
      end
      mine = false if yield == :kept
      true
    ensure
      leave if mine
    end

    def leave
      @lock.synchronize do
        @taken = false
        @free.signal
      end
    end

    private

    def wait(ends)
      while @taken
        left = ends && ends - Link.now
        break if left && left <= 0

        @free.wait(@lock, left)
      end
    end
  end
end
