# frozen_string_literal: true

module Qsidecar
  # What is behind a Client in one process: a connection that comes back, the calls
  # that are open on it, and the leases that are held through it.
  #
  # A thread of its own connects, reads and hands the replies out; each caller's thread
  # writes its own request, and again where the connection broke and that is safe.
  class Session
    include Calls
    include Replies

    # The pause between two tries to connect, from and to, in seconds. It stays under
    # the shortest restart grace, in which leases must be bound again.
    BACKOFF = [0.02, 0.5].freeze

    # How long a connection must have lasted for the pauses to begin anew, in seconds.
    STEADY = 1

    # backoff is the jittered pause before the n-th try, n from 1.
    def self.backoff(tries)
      [BACKOFF[0] * 2**[tries - 1, 10].min, BACKOFF[1]].min * rand(0.5..1.0)
    end

    # tell is called with :lost and a job, with :draining, or with :outage and a message or nil, one call at a time.
    def initialize(client, sockets:, worker:, codec:, tell:)
      @client = client
      @sockets = sockets
      @worker = worker
      @codec = codec
      @tell = tell
      @telling = Mutex.new # held while tell is called
      @opening = Turn.new # held while the first connection is made
      @lock = Mutex.new # guards all below
      @changed = ConditionVariable.new # @closed was set
      @open = {} # calls sent on the present connection, by id
      @queued = [] # calls that are to be sent
      @held = Held.new
      @last_id = 0
      @links = 0
      @link = nil # the present connection
      @connecting = nil # one that has no hello yet
      @reader = nil
      @stopping = false # claims end at once
      @closed = false
      Forks.watch(self)
    end

    # connect makes the first connection, if there was none yet.
    def connect(ends = nil)
      connected = @opening.take(ends) do
        next if @reader

        raise Closed, "the client is closed" if @closed

        link = first(ends)
        @lock.synchronize { @link = link }
        @reader = Thread.new { run(link) }
        @reader.name = "qsidecar"
      end
      raise TimedOut, "not sent: there was no connection to the sidecar in time" unless connected
    end

    # call carries one request out and gives its reply, a Hash with Strings.
    def call(op, fields, **how)
      connect(how[:ends]) unless @reader
      await(Call.new(op, fields, **how))
    end

    # settling has the settle's own answer tell where one of these leases is lost
    # while the block runs.
    def settling(leases)
      @lock.synchronize { @held.settling(leases, +1) }
      yield
    ensure
      @lock.synchronize { @held.settling(leases, -1) }
    end

    # rest pauses; it is Closed as soon as the client is.
    def rest(seconds)
      ends = Link.now + seconds
      @lock.synchronize do
        while !@closed && (left = ends - Link.now).positive?
          @changed.wait(@lock, left)
        end
        raise Closed, "the client is closed" if @closed
      end
    end

    # stop_claiming has waiting claims end now, with jobs or without, and those to come
    # at once. It returns when none is open.
    def stop_claiming
      @lock.synchronize do
        @stopping = true
        @queued.each { |call| call.wake.signal }
      end
      # A claim may be on its way to the socket still, behind a cancel: so again.
      while (link = @lock.synchronize { @link if @open.each_value.any?(&:claim?) })
        post(link, "cancel")
        sleep 0.02
      end
    end

    # close says bye, so that what is held goes back uncharged, and ends. Calls under
    # way that are not answered by then are Closed.
    def close(patience)
      link = @lock.synchronize do
        was, @closed = @closed, true
        @changed.broadcast
        was ? nil : @link
      end
      goodbye(patience) if link
      @lock.synchronize { [@link, @connecting].compact.each(&:close) }
      @reader&.join
    end

    # abandon is for a child that inherited the session: the connection is its parent's.
    def abandon
      [@link, @connecting].compact.each(&:close)
    end

    private

    def goodbye(patience)
      await(Call.new("bye", {}, ends: Link.now + patience))
    rescue Error
      nil # the close says it less well
    end

    # first connects to the first place where somebody listens, and stays there.
    def first(ends)
      failed = nil
      @sockets.each do |path|
        link = open(path, ends)
        @sockets = [path]
        return link
      rescue Errno::ENOENT, Errno::ECONNREFUSED, Errno::ENOTDIR => e
        failed ||= e
      rescue *Link::BREAKS => e # somebody is there: the next place would be a surprise
        raise NotConnected, "no sidecar answers on #{path}: #{e.message}"
      end
      raise NotConnected, "no sidecar answers: #{failed.message} (start one, or name its socket in QSIDECAR_SOCKET)"
    end

    def open(path, ends = nil)
      @links += 1
      link = Link.new(path, @codec, @links)
      @lock.synchronize { @connecting = link }
      done = link.hello(@worker, ends)
    ensure
      @lock.synchronize { @connecting = nil }
      link&.close unless done
    end

    # run is the thread's: one connection after another, until the client is closed.
    def run(link)
      tries = 0
      while link
        why = serve(link)
        @lock.synchronize { requeue(why) }
        tries = 0 if Link.now - link.since >= STEADY
        link, tries = reconnect(tries)
      end
    ensure
      @lock.synchronize do
        @closed = true
        (@open.values + @queued).each { |call| finish(call, error: Closed.new("the client is closed")) }
        @held.clear
      end
    end

    # serve reads until the connection ends and says why it did.
    def serve(link)
      Thread.new { bind(link) } unless unbound(link).empty?
      while (message = link.read)
        @lock.synchronize { take(link, message) }
      end
      "the sidecar closed the connection"
    rescue StandardError => e
      e.message # also where what came is no sidecar's answer
    ensure
      link.close
      @lock.synchronize { @link = nil }
    end

    # reconnect tries until there is a connection; nil when the client is closed.
    def reconnect(tries)
      away = false
      begin
        rest(tries.zero? ? 0 : Session.backoff(tries))
        tries += 1
        link = open(@sockets.first)
      rescue Closed
        return nil
      rescue Error, *Link::BREAKS => e
        tell(:outage, e.message) unless away || @closed # a restart is over by the first try
        away = true
        retry # nobody is there yet
      end
      tell(:outage, nil) if away
      @lock.synchronize do
        @link = link
        link.close if @closed # the reader sees it
        @queued.each { |call| call.wake.signal }
      end
      [link, tries]
    end
  end
end
