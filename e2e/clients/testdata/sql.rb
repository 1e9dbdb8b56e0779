# frozen_string_literal: true

# Inserts jobs in a Ruby program's own transactions, on the connection that DATABASE describes as
# JSON, and checks the sidecar's replies.

require "qsidecar/sql"

def connect(to)
  case to.fetch("engine")
  when "sqlite"
    require "sqlite3"
    SQLite3::Database.new(to.fetch("file")).tap { |db| db.busy_timeout = 10_000 }
  when "postgres"
    require "pg"
    PG.connect(to.fetch("url"))
  when "mysql"
    require "mysql2"
    Mysql2::Client.new(**to.fetch("config").transform_keys(&:to_sym))
  end
end

def execute(connection, sql)
  connection.respond_to?(:query) ? connection.query(sql) : connection.exec(sql)
end

def equal(want, got)
  raise "#{got.inspect}, want #{want.inspect}" unless got == want
end

client = Qsidecar::Client.new
connection = connect(JSON.parse(ENV.fetch("DATABASE")))
every = (0..255).to_a.pack("C*")

execute(connection, "BEGIN")
Qsidecar::SQL.enqueue(connection, "sql", "rolled back")
execute(connection, "ROLLBACK")

execute(connection, "BEGIN")
Qsidecar::SQL.enqueue(connection, "sql", { "a" => "é" }, priority: 3, headers: { "lang" => "é\"" }, max_attempts: 7)
Qsidecar::SQL.enqueue(connection, "sql", every, raw: true)
Qsidecar::SQL.enqueue(connection, "later", 1, delay: 3600)
Qsidecar::SQL.enqueue(connection, "later", 2, run_at: Time.at(1_900_000_000))
equal [], client.claim("sql") unless connection.class.name.start_with?("SQLite3") # on SQLite the claim waits for the writer
execute(connection, "COMMIT")

jobs = []
jobs.concat(client.claim("sql", max: 5, wait: 20)) until jobs.size == 2
jobs.sort_by!(&:max_attempts)
equal({ "a" => "é" }, jobs[0].payload)
equal [3, { "lang" => "é\"" }, 7], [jobs[0].priority, jobs[0].headers, jobs[0].max_attempts]
equal every, jobs[1].raw
client.ack_many(jobs)

# The sidecar changes a row when it has found it.
later = []
240.times do
  later = client.request("peek", queue: "later", state: "scheduled")["jobs"]
  later.size == 2 ? break : client.claim("later", wait: 0.25)
end
at = later.map { |j| [j["payload"], j["run_at"]] }.to_h
equal 1_900_000_000_000, at["2"]
raise "an hour from now is #{at["1"]}" unless ((at["1"] / 1000.0) - Time.now.to_f).between?(3000, 3601)

[["engine", Object.new], ["schema", connection]].each do |what, on|
  Qsidecar::SQL.enqueue(on, "sql", 1, schema: "x;y")
rescue ArgumentError
  nil
else
  raise "a wrong #{what} was taken"
end
equal [], client.claim("sql")

# A key is the same whichever way a job is stored, and it depends on its transaction.
transaction = lambda do |how, &work|
  execute(connection, "BEGIN")
  work.call.tap { execute(connection, how) }
end
keyed = ->(payload, **more) { Qsidecar::SQL.enqueue(connection, "keys", payload, **more) }
transaction.call("ROLLBACK") { keyed.call("never was", key: "k") }
first, again = transaction.call("COMMIT") { [keyed.call("first", key: "k"), keyed.call("again", key: "k")] }
equal [false, true, first.id, "ready"], [first.duplicate, again.duplicate, again.id, again.state]
equal [first.id, true], client.enqueue("keys", "by the client", key: "k").to_a.first(2)
job = client.claim("keys", wait: 20).first
equal [first.id, "first", "k"], [job.id, job.payload, job.key]
job.ack
equal true, transaction.call("COMMIT") { keyed.call("remembered", key: "k") }.duplicate
# On MySQL the following job is newer than all that a plain SELECT of the transaction reads.
mysql = connection.class.name.start_with?("Mysql2")
other = connect(JSON.parse(ENV.fetch("DATABASE")))
late = transaction.call("COMMIT") do
  execute(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT") if mysql
  execute(other, "BEGIN")
  stored = Qsidecar::SQL.enqueue(other, "keys", "late", key: "late", key_ttl: 0)
  execute(other, "COMMIT")
  [stored.id, keyed.call("duplicate", key: "late")].tap do
    next unless mysql

    execute(other, "BEGIN") # a worker's ack must not wait for the transaction, which can wait for the ack
    execute(other, "SELECT id FROM qsidecar_jobs WHERE id = #{stored.id} FOR UPDATE NOWAIT")
    execute(other, "COMMIT")
  end
end
equal [late[0], true, "ready"], late[1].to_a.first(3)
client.claim("keys", wait: 20).first.ack
short = transaction.call("COMMIT") { keyed.call("short", key: "é", key_ttl: 0) }
client.claim("keys", wait: 20).first.ack
after = transaction.call("COMMIT") { keyed.call("after", key: "é") }
equal [false, true], [after.duplicate, after.id != short.id]
client.claim("keys", wait: 20).first.ack
# In a queue of its own, of which the sidecar claims no job ahead.
starts = ->(payload, **more) { Qsidecar::SQL.enqueue(connection, "starts", payload, **more) }
start = client.enqueue("starts", "start", key: "start", key_until: :start)
equal [start.id, true], transaction.call("COMMIT") { starts.call("waits", key: "start") }.to_a.first(2)
started = client.claim("starts", wait: 20).first
free = transaction.call("COMMIT") { starts.call("free", key: "start") }
equal [false, true], [free.duplicate, free.id != start.id]
started.ack
client.claim("starts", wait: 20).first.ack
[{ key_until: :start }, { on_conflict: :replace }, { on_conflict: "debounce" }].each do |needs|
  keyed.call("refused", key: "refused", **needs)
rescue ArgumentError => e
  equal true, e.message.include?("use Client#enqueue")
else
  raise "#{needs} was taken"
end
transaction.call("ROLLBACK") { keyed.call("defaults", key: "refused", key_until: :finish, on_conflict: :keep) }
if connection.class.name.start_with?("PG") # the notification is sent when the transaction commits
  listener = connect(JSON.parse(ENV.fetch("DATABASE")))
  listener.exec("LISTEN qsidecar_qsidecar")
  transaction.call("COMMIT") { keyed.call("quiet", wake: false) && keyed.call("woken") }
  nil until listener.wait_for_notify(60) { |_, _, word| @word = word } && @word.start_with?("ruby ")
  equal "ruby keys", @word
  2.times { client.claim("keys", wait: 20).first.ack }
end

# A job whose time is over doesn't start, whichever way it is stored.
expiring = ->(payload, **more) { Qsidecar::SQL.enqueue(connection, "expiring", payload, **more) }
past = Time.utc(2001, 2, 3)
dead, gone = transaction.call("COMMIT") do
  late = [expiring.call(1, start_before: past), expiring.call(2, start_before: past, on_expiry: :delete)].map(&:id)
  expiring.call(3, start_within: 3600, retain: 60)
  expiring.call(4, start_within: 3600, run_at: past)
  late
end
jobs = []
jobs += client.claim("expiring", max: 10, wait: 20) while jobs.size < 2 # MySQL makes an INSERT with a run_at ready in its maintenance
equal [3, 4], jobs.map(&:payload)
client.ack_many(jobs)
equal [3], (client.request("peek", queue: "expiring", state: "done")["jobs"].map { |j| j["payload"].to_i })
equal [[dead, "expired"]], (client.request("peek", queue: "expiring", ids: [dead, gone])["jobs"].map { |j| [j["id"], j["errors"][0]["cause"]] })

# A group holds for all jobs, whichever way they are stored.
grouped = ->(payload, **more) { Qsidecar::SQL.enqueue(connection, "grouped", payload, **more) }
stored = transaction.call("COMMIT") { [1, 2].map { |n| grouped.call(n, group: "é", key: "g#{n}").id } }
stored << client.enqueue("grouped", 3, group: "é").id
transaction.call("COMMIT") { grouped.call(4, group: "É") }
sleep 0.01 until client.stats("grouped").first["ready"] == 2
equal [stored[1], true, "blocked"], transaction.call("COMMIT") { grouped.call("again", group: "é", key: "g2") }.to_a.first(3)
jobs = client.claim("grouped", max: 10, wait: 20)
equal [[stored[0], 1], 4], [[jobs[0].id, jobs[0].payload], jobs[1].payload]
equal 2, client.stats("grouped").first["blocked"]
client.ack_many(jobs)
[2, 3].each do |n|
  job = client.claim("grouped", wait: 20).first
  equal [stored[n - 1], n], [job.id, job.payload]
  job.ack
end

# The README's block, unchanged. The drivers differ only in how a transaction starts.
require "qsidecar/testing"
execute(connection, "CREATE TABLE orders (item varchar(20))")
readme = File.read(File.join($LOAD_PATH.find { |dir| File.exist?(File.join(dir, "qsidecar.rb")) }, "../README.md"))
shown = readme.scan(/^```ruby\n(.*?)^```/m).flatten.last
run = method(:execute)
connection.define_singleton_method(:exec) { |sql| run.call(self, sql) } unless connection.respond_to?(:exec)
unless connection.respond_to?(:transaction)
  connection.define_singleton_method(:transaction) { |&work| query("BEGIN"); work.call; query("COMMIT") }
end
define_singleton_method(:sign_up) { |name| Qsidecar::Client.new.enqueue("greet", name) }
eval(shown) # rubocop:disable Security/Eval
equal({ "order" => 17 }, client.claim("mail", wait: 20).first.tap(&:ack).payload)
client.close
