# frozen_string_literal: true

require "json"

module Qsidecar
  # The two codecs of the wire. Each encodes a request (a Hash with Symbol keys; payload and result
  # are bytes, all other Strings are text) as a frame, reads one reply (a Hash with String keys)
  # from an IO, and returns the bytes fields of a reply.
  module Codec
    # The bytes that were read are not from a sidecar.
    class Garbage < StandardError; end

    # The oldest msgpack for Ruby 2. Debian 11's msgpack 1.4.2 crashes multi-threaded processes with
    # a segmentation fault on Ruby 2.7.4 (in MessagePack.pack, where it copies the registry of its
    # factory; in one of ten runs of the test suite). It was not seen with the same msgpack on
    # Debian 12's Ruby 3.1.
    OLDEST_MSGPACK = [1, 5].freeze

    # Returns the codec of that name. The default is msgpack if the gem is installed.
    def self.choose(name = nil)
      case name&.to_sym
      when nil then msgpack? ? Msgpack : JSONLines
      when :json then JSONLines
      when :msgpack then msgpack? ? Msgpack : raise(ArgumentError, "codec: the gem msgpack is not installed, or, on Ruby 2, older than #{OLDEST_MSGPACK.join(".")}")
      else raise ArgumentError, "codec is :json or :msgpack, not #{name.inspect}"
      end
    end

    def self.msgpack?
      require "msgpack/version" # checked before the C extension is loaded
      return false if RUBY_VERSION < "3" && (MessagePack::VERSION.split(".").first(2).map(&:to_i) <=> OLDEST_MSGPACK).negative?

      require "msgpack"
      true
    rescue LoadError
      false
    end

    # text returns s as UTF-8.
    def self.text(value)
      s = value.is_a?(Symbol) ? value.to_s : String(value)
      s = s.encoding == Encoding::BINARY ? s.dup.force_encoding(Encoding::UTF_8) : s.encode(Encoding::UTF_8)
      raise ArgumentError, "this is no text, as it is not UTF-8: #{s.inspect[0, 80]}" unless s.valid_encoding?

      s
    end

    # One JSON object a line.
    module JSONLines
      module_function

      def encode(request)
        JSON.generate(plain(request)) << "\n"
      end

      # plain writes bytes as text if they are UTF-8, otherwise as base64.
      def plain(map)
        map.each_with_object({}) do |(field, value), out|
          case field
          when :payload, :result, :data
            s = value.dup.force_encoding(Encoding::UTF_8)
            s.valid_encoding? ? out[field] = s : out["#{field}_b64"] = [value].pack("m0")
          when :jobs, :enqueue then out[field] = value.map { |job| plain(job) }
          when :schedule then out[field] = plain(value)
          else out[field] = value
          end
        end
      end

      # read returns the next reply, or nil if the stream has ended. A partial reply counts as the
      # end.
      def read(io, most)
        line = io.gets("\n", most)
        return nil unless line&.end_with?("\n")

        JSON.parse(line.force_encoding(Encoding::UTF_8))
      rescue JSON::ParserError, EncodingError => e
        raise Garbage, e.message
      end

      def size(frame)
        frame.bytesize - 1
      end

      def bytes(map, field)
        b64 = map["#{field}_b64"]
        b64 ? b64.unpack1("m") : map[field]&.b
      end
    end

    # One msgpack map a frame.
    module Msgpack
      module_function

      def encode(request)
        body = MessagePack.pack(request)
        [body.bytesize].pack("N") << body
      end

      def read(io, most)
        head = io.read(4)
        return nil unless head&.bytesize == 4

        size = head.unpack1("N")
        raise Garbage, "a frame of #{size} bytes, and #{most} are the most" if size > most

        body = io.read(size)
        body&.bytesize == size ? MessagePack.unpack(body) : nil
      rescue MessagePack::UnpackError, EOFError, NoMemoryError => e # NoMemoryError: a list that declares 2^32 elements
        raise Garbage, e.message
      end

      def size(frame)
        frame.bytesize - 4
      end

      def bytes(map, field)
        map[field]&.b
      end
    end
  end
end
