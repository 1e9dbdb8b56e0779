# frozen_string_literal: true

require "etc"
require "rails/generators"

module Qsidecar
  # `bin/rails generate qsidecar:install` selects the adapter, and describes the worker for Procfile and systemd.
  class InstallGenerator < ::Rails::Generators::Base # :nodoc:
    source_root File.join(__dir__, "templates")
    desc "Makes qsidecar the queue of Active Job. It changes config/application.rb, config/environments/test.rb and Procfile, " \
         "and creates config/qsidecar-worker.service, a systemd unit."

    WORKER = "bundle exec qsidecar-work --rails"

    # It is a line of the configuration, not an initializer. If a gem loads Active Job early, an initializer comes too
    # late, and Active Job keeps its adapter `:async`.
    def select_adapter
      environment "config.active_job.queue_adapter = :qsidecar"
      environment "config.active_job.queue_adapter = :test", env: "test" if File.exist?(inside_app("config/environments/test.rb"))
    end

    def add_to_procfile
      create_file "Procfile" unless File.exist?(inside_app("Procfile"))
      append_to_file "Procfile", "worker: #{WORKER}\n"
    end

    def create_unit
      template "qsidecar-worker.service.tt", "config/qsidecar-worker.service"
    end

    private

    def inside_app(path)
      File.join(destination_root, path)
    end

    def user
      Etc.getpwuid(File.stat(destination_root).uid)&.name || "deploy"
    end
  end
end
