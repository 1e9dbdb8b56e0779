# frozen_string_literal: true

module Qsidecar
  # The processes of a Worker. The parent runs no jobs, and replaces a process that was killed. The
  # processes stop when a pipe of the parent closes, which also happens if the parent dies. (A
  # signal could be their second one, if the first was sent to the whole process group.)
  class ProcessGroup
    # A process that lived shorter than this many seconds is replaced after a pause.
    STABLE_AFTER = 1

    def initialize(size, commands, log)
      @size = size
      @commands = commands # :stop, :signal, or [pid, status] of a process that ended
      @log = log
      @started = {}
      @stopping = false
      @failed = nil
    end

    # run runs the block in each process and returns when all have ended.
    def run(&work)
      @mine, @theirs = IO.pipe # theirs stays open as long as this process lives
      @size.times { start(work) }
      until @started.empty?
        command = @commands.pop
        command.is_a?(Array) ? ended(*command, work) : stop
      end
      raise @failed if @failed
    ensure
      [@mine, @theirs].each(&:close)
    end

    # kill ends all processes at once.
    def kill
      @started.each_key { |pid| Process.kill("KILL", pid) }
    rescue Errno::ESRCH
      nil # it has already ended
    end

    private

    def start(work)
      pid = fork { run_child(work) }
      @started[pid] = Connection.now
      Thread.new { @commands << [pid, Process.detach(pid).value] }
    end

    def run_child(work)
      @theirs.close
      @commands.clear
      Thread.new do
        @mine.read # returns when the parent stops or ends
        @commands << :signal
      end
      work.call
      status = 0
    rescue StandardError => e
      status = Worker.exit_status(e)
      warn "qsidecar: #{e.message}"
    ensure
      [$stdout, $stderr].each(&:flush)
      exit!(status || 1) # do not run the parent's at_exit blocks
    end

    def stop
      @stopping = true
      @theirs.close
    end

    def ended(pid, status, work)
      lived = Connection.now - @started.delete(pid)
      return failed(status) if status.exitstatus&.positive?
      return if @stopping || status.success? # it was stopped, or nothing is left to do

      @log.call(:error, "worker process #{pid} was killed (#{status}): starting another one")
      sleep STABLE_AFTER if lived < STABLE_AFTER
      start(work)
    end

    # failed handles a process that ended with an error. A new one would fail in the same way.
    def failed(status)
      kind = status.exitstatus == Worker::EXIT_UNAVAILABLE ? NotConnected : Error
      @failed ||= kind.new("a worker process failed with exit status #{status.exitstatus}; its error is logged above")
      stop
    end
  end
end
