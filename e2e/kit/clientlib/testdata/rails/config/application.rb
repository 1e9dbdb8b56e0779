require "bundler/setup"
require "bootsnap/setup"
require "rails"
require "active_job/railtie"
require "active_record/railtie"
require "action_mailer/railtie"
Bundler.require(*Rails.groups)

module Shop
  class Application < Rails::Application
    config.load_defaults Rails::VERSION::STRING.to_f
    config.eager_load = false
    config.action_mailer.delivery_method = :test
    config.action_mailer.deliver_later_queue_name = "mailers"
    config.secret_key_base = "a" * 64
    config.logger = Logger.new($stderr)
    config.log_level = :warn
  end
end
