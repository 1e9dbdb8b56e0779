# frozen_string_literal: true

# One process of the Ruby client, or of pg, that processes a queue until it is empty: loop.rb
# sidecar|driver N, or loop.rb worker.
#
# It claims and acks N jobs at a time. It prints the number of jobs and the seconds. The worker of the
# client does that for each line of its input: the number of its threads, and behind or sync.

CLAIM = <<~SQL
  WITH n AS MATERIALIZED (SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
  UPDATE rival r SET state = 1 FROM n WHERE r.id = n.id RETURNING r.id, r.payload
SQL

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# work claims and acks until the queue is empty, and returns the result.
def work(claim, ack)
  began = now
  done = 0
  until (jobs = claim.call).empty?
    ack.call(jobs)
    done += jobs.size
  end
  puts "#{done} #{now - began}"
end

def by_sidecar(count)
  require "qsidecar"
  Qsidecar::Client.open(codec: ENV.fetch("QSIDECAR_CODEC")) do |client|
    client.connect
    ack = count == 1 ? ->(jobs) { jobs[0].ack } : ->(jobs) { client.ack_many(jobs).empty? || abort("a lease was lost") }
    work(-> { client.claim("clients", max: count) }, ack)
  end
end

def by_driver(count)
  require "pg"
  connection = PG.connect(ENV.fetch("BENCH_DATABASE"))
  connection.prepare("claim", CLAIM)
  connection.prepare("one", "DELETE FROM rival WHERE id = $1")
  connection.prepare("many", "DELETE FROM rival WHERE id = ANY($1::bigint[])")
  ack = if count == 1
          ->(jobs) { connection.exec_prepared("one", [jobs[0][0]]) }
        else
          ->(jobs) { connection.exec_prepared("many", ["{#{jobs.map(&:first).join(",")}}"]) }
        end
  work(-> { connection.exec_prepared("claim", [count]).values }, ack)
end

def by_worker
  require "qsidecar"
  $stdout.sync = true
  $stdin.each_line do |line|
    threads, ack = line.split
    times = Queue.new
    worker = Qsidecar::Worker.new(logger: nil)
    worker.job("clients") { times << now }
    worker.run(concurrency: Integer(threads), drain: true, ack: ack.to_sym)
    all = Array.new(times.size) { times.pop }
    puts "#{all.size} #{all.max - all.min}"
  end
end

if ARGV[0] == "worker"
  by_worker
else
  send({ "sidecar" => :by_sidecar, "driver" => :by_driver }.fetch(ARGV[0]), Integer(ARGV[1]))
end
