# frozen_string_literal: true

require "socket"

module Qsidecar
  # One connection to a sidecar, from its hello to its end. The session's thread
  # reads, any thread writes.
  class Link
    # What a sidecar has seconds for to answer a hello.
    HELLO_TIME = 10

    # How long the sidecar may read nothing of a frame whose caller has gone.
    STALLED = 30

    # The largest reply there can be: 8 times the largest max_frame, 64 MiB.
    MAX_REPLY = 512 << 20

    # What breaks a connection.
    BREAKS = [SystemCallError, IOError, Codec::Garbage].freeze

    # Where a sidecar's socket is looked for: what is named, or the environment's, or
    # the first of the usual places where somebody listens.
    def self.sockets(named = nil)
      named ||= ENV["QSIDECAR_SOCKET"]
      return [named] unless named.nil? || named.empty?

      dir = ENV["XDG_RUNTIME_DIR"]
      places = ["/run/qsidecar/qsidecar.sock"]
      places.unshift(File.join(dir, "qsidecar", "qsidecar.sock")) unless dir.nil? || dir.empty?
      places
    end

    attr_reader :number, :since, :max_frame, :max_payload

    # Connects to the socket at path. Ruby opens it close-on-exec.
    def initialize(path, codec, number)
      @socket = Link.connect(path)
      @socket.binmode
      @codec = codec
      @number = number
      @writing = Turn.new
      @since = Link.now
    end

    # connect does not wait: a stopped sidecar takes no connections once its queue of them is full.
    def self.connect(path)
      socket = Socket.new(:UNIX, :STREAM)
      socket.connect_nonblock(Socket.sockaddr_un(path))
      connected = socket
    ensure
      socket.close unless connected
    end

    def self.now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # hello says who is there, and learns the limits.
    def hello(worker, ends = nil)
      ends = [ends, Link.now + HELLO_TIME].compact.min
      write(@codec.encode(id: 0, op: "hello", version: 1, worker: worker, events: %w[lost draining]), ends)
      answered(ends)
      reply = read
      reply = read while reply&.key?("event") # draining may come first
      raise Codec::Garbage, "the connection was closed before an answer to hello" unless reply
      raise Qsidecar.error(reply["error"] || {}) unless reply["ok"]

      @max_frame = reply["max_frame"]
      @max_payload = reply["max_payload"]
      self
    end

    # encode makes a request's frame, or says that the sidecar would not take it:
    # it would close the connection on everybody.
    def encode(request, largest)
      if largest && @max_payload && largest > @max_payload
        raise TooLarge, "#{request[:op]} was not sent: a payload has #{largest} bytes and the sidecar takes #{@max_payload} at most (max_payload)"
      end

      frame = @codec.encode(request)
      size = @codec.size(frame)
      return frame unless @max_frame && size > @max_frame

      raise TooLarge, "#{request[:op]} was not sent: it has #{size} bytes and the sidecar takes #{@max_frame} at most (max_frame)"
    end

    # write sends a frame. Where that fails, or the thread is interrupted in the middle, the
    # connection is closed: the reader notices. If the time is over first, the block gets the number
    # of bytes left. If it returns true, or there is no block, a thread writes the rest of a frame
    # that was begun. If it returns false, the connection of such a frame is closed.
    def write(frame, ends = nil, &late)
      @writing.take(ends) { push(frame, ends, &late) } || late&.call(frame.bytesize)
    end

    # read is the next message; nil where the connection has ended.
    def read
      message = @codec.read(@socket, MAX_REPLY)
      raise Codec::Garbage, "a message that is no map" unless message.nil? || message.is_a?(Hash)

      message
    end

    # answered waits for the first answer. A select does not notice that another thread
    # closes the socket: so it looks again, which raises then.
    def answered(ends)
      until IO.select([@socket], nil, nil, (ends - Link.now).clamp(0, 0.2))
        raise Codec::Garbage, "no answer to hello in time" if Link.now > ends
      end
    end

    def bytes(map, field)
      @codec.bytes(map, field)
    end

    # close closes this process's descriptor, and shuts nothing down: after a fork
    # the connection is the parent's.
    def close
      @socket.close
    rescue *BREAKS
      nil # it is closed already
    end

    private

    def push(frame, ends)
      clean = false # whether another frame may follow
      rest = some(frame, ends)
      goes_on = rest && (block_given? ? yield(rest.bytesize) : true) && rest.bytesize < frame.bytesize
      finish(rest) if goes_on
      clean = goes_on || rest.nil? || rest.bytesize == frame.bytesize
      :kept if goes_on
    rescue *BREAKS
      nil # closed below
    ensure
      close unless clean
    end

    # some writes as much as can be until then, and gives what is left; nil: nothing.
    def some(frame, ends)
      until frame.empty?
        n = @socket.write_nonblock(frame, exception: false)
        if n != :wait_writable
          frame = frame.byteslice(n, frame.bytesize)
        elsif !writable?(ends)
          return frame
        end
      end
    end

    # finish writes the rest of a frame whose caller has gone, by a thread that has the turn.
    def finish(rest)
      Thread.new do
        while (left = some(rest, Link.now + STALLED)) && left.bytesize < rest.bytesize
          rest = left
        end
        whole = left.nil?
      rescue *BREAKS
        nil # closed below
      ensure
        close unless whole
        @writing.leave
      end
    end

    # writable? looks again and again, as answered does.
    def writable?(ends)
      until IO.select(nil, [@socket], nil, ends ? (ends - Link.now).clamp(0, 0.2) : 0.2)
        return false if ends && Link.now >= ends
      end
      true
    end
  end
end
