# frozen_string_literal: true

require "socket"

module Qsidecar
  # One connection to a sidecar, from its hello to its end. The session's thread
  # reads, any thread writes.
  class Link
    # What a sidecar has seconds for to answer a hello.
    HELLO_TIME = 10

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
      @socket = UNIXSocket.new(path)
      @socket.binmode
      @codec = codec
      @number = number
      @writing = Mutex.new
      @since = Link.now
    end

    def self.now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # hello says who is there, and learns the limits.
    def hello(worker, ends = nil)
      write(@codec.encode(id: 0, op: "hello", version: 1, worker: worker, events: %w[lost draining]))
      answered([ends, Link.now + HELLO_TIME].compact.min)
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

    # write sends a frame whole. Where that fails, or the thread is interrupted in
    # the middle, the connection is closed: the reader notices.
    def write(frame)
      @writing.synchronize do
        whole = false
        begin
          @socket.write(frame)
          whole = true
        rescue *BREAKS
          nil # closed below
        ensure
          close unless whole
        end
      end
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
  end
end
