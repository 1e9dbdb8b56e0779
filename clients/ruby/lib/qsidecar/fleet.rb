# frozen_string_literal: true

module Qsidecar
  # The processes of a Worker: their parent does no work, and starts one anew that was
  # killed. They stop when a pipe of the parent's ends: by its word, or with its death. (A
  # signal would be their second where all processes of a group are sent the first.)
  class Fleet
    # A process that lived shorter than this many seconds is started anew after a pause.
    SOON = 1

    def initialize(size, commands, log)
      @size = size
      @commands = commands # :stop, or [pid, status] of one that ended
      @log = log
      @born = {}
      @stopping = false
      @failed = nil
    end

    # run has each process carry the block out, and ends when all have ended.
    def run(&work)
      @mine, @theirs = IO.pipe # theirs is held open for as long as this process lives
      @size.times { start(work) }
      until @born.empty?
        command = @commands.pop
        command.is_a?(Array) ? ended(*command, work) : stop
      end
      raise @failed if @failed
    ensure
      [@mine, @theirs].each(&:close)
    end

    # kill ends all processes at once.
    def kill
      @born.each_key { |pid| Process.kill("KILL", pid) }
    rescue Errno::ESRCH
      nil # it has ended by itself
    end

    private

    def start(work)
      pid = fork { child(work) }
      @born[pid] = Link.now
      Thread.new { @commands << [pid, Process.detach(pid).value] }
    end

    def child(work)
      @theirs.close
      @commands.clear
      Thread.new do
        @mine.read # ends with the parent
        @commands << :stop
      end
      work.call
      status = 0
    rescue StandardError => e
      status = Worker.exit_status(e)
      warn "qsidecar: #{e.message}"
    ensure
      [$stdout, $stderr].each(&:flush)
      exit!(status || 1) # at_exit is the parent's
    end

    def stop
      @stopping = true
      @theirs.close
    end

    def ended(pid, status, work)
      lived = Link.now - @born.delete(pid)
      return failed(status) if status.exitstatus&.positive?
      return if @stopping || status.success? # its end was asked for, or nothing is left to do

      @log.call(:error, "worker process #{pid} was killed (#{status}): another takes its place")
      sleep SOON if lived < SOON
      start(work)
    end

    # failed is for one that gave up of its own will: a new one would do the same.
    def failed(status)
      kind = status.exitstatus == Worker::EXIT_UNAVAILABLE ? NotConnected : Error
      @failed ||= kind.new("a worker process gave up (exit status #{status.exitstatus}); its words are above")
      stop
    end
  end
end
