# frozen_string_literal: true

require "socket"

module Qsidecar
  # One connection to a sidecar, from its hello to its end. The session's thread reads, any thread
  # writes.
  class Connection
    # Time limit for the reply to a hello, in seconds.
    HELLO_TIME = 10

    # How long the sidecar can read nothing of a frame whose caller has left, in seconds.
    STALLED = 30

    # How many bytes of frames are written at once.
    BATCH = 64 << 10

    # A frame to write. Two frames with the same bytes are not equal.
    class Frame
      attr_reader :bytes

      def initialize(bytes)
        @bytes = bytes
      end
    end

    # The largest possible reply: 8 times the largest max_frame, 64 MiB.
    MAX_REPLY = 512 << 20

    # Errors that end a connection.
    BREAKS = [SystemCallError, IOError, Codec::Garbage].freeze

    # Errors of a socket on which no sidecar that this process can reach listens. A client then tries
    # the next path.
    NOT_LISTENING = [
      Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::ECONNREFUSED, Errno::EACCES, Errno::EPERM,
      Errno::EPROTOTYPE, Errno::ENOTSOCK, Errno::EINVAL, Errno::ENAMETOOLONG
    ].freeze

    SOCKET_URL = %r{\A(?:unix:(?://)?(?<path>.*)|[A-Za-z][A-Za-z0-9+.-]*://.*|[^/]+:[0-9]+)\z}.freeze

    # Returns the paths of a sidecar's socket to try: the given one, or that of the environment, or
    # the usual ones. Raises ArgumentError for a URL: no socket has such a name, and the system would only report that.
    def self.sockets(named = nil)
      named ||= ENV["QSIDECAR_SOCKET"]
      named = named.to_path if named.respond_to?(:to_path)
      raise ArgumentError, "socket: #{named.inspect} must be a path" unless named.nil? || named.is_a?(String)

      url = SOCKET_URL.match(named.to_s)
      raise ArgumentError, "the socket #{named} is not a path: write #{url[:path].to_s.empty? ? "/run/qsidecar/qsidecar.sock" : url[:path]}" if url
      raise ArgumentError, "the socket #{named}: ~ isn't replaced here: write the whole path" if named.to_s.start_with?("~")
      return [named] unless named.nil? || named.empty?

      dirs = [runtime_dir, user_state].compact.map { |dir| File.join(dir, "qsidecar") }
      [*dirs, "/run/qsidecar"].map { |dir| File.join(dir, "qsidecar.sock") }
    end

    # Returns the runtime directory. Root skips one that another user owns: that user could serve a
    # socket of its own there.
    def self.runtime_dir
      dir = variable("XDG_RUNTIME_DIR")
      dir unless dir && Process.euid.zero? && [dir, File.join(dir, "qsidecar")].any? { |path| File.exist?(path) && !File.stat(path).uid.zero? }
    end

    # Describes an error of a path. The system reports a file or a folder as a socket on which nothing listens.
    def self.why_not(path, error)
      return "it is a folder: name the socket in it" if File.directory?(path)
      return "it is a file, and not a socket" if File.file?(path)

      error.message
    end

    # Returns the directory of the user's state, unless it is root or has no state of qsidecar.
    def self.user_state
      home = variable("HOME")
      state = variable("XDG_STATE_HOME") || (home && File.join(home, ".local", "state"))
      state if state && !Process.euid.zero? && File.directory?(File.join(state, "qsidecar"))
    end

    # Returns a variable of the environment, or nil if it is empty.
    def self.variable(name)
      value = ENV[name]
      value unless value.nil? || value.empty?
    end
    private_class_method :runtime_dir, :user_state, :variable

    attr_reader :number, :since, :max_frame, :max_payload

    # Connects to the socket at path. Ruby opens it close-on-exec.
    def initialize(path, codec, number)
      @socket = Connection.connect(path)
      @socket.binmode
      @codec = codec
      @number = number
      @writing = TimedLock.new
      @taking = Mutex.new # guards @pending
      @pending = [] # frames of the threads that wait for @writing
      @since = Connection.now
    end

    # connect does not wait: a stopped sidecar accepts no connections once its backlog is full.
    def self.connect(path)
      socket = Socket.new(:UNIX, :STREAM)
      socket.connect_nonblock(address(path))
      connected = socket
    ensure
      socket.close unless connected
    end

    def self.address(path)
      Socket.sockaddr_un(path)
    rescue ArgumentError # Ruby's error for a path that is too long
      raise Errno::ENAMETOOLONG
    end
    private_class_method :address

    def self.now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # hello sends the worker's name and receives the sidecar's limits.
    def hello(worker, ends = nil)
      ends = [ends, Connection.now + HELLO_TIME].compact.min
      write(@codec.encode(id: 0, op: "hello", version: 1, worker: worker, events: %w[lost draining]), ends)
      wait_readable(ends)
      reply = read
      reply = read while reply&.key?("event") # a draining event can come first
      raise Codec::Garbage, "the connection was closed before an answer to hello" unless reply
      raise Qsidecar.error(reply["error"] || {}) unless reply["ok"]

      @max_frame = reply["max_frame"]
      @max_payload = reply["max_payload"]
      self
    end

    # encode returns a request's frame. It raises TooLarge for a frame on which the sidecar would
    # close the connection.
    def encode(request, largest)
      if largest && @max_payload && largest > @max_payload
        raise TooLarge, "#{request[:op]} was not sent: a payload has #{largest} bytes and the sidecar takes #{@max_payload} at most (max_payload): store the data elsewhere and send its address"
      end

      frame = @codec.encode(request)
      size = @codec.size(frame)
      return frame unless @max_frame && size > @max_frame

      raise TooLarge, "#{request[:op]} was not sent: it has #{size} bytes and the sidecar takes #{@max_frame} at most (max_frame)" \
                      ": store the data elsewhere and send its address, or raise max_frame in the sidecar's config"
    end

    # writing? is whether this thread is in the middle of a write.
    def writing?
      @writing.held? || @taking.owned?
    end

    # write sends a frame. Frames that other threads have ready by then go into the same write. If
    # that fails, or the thread is interrupted in between, it closes the connection, and the reader
    # ends. If the time is over first, the block is called with the number of unwritten bytes. If it
    # returns true, or there is no block, a thread writes the rest of the frame. If it returns false,
    # write closes the connection of a partial frame.
    def write(frame, ends = nil, &late)
      own = Frame.new(frame)
      @taking.synchronize { @pending << own }
      @writing.hold(ends) { push(own, ends, &late) }
      late&.call(frame.bytesize) if withdraw(own) # its time is over, and no thread has begun to write it
    ensure
      withdraw(own) # if the thread was interrupted
    end

    # read returns the next message, or nil if the connection has ended.
    def read
      message = @codec.read(@socket, MAX_REPLY)
      raise Codec::Garbage, "a message that isn't a map" unless message.nil? || message.is_a?(Hash)

      message
    end

    # wait_readable waits for the first reply. A select does not notice that another thread closes
    # the socket, so it repeats and then raises.
    def wait_readable(ends)
      until IO.select([@socket], nil, nil, (ends - Connection.now).clamp(0, 0.2))
        raise Codec::Garbage, "no answer to hello in time" if Connection.now > ends
      end
    end

    def bytes(map, field)
      @codec.bytes(map, field)
    end

    # close closes this process's descriptor without a shutdown: after a fork the parent still uses
    # the connection.
    def close
      @socket.close
    rescue *BREAKS
      nil # it is already closed
    end

    private

    # push writes pending frames until its own one is written, unless another thread wrote it already.
    def push(own, ends)
      clean = false # whether another frame can follow
      Thread.pass # so that other threads add their frames
      while (frame, rest = write_batch(own))
        rest = write_part(rest, ends)
        next unless rest

        begun = rest.bytesize < frame.bytes.bytesize
        break put_back([frame]) unless begun || frame.equal?(own)

        continued = (frame.equal?(own) && block_given? ? yield(rest.bytesize) : true) && begun
        write_rest(rest) if continued
        clean = continued || !begun
        return continued ? :kept : nil
      end
      clean = true
      nil
    rescue *BREAKS
      nil # closed below
    ensure
      give_up unless clean
    end

    # give_up closes the connection. The session sends the pending frames on the next one.
    def give_up
      close
      @taking.synchronize { @pending.clear }
    end

    # write_batch writes as much as it can, without waiting, of the pending frames. It returns the
    # frame to go on with and its rest, or nil if its own frame needs no write.
    def write_batch(own)
      batch = take(own)
      return if batch.empty?

      n = @socket.write_nonblock(batch.map(&:bytes).join, exception: false)
      n = 0 if n == :wait_writable
      n -= batch.shift.bytes.bytesize while batch.size > 1 && n >= batch[0].bytes.bytesize
      frame = batch.shift
      put_back(batch)
      [frame, frame.bytes.byteslice(n, frame.bytes.bytesize)]
    end

    # take removes the next frames from the pending ones, if its own one is among these.
    def take(own)
      @taking.synchronize do
        size = 0
        next [] unless @pending.include?(own)

        small = @pending.take_while { |frame| (size += frame.bytes.bytesize) <= BATCH }
        @pending.shift([small.size, 1].max)
      end
    end

    def put_back(frames)
      @taking.synchronize { @pending.unshift(*frames) }
    end

    def withdraw(own)
      @taking.synchronize { @pending.delete(own) }
    end

    # write_part writes as much as it can until ends. It returns the rest, or nil if there is none.
    def write_part(frame, ends)
      until frame.empty?
        n = @socket.write_nonblock(frame, exception: false)
        if n != :wait_writable
          frame = frame.byteslice(n, frame.bytesize)
        elsif !writable?(ends)
          return frame
        end
      end
    end

    # write_rest writes the rest of a frame whose caller has left, in a thread that holds the write
    # lock.
    def write_rest(rest)
      Thread.new do
        while (left = write_part(rest, Connection.now + STALLED)) && left.bytesize < rest.bytesize
          rest = left
        end
        whole = left.nil?
      rescue *BREAKS
        nil # closed below
      ensure
        close unless whole
        @writing.release
      end
    end

    # writable? repeats its select, as wait_readable does.
    def writable?(ends)
      until IO.select(nil, [@socket], nil, ends ? (ends - Connection.now).clamp(0, 0.2) : 0.2)
        return false if ends && Connection.now >= ends
      end
      true
    end
  end
end
