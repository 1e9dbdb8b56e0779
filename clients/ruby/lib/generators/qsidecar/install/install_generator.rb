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
    ADAPTER = /^(\s*config\.active_job\.queue_adapter\s*=).*/.freeze
    TEST = "config/environments/test.rb"
    APPLICATION = "config/application.rb"
    REQUIRE = "require \"active_job/railtie\""

    # An application of `rails new --minimal` doesn't load Active Job, and then each command fails at `config.active_job`.
    def require_active_job
      return if defined?(::ActiveJob::Railtie)
      unless Gem.loaded_specs.key?("activejob")
        raise Thor::Error, "Active Job isn't in the bundle: add `gem \"rails\"` or `gem \"activejob\"` to the Gemfile, and run the generator again"
      end

      commented = /^\s*#\s*require ["']active_job\/railtie["']/
      after = /^\s*require ["']rails["'].*\n/
      if text(APPLICATION).match?(commented)
        gsub_file APPLICATION, commented, REQUIRE
      elsif text(APPLICATION).match?(after)
        insert_into_file APPLICATION, "#{REQUIRE}\n", after: after
      else
        raise Thor::Error, "#{APPLICATION} doesn't load Active Job: add #{REQUIRE} to it, and run the generator again"
      end
      say_status :require, "Active Job, which the application didn't load: #{REQUIRE}"
    end

    # It is a line of the configuration, not an initializer. If a gem loads Active Job early, an initializer comes too
    # late, and Active Job keeps its adapter `:async`. Other adapters are replaced, because their lines would come later.
    def select_adapter
      environments = Dir.glob("config/environments/*.rb", base: destination_root) - [TEST]
      [APPLICATION, *environments].each do |file|
        gsub_file file, ADAPTER, "\\1 :qsidecar" if text(file).match?(ADAPTER)
      end
      add_adapter APPLICATION, "    config.active_job.queue_adapter = :qsidecar\n", /^\s*class Application < Rails::Application\n/
      add_adapter TEST, "  config.active_job.queue_adapter = :test\n", /^Rails\.application\.configure do\n/
    end

    def add_to_procfile
      procfile = text("Procfile")
      return create_file("Procfile", "worker: #{WORKER}\n") if procfile.empty?
      return say_status(:skip, "Procfile has a worker. Its command for qsidecar: #{WORKER}", :yellow) if procfile.match?(/^worker:/)

      append_to_file "Procfile", "#{"\n" unless procfile.end_with?("\n")}worker: #{WORKER}\n"
    end

    def create_unit
      template "qsidecar-worker.service.tt", "config/qsidecar-worker.service"
    end

    private

    # add_adapter adds a line to a file that exists and selects no adapter. Unlike `environment` it prints that.
    def add_adapter(file, line, after)
      insert_into_file file, line, after: after unless text(file).empty? || text(file).match?(ADAPTER)
    end

    # text returns the content of a file of the application, or nothing.
    def text(path)
      file = File.join(destination_root, path)
      File.exist?(file) ? File.read(file) : ""
    end

    def user
      Etc.getpwuid(File.stat(destination_root).uid)&.name || "deploy"
    end
  end
end
