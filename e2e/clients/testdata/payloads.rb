# frozen_string_literal: true

# Enqueues a payload of each type in queues, or prints the payloads of queues.
# Usage: payloads.rb enqueue|read QUEUE…
require "json"
require "qsidecar"

what, *queues = ARGV
Qsidecar::Client.open do |client|
  queues.each do |queue|
    if what == "enqueue"
      ["Zoë, \"☎\"\n", 17, { "to" => ["ada", 1.5, nil] }, nil].each { |value| client.enqueue(queue, value) }
      client.enqueue(queue, "\xFF\xFE".b, raw: true)
      next
    end
    client.claim(queue, max: 10).each do |job|
      begin
        puts JSON.generate("queue" => queue, "value" => job.payload)
      rescue JSON::ParserError => e
        puts JSON.generate("queue" => queue, "bytes" => job.raw.unpack1("H*"), "error" => e.message.b.inspect)
      end
      job.ack
    end
  end
end
