# frozen_string_literal: true

module Qsidecar
  # Runs jobs: a block for each queue, in threads, and in several processes if requested.
  #
  #   worker = Qsidecar::Worker.new
  #   worker.job("resize") { |job| resize(job.payload["image"]) }
  #   worker.run(concurrency: 8)
  #
  # If a block returns, its job is acked. Retry, Snooze and Dead select another outcome. Any other exception
  # is a failed attempt with its message. A block can also settle its job itself (Job#ack with a
  # result).
  class Worker
    # How long a claim waits, in seconds.
    WAIT = 60

    # Transient errors of a settle.
    TRANSIENT = [Unavailable, UnknownOutcome, Internal, Busy, Draining, TimedOut].freeze

    # Errors that mean that the sidecar or its database is unavailable: exit code 5.
    UNAVAILABLE = [NotConnected, TimedOut, Unavailable, UnknownOutcome, Draining, Busy].freeze
    EXIT_UNAVAILABLE = 5

    # When a job is settled: while the next ones run, or before its thread begins the next one.
    ACKS = %i[behind sync].freeze
    QUEUE_NAME = %r{\A[A-Za-z0-9_:/][A-Za-z0-9._:/-]{0,127}\z}.freeze
    private_constant :QUEUE_NAME

    # An argument of Worker#run is wrong: exit code 2.
    class WrongArgument < ArgumentError; end
    EXIT_WRONG_ARGUMENT = 2

    # exit_status returns the exit code of a worker that failed. The program qsidecar uses the same.
    def self.exit_status(error)
      return EXIT_WRONG_ARGUMENT if error.is_a?(WrongArgument)

      UNAVAILABLE.any? { |kind| error.is_a?(kind) } ? EXIT_UNAVAILABLE : 1
    end

    # The threads of a process that work the same queues.
    Share = Struct.new(:queues, :threads, :order, :weights) do
      def next_claim
        { queues: queues.map { |queue| Codec.text(queue) }, **Fields.order(queues, order, weights) }
      end

      def to_s
        how = { rotate: " in rotation", strict: " in strict order" }[order] if queues.size > 1
        names = queues.map { |name| weights.key?(name) ? "#{name}=#{weights[name]}" : name }
        "queues #{names.join(", ")}#{how}, concurrency #{threads}"
      end
    end
    private_constant :Share

    @made = []
    class << self
      # made lists the workers of this program, for qsidecar-work.
      attr_reader :made
    end

    # ran? is whether run was called.
    attr_reader :ran
    alias ran? ran

    # logger gets messages when the worker starts and ends, about jobs that fail, and about outages
    # of the sidecar. It is a Logger, such as Rails.logger. The default logs to stderr. The other
    # options are those of Client.
    def initialize(logger: Logger.new($stderr, progname: "qsidecar"), socket: nil, worker: nil, codec: nil, request_timeout: nil,
                   on_lost: nil, on_draining: nil)
      @logger = logger
      @on_lost = on_lost
      @options = { socket: socket, worker: worker, codec: codec, request_timeout: request_timeout, on_draining: on_draining }
      @handlers = {}
      @before = []
      @after = []
      @schedules = []
      @commands = Queue.new # commands for the thread that runs the worker
      @stopping = false
      @outage = false
      @pausing = [Mutex.new, ConditionVariable.new]
      @losses = Mutex.new # guards Job#loss_logged
      Worker.made << self
    end

    # job sets the block that runs the jobs of a queue.
    def job(queue, &handler)
      raise ArgumentError, "job #{queue.inspect} needs a block" unless handler

      raise ArgumentError, "#{queue.inspect} is not a queue: name it, as in worker.job(\"mail\")" if queue.to_s.empty?
      unless QUEUE_NAME.match?(queue.to_s)
        raise ArgumentError, "#{queue.to_s.inspect} is not a queue name: use A-Z a-z 0-9 . _ : / - and do not start with . or -"
      end
      raise ArgumentError, "the queue #{queue.to_s.inspect} already has a block" if @handlers.key?(queue.to_s)

      @handlers[queue.to_s] = handler
    end

    # before_job adds a hook that runs with each job before its block. An exception fails the job.
    def before_job(&hook)
      @before << hook
    end

    # after_job adds a hook that runs with each job and its exception (or nil), before the job is
    # settled. The worker logs the hook's own exceptions and ignores them.
    def after_job(&hook)
      @after << hook
    end

    # schedule declares a schedule when the worker runs. The arguments are those of Client#schedule.
    #
    #   worker.schedule("daily-report", "0 6 * * *", tz: "Europe/Berlin", queue: "reports", payload: { kind: "daily" })
    def schedule(name, cron = nil, **definition)
      Fields.schedule(name, cron, **definition) # checks them here, not at the start
      @schedules << [name, cron, definition]
      nil
    end

    # run works until stop or a signal. At the first SIGTERM or SIGINT it claims no more and lets
    # the running jobs finish. At the second it exits at once.
    #
    # concurrency: how many jobs run at once in a process, 1 to 256, each in a thread. processes:
    # how many processes to fork (1: none, this process works). drain: also end when no job is
    # ready, for cron. If that can't be checked, run raises one of UNAVAILABLE. If a settle is
    # unanswered for a minute at the end, run raises Unavailable.
    #
    # queues: the queues to work, each with how many of its jobs run at once in a process:
    # { "mail" => 8, "api" => nil }. Those with nil share the concurrency, as all queues do without
    # this option. order: with :rotate, queues that share a concurrency take turns. With :strict, a
    # queue is claimed from only if those before it are empty. weights: how many turns a queue has
    # where the others have one, as { "mail" => 3 }; only of queues that share the concurrency.
    #
    # ack: :behind begins a thread's next job before the ack of its last one is answered. :sync waits
    # for each answer.
    def run(concurrency: 8, processes: 1, drain: false, ack: :behind, queues: nil, order: :rotate, weights: nil)
      raise WrongArgument, "concurrency is 1 to 256" unless (1..256).cover?(concurrency)
      raise WrongArgument, "processes is #{processes.inspect}, must be a whole number from 1 on" unless processes.is_a?(Integer) && processes.positive?
      raise WrongArgument, "ack is #{ack.inspect}, must be :behind or :sync" unless ACKS.include?(ack)
      raise WrongArgument, "the worker has no jobs: add queues with Worker#job" if @handlers.empty?

      shares = shares(queues || @handlers.transform_values { nil }, concurrency, order, weights || {})

      @ran = true
      @stopping = false
      @drain = drain
      @sync = ack == :sync
      @commands.clear
      log(:info, "worker started: #{shares.join("; ")}, processes #{processes}")
      group = ProcessGroup.new(processes, @commands, method(:log)) if processes > 1
      signals(group) { group ? group.run { serve(shares) } : serve(shares) }
      log(:info, "worker stopped")
      nil
    end

    # stop ends run like the first signal. Any thread can call it, including a job's.
    def stop
      @commands << :stop
      nil
    end

    # stopping? is whether the worker was stopped. Then it claims no more, and its running jobs finish.
    def stopping?
      @stopping
    end

    # handles? is whether there is a block for that queue.
    def handles?(queue)
      @handlers.key?(queue)
    end

    # perform runs a job's block and its hooks, and returns the block's exception, or nil. It does
    # not settle the job.
    def perform(job)
      error = nil
      pid = Process.pid
      begin
        @before.each { |hook| hook.call(job) }
        check_result(@handlers.fetch(job.queue).call(job))
      rescue Exception => e # rubocop:disable Lint/RescueException -- an exit in a job fails the job, not the worker
        error = e
      end
      exit_forked_child(error) unless Process.pid == pid
      @after.each { |hook| after(hook, job, error) }
      error
    end

    private

    # shares divides the queues: those with a number of threads have their own, the others share the rest.
    def shares(queues, concurrency, order, weights)
      raise WrongArgument, "queues is empty: name at least one queue" if queues.empty?

      unless queues.is_a?(Hash)
        raise WrongArgument, "queues is #{queues.inspect}, must be a Hash such as { \"mail\" => 8 }, or { \"mail\" => nil } for one that shares concurrency"
      end

      queues = queues.transform_keys(&:to_s)
      queues.each do |name, count|
        raise WrongArgument, "the worker has no block for the queue #{name}, only for #{@handlers.keys.join(", ")}" unless handles?(name)
        raise WrongArgument, "queue #{name}: #{count.inspect} isn't a number of jobs from 1 to 256" unless count.nil? || (count.is_a?(Integer) && (1..256).cover?(count))
      end
      rest, own = queues.partition { |_, count| count.nil? }
      all = own.map { |name, count| Share.new([name], count, order, {}) }
      weights = weights.transform_keys(&:to_s)
      check_weights(rest.map(&:first), own.map(&:first), order, weights)
      all.unshift(Share.new(rest.map(&:first), concurrency, order, weights)) unless rest.empty?
      sum = all.sum(&:threads)
      raise WrongArgument, "the queues have #{sum} jobs at once together, and 256 is the limit of a process" if sum > 256

      all
    end

    # check_weights rejects a wrong order, and weights that would have no effect.
    def check_weights(rest, own, order, weights)
      alone = own.find { |name| weights.key?(name) }
      raise ArgumentError, "weights has the queue #{alone}, whose jobs have a number of their own: leave one of them out" if alone

      Fields.order(rest, order, weights)
    rescue ArgumentError => e
      raise WrongArgument, e.message
    end

    # check_result rejects a result whose work has not run, also inside a list, Hash, Set or Struct:
    # such a job is not done. It waits for threads.
    def check_result(value)
      left = [value]
      seen = {}.compare_by_identity # a Hash can contain itself
      until left.empty?
        case value = left.shift
        when Thread then left << value.value
        when Enumerator, Proc, Method then raise TypeError, "the block returned #{value.inspect}, which has not run: its work was not done"
        when Fiber then raise TypeError, "the block returned a Fiber that has not ended: its work was not done" if value.alive?
        when Array, Hash, Set, Struct
          left.concat(value.is_a?(Hash) ? value.flatten(1) : value.to_a) unless seen[value]
          seen[value] = true
        end
      end
    end

    # exit_forked_child ends a child that a block forked and that returned from the block. The
    # parent settles the job.
    def exit_forked_child(error)
      [$stdout, $stderr].each(&:flush)
    ensure
      exit!(error.is_a?(SystemExit) ? error.status : (error ? 1 : 0))
    end

    # signals stops the run at the first signal and ends the process at the second.
    def signals(group)
      parent = Process.pid
      signalled = 0
      on_signal = lambda do |number|
        if (signalled += 1) > 1
          group.kill if group && Process.pid == parent
          exit!(128 + number)
        end
        @commands << :signal
      end
      old = %w[TERM INT].map { |name| [name, trap(name, &on_signal)] }
      yield
    ensure
      old&.each { |name, handler| trap(name, handler || "DEFAULT") }
    end

    # serve works in this process until it is stopped.
    def serve(shares)
      @folder = Folder.new
      client = Client.new(**@options, on_lost: method(:lost))
      client.on_outage = method(:outage)
      @client = client
      @behind = Behind.new(client, threads: shares.sum(&:threads), drain: @drain, outcome: method(:settle_fields), log: method(:log), stopping: -> { @stopping })
      threads = []
      threads << Thread.new { declare(client) && shares.each { |share| share.threads.times { start(threads, client, share) } } }
      drained = Thread.new { join_all(threads) && stop } if @drain
      command = @commands.pop
      @stopping = true
      log(:info, "stopping; running jobs: #{@behind.running}; a second signal ends the worker at once") if command == :signal
      @pausing[0].synchronize { @pausing[1].broadcast }
      client.stop_claiming
      join_all(threads)
      drained&.join # its stop must not end the next run
      unanswered = @behind.finish
      client.close
      raise unanswered if unanswered
      raise command if command.is_a?(Exception)
    end

    # declare declares the schedules, and returns whether it did. It waits for the sidecar and its database, like a claim, but not
    # in a drain.
    def declare(client)
      @schedules.each do |name, cron, definition|
        tries = 0
        begin
          return false if @stopping

          log(:info, "schedule #{name}: #{client.schedule(name, cron, **definition)}")
        rescue *UNAVAILABLE => e
          raise if @drain

          log(:warn, "can't declare the schedule #{name}, trying again: #{e.message}") if tries.zero?
          pause(tries += 1)
          retry
        end
      end
      true
    rescue StandardError => e
      @commands << e
      false
    end

    # start adds a thread. If a job's block ends the thread (Thread.exit), another one replaces it.
    def start(threads, client, share)
      threads << Thread.new do
        work(client, share)
        over = true
      ensure
        begin
          start(threads, client, share) unless over || @stopping
        rescue ThreadError
          nil # the program ends
        end
      end
    end

    # join_all waits for the threads, including replacements that start in the meantime.
    def join_all(threads)
      at = -1
      threads[at].join while threads[at += 1]
      true
    end

    # work is a thread's loop.
    def work(client, share)
      tries = 0
      until @stopping
        begin
          return unless @behind.can_begin?

          quiet = @behind.idle? # otherwise an ack can store another job after this claim
          jobs = client.claim(share.queues, wait: @drain ? 0 : WAIT, order: share.order, weights: share.weights)
          next @behind.wait if @drain && jobs.empty? && !quiet
          return if @drain && jobs.empty?

          tries = 0
          outage(nil)
          jobs.each { |job| run_in_turn(job, share) }
        rescue *UNAVAILABLE, Internal => e
          raise if @drain # cron will start it again soon

          outage(e.message)
          pause(tries += 1)
        end
      end
    rescue Closed
      nil # the client was closed
    rescue StandardError => e
      @commands << e # an error that stays, for example a queue that does not exist
    end

    # outage logs that no jobs can be claimed, or that they can again (nil). It logs once, not once
    # per thread.
    def outage(message)
      was, @outage = @outage, !message.nil?
      log(:warn, message ? "can't claim jobs: #{message}" : "jobs can be claimed again") unless was == @outage
    end

    # run_in_turn runs a job, then the next one that its settle claimed, and so on.
    def run_in_turn(job, share)
      while job
        @stopping || !@behind.begin_job(job) ? return_job(job) : run_job(job, share)
        job = job.next_jobs.shift # otherwise the first job of a busy thread would keep all later ones
      end
    end

    # run_job runs a job and settles it, also if its block ends the thread. The settle also claims the
    # next job, which saves a round trip. A thread that ends claims none.
    def run_job(job, share)
      return if cannot_run?(job)

      pid = Process.pid
      return if job.lost? # while it waited to begin

      error = ThreadError.new("the job ended its thread")
      error = perform(job)
      job.next_claim = share.next_claim
    ensure
      begin
        settle(job, error) if Process.pid == pid && !(error && cannot_run?(job))
      ensure
        @behind.leave(job)
      end
    end

    # cannot_run? is whether the working folder is gone. Then it returns the job, and the run ends.
    def cannot_run?(job)
      return false if job.settled? || job.lost? || !(text = @folder.gone)

      @stopping = true
      @commands << Error.new(text)
      return_job(job)
      true
    end

    # pause waits, and ends early when the worker is stopped.
    def pause(tries)
      lock, stopped = @pausing
      lock.synchronize { stopped.wait(lock, 4 * Session.backoff(tries)) unless @stopping }
    end

    # return_job returns a job that arrived after the worker was stopped.
    def return_job(job)
      job.nack(snooze: true, delay: 0)
    rescue Error => e
      log(:warn, "job #{job.id} could not be returned, it is released when the connection closes: #{e.message}")
    end

    # settle sends the outcome of a job until it succeeds. If it gave up while the database is
    # unavailable, finished work would be done twice. If the sidecar rejects an outcome, the attempt
    # fails. Otherwise the job would stay with this worker.
    def settle(job, error)
      return log(:error, "job #{job.id} of #{job.queue} was settled by its block, and then failed: #{error_text(error)}") if job.settled? && error
      return if job.settled?
      return log(:info, "job #{job.id} of #{job.queue} was cancelled while it ran") if job.cancelled?
      return log_loss(job) if job.lost?
      return settle_behind(job, error) unless @sync || @client.session.joins?

      tries = 0
      since = Behind.now
      job.over = -> { @behind.over?(since) }
      begin
        send_outcome(job, error)
      rescue SettledOrLost => e
        log(:info, "job #{job.id} of #{job.queue}: #{e.message}")
      rescue LeaseLost
        return @client.session.report_lost(job) if tries.zero?

        log(:warn, "job #{job.id} of #{job.queue}: its lease was lost, or an earlier try settled it")
      rescue *TRANSIENT => e
        if job.over.call
          @behind.give_up(job)
          return stop
        end
        log(:warn, "job #{job.id} of #{job.queue} could not be settled yet: #{e.message}")
        return log(:error, "job #{job.id} of #{job.queue} could not be settled") if @stopping && e.is_a?(Internal)

        @stopping ? sleep(4 * Session.backoff(tries += 1)) : pause(tries += 1)
        retry
      rescue Closed, NotConnected => e
        log(:error, "job #{job.id} of #{job.queue} could not be settled: #{e.message}")
      rescue StandardError => e
        log(:error, "job #{job.id} of #{job.queue}: its outcome was refused: #{e.message}")
        error, refused, before = e, true, refused
        retry unless before
      end
    end

    # settle_behind sends the outcome of a job, and waits for the claim of the next one only.
    def settle_behind(job, error)
      claim = @stopping ? nil : job.next_claim
      job.next_jobs.concat(@behind.settle(job, error, claim))
    rescue StandardError => e
      log(:error, "job #{job.id} of #{job.queue} could not be settled: #{e.message}")
    end

    # settle_fields returns the operation that settles a job, and its fields.
    def settle_fields(job, error)
      how = outcome(job, error)
      [how ? "nack" : "ack", { lease: job.lease, **(how ? Fields.nack(**how) : {}) }]
    end

    def send_outcome(job, error)
      job.next_claim = nil if @stopping
      how = outcome(job, error)
      how ? job.nack(**how) : job.ack
    end

    # outcome returns the arguments of a job's nack, or nil for an ack. It logs an attempt that failed.
    def outcome(job, error)
      case error
      when nil then nil
      when Dead
        log(:error, "job #{job.id} of #{job.queue} is dead: #{error.message}")
        { error: error.message, dead: true }
      when Retry
        log(:warn, "job #{job.id} of #{job.queue} #{failure_text(job)}: #{error.message}")
        { error: error.message, delay: error.delay }
      when Snooze
        log(:warn, "job #{job.id} of #{job.queue} is snoozed: #{error.message}")
        { error: error.message, delay: error.delay, snooze: true }
      else
        text = error_text(error)
        log(:error, "job #{job.id} of #{job.queue} #{failure_text(job)}: #{text}")
        { error: text }
      end
    end

    def error_text(error)
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
      log(:error, "after_job of job #{job.id}: #{error_text(e)}")
    end

    # failure_text describes the result of a failed attempt.
    def failure_text(job)
      job.attempt >= job.max_attempts ? "is dead, after its last attempt" : "will be tried again"
    end

    def lost(job)
      @on_lost&.call(job)
      log_loss(job) unless job.cancelled? # the end of its run is logged
    end

    # log_loss logs a lost lease once: its event and the end of its run can find it.
    def log_loss(job)
      logged = @losses.synchronize { job.loss_logged.tap { job.loss_logged = true } }
      log(:warn, "job #{job.id} of #{job.queue}: #{job.loss}; another worker may have it (see Job#lost?)") unless logged
    end

    def log(level, text)
      @logger&.public_send(level, text)
    end
  end
end
