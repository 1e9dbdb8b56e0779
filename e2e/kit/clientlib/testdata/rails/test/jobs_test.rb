ENV["RAILS_ENV"] = "test"
require_relative "../config/environment"
require "minitest/autorun"
require "active_job/test_helper"
require "qsidecar/testing"
require "qsidecar/active_job_worker"

class JobsTest < ActiveSupport::TestCase
  include ActiveJob::TestHelper

  test "Active Job's helper, and the gem's beside it" do
    did = Qsidecar::Testing.inline do
      assert_enqueued_with(job: NoteJob, args: ["ada"], queue: "default") { NoteJob.perform_later("ada") }
      Qsidecar::Client.open { |client| client.enqueue("thumbnails", 17) }
    end
    assert_equal ["thumbnails"], did.map { |done| done.job.queue }
    perform_enqueued_jobs
    assert_performed_jobs 1
  end
end

class InlineJob < NoteJob
  self.queue_adapter = :qsidecar
end

class InlineTest < ActiveSupport::TestCase
  test "the adapter runs jobs at once" do
    did = Qsidecar::Testing.inline(Qsidecar::ActiveJobWorker.new("default")) { InlineJob.perform_later("inline") }
    assert_equal [["default", :acked]], did.map { |done| [done.job.queue, done.outcome] }
  end
end
