# Enqueues from where a program has no control, and prints what happens. No call waits for itself.
def enqueue(place)
  got = begin
    NoteJob.set(queue: "odd").perform_later(place).provider_job_id ? "stored" : "no id"
  rescue Qsidecar::Error, ThreadError => e
    e.class
  end
  $stdout.syswrite("#{place}: #{got}\n") # puts takes a lock
end

ActiveJob::Base.logger = Logger.new(nil) # so that only this prints
enqueue("usual")
session = NoteJob.queue_adapter.instance_variable_get(:@client).session
handled = Queue.new
trap("USR1") { enqueue("signal") && handled << true }
Process.kill("USR1", Process.pid)
handled.pop
trap("USR1") { Thread.new { enqueue("thread of a signal") && handled << true } }
Process.kill("USR1", Process.pid)
handled.pop
ActiveSupport::Notifications.subscribed(->(*) { enqueue("subscriber") }, "perform_start.active_job") { NoteJob.perform_now("now") }
session.instance_variable_get(:@lock).synchronize { enqueue("in the middle of a call") }
Process.wait(fork { enqueue("child") && exit!(0) })
enqueue("parent")
ObjectSpace.define_finalizer($kept = Object.new, ->(_) { enqueue("finalizer at the end") })
at_exit { enqueue("at_exit") }
