# frozen_string_literal: true

# Connects the Ruby client to the conformance kit (clients/kit), which sends it one command a line.

$LOAD_PATH.unshift(File.join(__dir__, "lib"))
require "qsidecar"

# The client and the leases of its jobs.
class Adapter
  def initialize
    @lock = Mutex.new
    @jobs = {}
    @lost = []
    @client = Qsidecar::Client.new(
      worker: "kit", codec: ENV["QSIDECAR_CODEC"], request_timeout: 60, on_lost: ->(job) { @lock.synchronize { @lost << job } }
    ).connect
  end

  def run
    $stdin.each_line do |line|
      command = JSON.parse(line)
      command["tag"] ? Thread.new { answer(command) } : answer(command)
    end
  end

  # answer carries out a command and returns its result.
  def answer(command)
    result = begin
      { ok: true, **send(:"do_#{command["do"]}", command) }
    rescue Qsidecar::SettledOrLost then { ok: false, error: "SETTLED_OR_LOST" }
    rescue Qsidecar::UnknownOutcome then { ok: false, error: "UNKNOWN_OUTCOME" }
    rescue Qsidecar::SidecarError => e then { ok: false, error: e.code }
    rescue StandardError => e then { ok: false, error: "#{e.class}: #{e.message}" }
    end
    result[:tag] = command["tag"] if command["tag"]
    @lock.synchronize do
      puts JSON.generate(result)
      $stdout.flush
    end
  end

  def do_enqueue(c)
    stored = @client.enqueue(c["queue"], c["payload_b64"].unpack1("m"), raw: true, key: c["key"], group: c["group"],
                                                                                       start_within: c["start_within_ms"]&.fdiv(1000), on_expiry: c["on_expiry"],
                                                                                       on_conflict: c["on_conflict"])
    { id: stored.id, duplicate: stored.duplicate, outcome: stored.outcome }
  end

  def do_claim(c)
    jobs = @client.claim(c["queue"], max: c["max"], wait: c["wait_ms"] / 1000r)
    @lock.synchronize { jobs.each { |job| @jobs[job.id] = job } }
    { jobs: jobs.map { |j| { id: j.id, payload_b64: [j.raw].pack("m0"), attempt: j.attempt, fence: j.fence, progress: last_progress(j) } } }
  end

  def last_progress(job)
    last = job.last_progress
    last && { done: last.done, total: last.total, data_b64: [last.raw].pack("m0") }
  end

  def do_ack(c)
    job(c).ack(result: c["result_b64"]&.unpack1("m"))
    {}
  end

  def do_nack(c)
    job(c).nack(error: c["error"], delay: c["delay_ms"] && c["delay_ms"] / 1000r, dead: c["dead"] || false)
    {}
  end

  def do_extend(c)
    job(c).extend(c["lease_ms"] / 1000r)
    {}
  end

  def do_progress(c)
    job(c).progress(c["done"], c["total"], raw: c["data_b64"]&.unpack1("m"))
    {}
  end

  def do_lost(_)
    lost = @lock.synchronize { @lost.dup }
    { ids: lost.map(&:id), cancelled: lost.select(&:cancelled?).map(&:id) }
  end

  def do_exec(_)
    { pid: spawn("exec sleep 1000", close_others: false) }
  end

  def do_close(_)
    @client.close
    {}
  end

  def job(c)
    @lock.synchronize { @jobs.fetch(c["id"]) }
  end
end

Adapter.new.run
