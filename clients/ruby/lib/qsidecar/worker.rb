# frozen_string_literal: true

module Qsidecar
  # A program that works on jobs: a block for each queue, run by threads, and by several
  # processes where that is asked for.
  #
  #   worker = Qsidecar::Worker.new
  #   worker.job("resize") { |job| resize(job.payload["image"]) }
  #   worker.run(concurrency: 8)
  #
  # A block that returns has its job acked. Retry and Dead say what else becomes of it;
  # any other exception is a failed attempt with its message. A block may also settle its
  # job itself (Job#ack with a result).
  class Worker
    # How long a claim waits, in seconds.
    WAIT = 60

    # What a settle may meet that is over some time.
    PASSING = [Unavailable, UnknownOutcome, Internal, Busy, TimedOut].freeze

    # What says that no sidecar answers, or that its database is away: exit code 5.
    UNAVAILABLE = [NotConnected, TimedOut, Unavailable, UnknownOutcome, Draining, Busy].freeze
    EXIT_UNAVAILABLE = 5

    # exit_status is what a worker that ended with an error exits with, as the program qsidecar does.
    def self.exit_status(error)
      UNAVAILABLE.any? { |kind| error.is_a?(kind) } ? EXIT_UNAVAILABLE : 1
    end

    @made = []
    class << self
      # made are the workers of this program, for qsidecar-work.
      attr_reader :made
    end

    # ran? is whether run was called.
    attr_reader :ran
    alias ran? ran

    # logger is told when the worker starts and ends, of jobs that are to be tried again or dead,
    # and when the sidecar is away and back: a Logger, as Rails.logger; without one it is stderr's.
    # The other options are Client's.
    def initialize(logger: Logger.new($stderr, progname: "qsidecar"), socket: nil, worker: nil, codec: nil, request_timeout: nil,
                   on_lost: nil, on_draining: nil)
      @logger = logger
      @on_lost = on_lost
      @options = { socket: socket, worker: worker, codec: codec, request_timeout: request_timeout, on_draining: on_draining }
      @handlers = {}
      @before = []
      @after = []
      @commands = Queue.new # of the thread that runs it
      @stopping = false
      @away = false
      @resting = [Mutex.new, ConditionVariable.new]
      Worker.made << self
    end

    # job says what is done with each job of a queue. Queues are preferred in the order
    # in which they are named.
    def job(queue, &handler)
      raise ArgumentError, "job #{queue.inspect} wants a block" unless handler

      @handlers[queue.to_s] = handler
    end

    # before_job is called with each job before its block; an exception fails the job.
    def before_job(&hook)
      @before << hook
    end

    # after_job is called with each job and the exception that it ended with (or nil),
    # before it is settled. Its own exceptions are logged, and change nothing.
    def after_job(&hook)
      @after << hook
    end

    # run works until stop or a signal. On the first SIGTERM or SIGINT it claims no more
    # and lets the jobs under way finish; on the second it leaves at once.
    #
    # concurrency: how many jobs at once in a process, 1 to 256, each in a thread;
    # processes: how many processes are forked for it (1: this one works itself); drain:
    # it also ends when no job is ready, for cron, and raises one of UNAVAILABLE where that cannot
    # be asked.
    def run(concurrency: 8, processes: 1, drain: false)
      raise ArgumentError, "concurrency is 1 to 256" unless (1..256).cover?(concurrency)
      raise ArgumentError, "processes is at least 1" unless processes.positive?
      raise ArgumentError, "there is no job to work on: name queues with Worker#job" if @handlers.empty?

      @ran = true
      @stopping = false
      @drain = drain
      @commands.clear
      log(:info, "worker started: queues #{@handlers.keys.join(", ")}, #{concurrency} jobs at once, #{processes} process#{"es" if processes > 1}")
      fleet = Fleet.new(processes, @commands, method(:log)) if processes > 1
      signals(fleet) { fleet ? fleet.run { serve(concurrency) } : serve(concurrency) }
      log(:info, "worker stopped")
      nil
    end

    # stop ends run as the first signal does. Any thread may call it, also a job's.
    def stop
      @commands << :stop
      nil
    end

    # handles? is whether there is a block for that queue.
    def handles?(queue)
      @handlers.key?(queue)
    end

    # perform runs a job's block with the hooks around it, and gives the exception that it
    # ended with, or nil. It settles nothing.
    def perform(job)
      error = nil
      pid = Process.pid
      begin
        @before.each { |hook| hook.call(job) }
        finish(@handlers.fetch(job.queue).call(job))
      rescue Exception => e # rubocop:disable Lint/RescueException -- a job's exit is its failure, and not the worker's
        error = e
      end
      leave(error) unless Process.pid == pid
      @after.each { |hook| after(hook, job, error) }
      error
    end

    private

    # finish refuses what a block gave in place of its work: a call that ran nothing is not
    # a job that is done. A thread is waited for.
    def finish(value)
      case value
      when Thread then finish(value.value)
      when Enumerator, Proc, Method then raise TypeError, "the block returned #{value.inspect}, which has not run: its work was not done"
      when Fiber then raise TypeError, "the block returned a Fiber that has not ended: its work was not done" if value.alive?
      when Array then value.grep(Thread).each(&:join)
      end
    end

    # leave ends a child that a block forked and that came back from it: the job is its parent's.
    def leave(error)
      [$stdout, $stderr].each(&:flush)
    ensure
      exit!(error.is_a?(SystemExit) ? error.status : (error ? 1 : 0))
    end

    # signals has the first signal stop the run, and the second end the process.
    def signals(fleet)
      parent = Process.pid
      signalled = 0
      on_signal = lambda do |number|
        if (signalled += 1) > 1
          fleet.kill if fleet && Process.pid == parent
          exit!(128 + number)
        end
        @commands << :stop
      end
      old = %w[TERM INT].map { |name| [name, trap(name, &on_signal)] }
      yield
    ensure
      old&.each { |name, handler| trap(name, handler || "DEFAULT") }
    end

    # serve works in this process until it is stopped.
    def serve(concurrency)
      client = Client.new(**@options, on_lost: method(:lost))
      client.on_outage = method(:outage)
      threads = []
      concurrency.times { start(threads, client) }
      Thread.new { ended(threads) && stop } if @drain
      command = @commands.pop
      @stopping = true
      @resting[0].synchronize { @resting[1].broadcast }
      client.stop_claiming
      ended(threads)
      client.close
      raise command if command.is_a?(Exception)
    end

    # start adds a thread. One that a job's block ended (Thread.exit) is replaced before it is over.
    def start(threads, client)
      threads << Thread.new do
        work(client)
        over = true
      ensure
        begin
          start(threads, client) unless over || @stopping
        rescue ThreadError
          nil # the program ends
        end
      end
    end

    # ended waits for the threads, and for those that took the places of others meanwhile.
    def ended(threads)
      at = -1
      threads[at].join while threads[at += 1]
      true
    end

    # work is a thread's loop.
    def work(client)
      tries = 0
      until @stopping
        begin
          jobs = client.claim(@handlers.keys, wait: @drain ? 0 : WAIT)
          return if @drain && jobs.empty?

          tries = 0
          outage(nil)
          jobs.each { |job| @stopping ? give_back(job) : one(job) }
        rescue *UNAVAILABLE, Internal => e
          raise if @drain # cron has another of it soon

          outage(e.message)
          rest(tries += 1)
        end
      end
    rescue Closed
      nil # it was left at once
    rescue StandardError => e
      @commands << e # what trying again cannot mend, as a queue that does not exist
    end

    # outage logs that no jobs can be claimed, or (nil) that they can: once, and not by each thread.
    def outage(message)
      told, @away = @away, !message.nil?
      log(:warn, message ? "no jobs just now: #{message}" : "jobs can be claimed again") unless told == @away
    end

    # one does a job and settles it, also where its block ends the thread.
    def one(job)
      pid = Process.pid
      error = ThreadError.new("the job ended its thread")
      error = perform(job)
    ensure
      settle(job, error) if Process.pid == pid
    end

    # rest pauses, and ends early when the worker is stopped.
    def rest(tries)
      lock, stopped = @resting
      lock.synchronize { stopped.wait(lock, 4 * Session.backoff(tries)) unless @stopping }
    end

    # give_back is for jobs that came when it was too late.
    def give_back(job)
      job.nack(charge: false, delay: 0)
    rescue Error => e
      log(:warn, "job #{job.id} goes back with the connection: #{e.message}")
    end

    # settle tells the sidecar what became of a job, for as long as it takes: the work is
    # done, and told at once that the database is away it would be done twice. An outcome that
    # is refused is the attempt's failure: left alone, the job would stay this worker's.
    def settle(job, error)
      return log(:error, "job #{job.id} of #{job.queue} was settled by its block, which failed then: #{words(error)}") if job.settled? && error
      return if job.settled?
      return log(:warn, "job #{job.id} of #{job.queue} is with another worker by now: its lease was lost") if job.lost?

      tries = 0
      begin
        tell(job, error)
      rescue SettledOrLost => e
        log(:info, "job #{job.id} of #{job.queue}: #{e.message}")
      rescue LeaseLost
        log(:warn, "job #{job.id} of #{job.queue}: its lease was lost#{", or an earlier try settled it" if tries.positive?}")
      rescue *PASSING => e
        log(:warn, "job #{job.id} of #{job.queue} could not be settled yet: #{e.message}")
        raise Closed, "stopped" if @stopping

        rest(tries += 1)
        retry
      rescue Closed, NotConnected => e
        log(:error, "job #{job.id} of #{job.queue} could not be settled: #{e.message}")
      rescue StandardError => e
        log(:error, "job #{job.id} of #{job.queue}: its outcome was refused: #{e.message}")
        error, refused, before = e, true, refused
        retry unless before
      end
    end

    def tell(job, error)
      case error
      when nil then job.ack
      when Dead
        log(:error, "job #{job.id} of #{job.queue} is dead: #{error.message}")
        job.nack(error: error.message, dead: true)
      when Retry
        log(:warn, "job #{job.id} of #{job.queue} #{fate(job, error.charge)}: #{error.message}")
        job.nack(error: error.message, delay: error.delay, charge: error.charge)
      else
        words = words(error)
        log(:error, "job #{job.id} of #{job.queue} #{fate(job, true)}: #{words}")
        job.nack(error: words)
      end
    end

    def words(error)
      message = begin
        error.message
      rescue StandardError
        "it has no message"
      end
      ["#{error.class}: #{message}", *error.backtrace&.first(5)].join("\n  ")
    end

    def after(hook, job, error)
      hook.call(job, error)
    rescue Exception => e # rubocop:disable Lint/RescueException -- as in perform
      log(:error, "after_job of job #{job.id}: #{words(e)}")
    end

    # fate is what a failed attempt makes of a job.
    def fate(job, charge)
      charge && job.attempt >= job.max_attempts ? "is dead, after its last attempt" : "is to be tried again"
    end

    def lost(job)
      @on_lost&.call(job)
      log(:warn, "job #{job.id} of #{job.queue}: its lease was lost while it runs (Job#lost? tells)")
    end

    def log(level, text)
      @logger&.public_send(level, text)
    end
  end
end
