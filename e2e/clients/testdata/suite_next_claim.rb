# frozen_string_literal: true

# Records the requests of all clients while `sent` is a list, and calls `after` with each op.
module Recorder
  class << self
    attr_accessor :sent, :after
  end

  private

  def send_request(operation, fields, **how)
    Recorder.sent&.push([operation, fields.key?(:claim)])
    super.tap { Recorder.after&.call(operation) }
  end
end
Qsidecar::Client.prepend(Recorder)

# The claim that a settle of the worker carries if the worker waits for it.
class Suite
  def check_next_claim
    did, sent = run_next("next", (0...10).to_a, drain: true)
    equal (0...10).to_a, did
    equal [["claim", false], *[["ack", true]] * 10, ["claim", false]], sent
  end

  # The next job comes beside the error of a job whose lease was lost.
  def check_next_job_of_a_lost_job
    did, sent = run_next("next-lost", %w[lost next], drain: true) do |_, job|
      # As another client would while the worker is suspended.
      @client.request("nack", lease: job.lease, dead: true) if job.payload == "lost"
    end
    equal %w[lost next], did
    equal [["claim", false], ["ack", true], ["ack", true], ["claim", false]], (sent - [["nack", false]])
  end

  # The job that comes with the reply goes back and uses up no attempt.
  def check_stop_during_a_settle_that_claims
    did, sent = run_next("next-stop", [0, 1], at_ack: ->(worker) { worker.instance_variable_set(:@stopping, true) && worker.stop })
    equal [0], did
    equal [["claim", false], ["ack", true], ["nack", false]], sent.first(3)
    job = @client.claim("next-stop", wait: 20).first # a peek of ready jobs lacks it while it is prefetched
    equal [1, 1], [job.payload, job.attempt]
    job.ack
  end

  # A worker that stops, and a thread that ends, settle without a claim.
  def check_settles_without_a_claim
    _, sent = run_next("next-stopping", [0]) { |worker, _| worker.instance_variable_set(:@stopping, true) && worker.stop }
    equal true, sent.include?(["ack", false])
    did, sent = run_next("next-thread-ends", [0, 1], drain: true) { |_, job| Thread.exit if job.payload == 0 }
    equal [[0, 1], true], [did, sent.include?(["nack", false])]
  end

  # A settle that is repeated does not claim again if it has a job. It keeps that job.
  def check_jobs_of_an_earlier_try
    3.times { |n| @client.enqueue("next-again", n) }
    client, session = client_and_session
    job = client.claim("next-again", wait: 20).first
    job.next_claim = { queue: "next-again" }
    claims = []
    session.define_singleton_method(:finish) do |call, reply: nil, error: nil|
      claims << call.claim if call.settle?
      error = Qsidecar.error("code" => "unavailable", "message" => "again", "retry_ms" => 0) if claims.size == 1
      super(call, reply: reply, error: error)
    end
    raises(Qsidecar::LeaseLost) { job.ack } # the first try settled it
    equal [{ queue: "next-again" }, nil], claims
    equal [1], job.next_jobs.map(&:payload)
    job.next_jobs[0].ack
    client.close
  end

  # The caller leaves before the reply is there, or before it has read it.
  def check_an_abandoned_settle_returns_its_jobs
    { "sent" => :answer, "done" => :finish }.each do |state, after|
      queue = "next-#{state}"
      2.times { |n| @client.enqueue(queue, n) }
      client, session = client_and_session
      job = client.claim(queue, wait: 20).first
      job.next_claim = { queue: queue }
      leave_early(session, after)
      raises(Interrupt) { job.ack }
      back = one(queue)
      equal [1, 1, []], [back.payload, back.attempt, job.next_jobs]
      back.ack
      client.close
    end
  end

  private

  # run_next enqueues payloads and works. It returns the payloads that ran, and the requests of the
  # worker with whether each carries a claim.
  def run_next(queue, payloads, drain: false, at_ack: nil)
    payloads.each { |payload| @client.enqueue(queue, payload, max_attempts: 1) } # a retry would run again on a slow machine
    did = []
    worker = Qsidecar::Worker.new(logger: silent, **@options)
    worker.job(queue) do |job|
      did << job.payload
      yield worker, job if block_given?
    end
    Recorder.sent = sent = []
    Recorder.after = ->(op) { at_ack&.call(worker) if op == "ack" }
    worker.run(concurrency: 1, drain: drain, ack: :sync)
    [did, sent]
  ensure
    Recorder.sent = Recorder.after = nil
  end

  def client_and_session
    client = Qsidecar::Client.new(**@options)
    [client.connect, client.send(:session)]
  end

  # leave_early interrupts the caller of an ack. If after is :answer, the reply comes after that.
  def leave_early(session, after)
    held = nil
    session.define_singleton_method(:answer) do |link, message|
      call = @open[message["id"]]
      after == :answer && call&.op == "ack" && !call.abandoned ? held = [link, message] : super(link, message)
    end
    session.define_singleton_method(:step) do |call|
      return super(call) unless call.op == "ack" && call.state != :queued

      super(call) if after == :finish
      raise Interrupt
    end
    session.define_singleton_method(:abandon_call) do |call|
      super(call)
      @lock.synchronize { answer(*held) if held }
    end
  end
end
