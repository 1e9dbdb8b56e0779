# frozen_string_literal: true

module Qsidecar
  # Makes the adapter known to Active Job, before the application's configuration selects it.
  class Railtie < ::Rails::Railtie # :nodoc:
    ActiveSupport.on_load(:active_job) { require "active_job/queue_adapters/qsidecar_adapter" }
  end
end
