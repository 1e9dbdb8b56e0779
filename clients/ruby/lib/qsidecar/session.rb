# frozen_string_literal: true

module Qsidecar
  # The connection of a Client in one process. It reconnects, keeps the open calls and the held
  # leases.
  #
  # One thread connects, reads and delivers the replies. Each caller's thread writes its own
  # request, and repeats it if the connection broke and that is safe.
  class Session
    include Calls
    include Replies

    # The pause between two tries to connect, minimum and maximum, in seconds. It stays below the
    # shortest restart grace, within which leases must be bound again.
    BACKOFF = [0.02, 0.5].freeze

    # How long a connection must last before the back-off starts again, in seconds.
    STABLE_AFTER = 1

    # backoff returns the jittered pause before the n-th try, n from 1.
    def self.backoff(tries)
      [BACKOFF[0] * 2**[tries - 1, 10].min, BACKOFF[1]].min * rand(0.5..1.0)
    end

    # notify is called with :lost and a job, with :draining, or with :outage and a message or nil,
    # one call at a time.
    def initialize(client, sockets:, worker:, codec:, notify:)
      @client = client
      @sockets = sockets
      @worker = worker
      @codec = codec
      @notify = notify
      @notifying = Mutex.new # held while notify runs
      @opening = TimedLock.new # held while the first connection is opened
      @lock = Mutex.new # guards the fields below
      @changed = ConditionVariable.new # signaled when @closed is set
      @open = {} # calls sent on the current connection, by id
      @queued = [] # calls to send
      @held = HeldLeases.new
      @last_id = 0
      @links = 0
      @link = nil # the current connection
      @binding = nil # the connection on which a thread binds leases
      @connecting = nil # a connection that has not finished its hello
      @reader = nil
      @joins = false # the sidecar asks for a settle and the next claim in one request
      @stopping = false # claims end at once
      @closed = false
      ForkHooks.watch(self)
    end

    # reentrant? is whether a call in this thread would wait for itself. A finalizer can run in any
    # thread between two steps, also while that thread has a lock.
    def reentrant?
      Thread.current.equal?(@reader) || @lock.owned? || @opening.held? || [@link, @connecting].any? { |link| link&.writing? }
    end

    # connect opens the first connection if there is none yet.
    def connect(ends = nil)
      connected = @opening.hold(ends) do
        next if @reader

        raise Closed, "the client is closed" if @closed

        link = first(ends)
        @lock.synchronize { @link = link }
        @reader = Thread.new { run(link) }
        @reader.name = "qsidecar"
      end
      raise TimedOut, "no sidecar has answered on #{@sockets.join(" or ")} yet: nothing was sent" unless connected
    end

    # call sends one request and returns its reply, a Hash with String keys.
    def call(op, fields, **how)
      connect(how[:ends]) unless @reader
      await(Call.new(op, fields, **how))
    end

    # joins? is whether the worker must send each settle with its next claim, and wait for the reply.
    def joins?
      @joins
    end

    # settle_behind sends a settle that no thread waits for, and a claim in the same write. It returns
    # the jobs of the claim when it is answered. It adds settling to the settles of the job, so that
    # only the reply reports a lost lease, also between two tries.
    def settle_behind(settle, claim, settling)
      calls = [settle, claim].compact
      link = @lock.synchronize do
        raise Closed, "the client is closed" if @closed

        @held.settling(settle.leases, settling)
        settle.id = 0 # it has been accepted
        @queued.concat(calls)
        calls.each { |call| ready(call) } if @link
        @link
      end
      transmit_all(calls, link) if link
      claim ? follow(claim)["jobs"] : []
    end

    # report_lost reports that the lease of a finished job was lost before its settle.
    def report_lost(job)
      job.lost!
      notify(:lost, job)
    end

    # settling runs the block. In the meantime a lost lease is reported by the reply to the settle
    # only.
    def settling(leases)
      @lock.synchronize { @held.settling(leases, +1) }
      yield
    ensure
      @lock.synchronize { @held.settling(leases, -1) }
    end

    # pause waits. It raises Closed as soon as the client is closed.
    def pause(seconds)
      ends = Connection.now + seconds
      @lock.synchronize do
        while !@closed && (left = ends - Connection.now).positive?
          @changed.wait(@lock, left)
        end
        raise Closed, "the client is closed" if @closed
      end
    end

    # stop_claiming ends waiting claims now, with or without jobs, and later ones at once. It
    # returns when no claim is open.
    def stop_claiming
      @lock.synchronize do
        @stopping = true
        @queued.each { |call| call.wake.signal }
      end
      # A claim can still be on its way to the socket, behind the cancel, so repeat it.
      while (link = @lock.synchronize { @link if @open.each_value.any?(&:claim?) })
        post(link, "cancel_claim")
        sleep 0.02
      end
    end

    # close returns the held jobs without using up an attempt, and closes the client. Calls without
    # a reply raise Closed.
    def close(limit)
      give_back(Connection.now + limit) unless @closed
      @lock.synchronize do
        @closed = true
        @changed.broadcast
        [@link, @connecting].compact.each(&:close)
      end
      @reader&.join
    end

    # abandon is for a child that inherited the session. The parent still uses the connection.
    def abandon
      [@link, @connecting].compact.each(&:close)
    end

    private

    # give_back returns the held jobs, with bye if it can, because bye keeps their positions. It
    # applies to one connection, so it can't if the sidecar is down or has just restarted.
    def give_back(ends)
      link, leases = @lock.synchronize { [@link, @held.idle] }
      return if link && unbound(link).empty? && bye(link, ends)

      leases.each_slice(HeldLeases::MAX_LIST) do |some|
        call("nack", { leases: some, snooze: true, delay_ms: 0 }, ends: ends)
      end
    rescue Error
      nil # the sidecar takes them back after its timeout
    end

    # bye ends the connection, and the client. It returns whether it was answered.
    def bye(link, ends)
      await(Call.new("bye", {}, ends: ends, only: link))
      true
    rescue Error
      false
    end

    # first connects to the first path on which a sidecar listens, and keeps that path.
    def first(ends)
      tried = []
      @sockets.each do |path|
        link = open(path, ends)
        @sockets = [path]
        return link
      rescue *Connection::NOT_LISTENING => e
        tried << "#{path} (#{Connection.why_not(path, e)})"
      rescue *Connection::BREAKS => e # a sidecar listens there, so do not try the next path
        raise NotConnected, "no sidecar answers on #{path}: #{e.message}"
      end
      raise NotConnected, "no sidecar answers on #{tried.join(" or ")}: start one, or name its socket in QSIDECAR_SOCKET"
    end

    def open(path, ends = nil)
      @links += 1
      link = Connection.new(path, @codec, @links)
      @lock.synchronize { @connecting = link }
      done = link.hello(@worker, ends)
    ensure
      @lock.synchronize { @connecting = nil }
      link&.close unless done
    end

    # run is the thread's loop: one connection after another, until the client is closed.
    def run(link)
      tries = 0
      while link
        why = serve(link)
        @lock.synchronize { requeue(why) }
        tries = 0 if Connection.now - link.since >= STABLE_AFTER
        link, tries = reconnect(tries)
      end
    ensure
      @lock.synchronize do
        @closed = true
        (@open.values + @queued).each { |call| finish(call, error: Closed.new("the client is closed")) }
        @held.clear
      end
    end

    # serve reads until the connection ends and returns why it ended.
    def serve(link)
      Thread.new { resend(link); bind(link) } if @lock.synchronize { @queued.any?(&:on_done) } || !unbound(link).empty?
      while (message = link.read)
        @lock.synchronize { handle(link, message) }
      end
      "the sidecar closed the connection"
    rescue StandardError => e
      e.message # also if the reply is not from a sidecar
    ensure
      link.close
      @lock.synchronize { @link = nil }
    end

    # reconnect tries until there is a connection. It returns nil if the client is closed.
    def reconnect(tries)
      away = false
      begin
        pause(tries.zero? ? 0 : Session.backoff(tries))
        tries += 1
        link = open(@sockets.first)
      rescue Closed
        return nil
      rescue Error, *Connection::BREAKS => e
        notify(:outage, e.message) unless away || @closed # report an outage only after the first try, because a restart takes no longer than that
        away = true
        retry # no sidecar listens yet
      end
      notify(:outage, nil) if away
      @lock.synchronize do
        @link = link
        @joins = false
        link.close if @closed # so that the reader ends
        @queued.each { |call| call.wake.signal }
      end
      [link, tries]
    end
  end
end
