# frozen_string_literal: true

# The Worker of the Ruby client of this repository, with its sidecar. The commands are those of harness.mjs, without flow.

$LOAD_PATH.unshift File.expand_path("../../clients/ruby/lib", __dir__)
require "json"
require "qsidecar"

W = JSON.parse(ARGV[0])
QUEUE = W["queue"]
BATCH = W["batch"]
PAYLOAD = { at: 0, pad: "a" * W["size"] }.freeze
CLIENT = Qsidecar::Client.new(socket: W["socket"])

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def version
  "this commit"
end

def left
  CLIENT.stats(QUEUE).sum { |queue| queue["ready"] + queue["claimed"] }
end

def produce(jobs)
  todo = Queue.new
  (jobs / BATCH).times { todo << true }
  todo.close
  batch = Array.new(BATCH) { { queue: QUEUE, payload: PAYLOAD } }
  began = now
  threads = Array.new(W["producers"]) do
    Thread.new { (BATCH > 1 ? CLIENT.enqueue_many(batch) : CLIENT.enqueue(QUEUE, PAYLOAD)) while todo.pop }
  end
  threads.each(&:join)
  { jobs: jobs, seconds: now - began }
end

# The clock includes the start of the worker.
def consume(_)
  done = Queue.new
  worker = Qsidecar::Worker.new(socket: W["socket"], logger: nil)
  worker.job(QUEUE) { |job| done << job.payload }
  began = now
  worker.run(concurrency: W["workers"], drain: true) # it returns when all are acked
  { jobs: done.size, seconds: now - began }
end

$stdout.sync = true
$stdin.each_line do |line|
  name, *args = line.split
  puts JSON.generate(send({ "version" => :version, "left" => :left, "produce" => :produce, "consume" => :consume }.fetch(name), *args.map { |n| Integer(n) }))
end
