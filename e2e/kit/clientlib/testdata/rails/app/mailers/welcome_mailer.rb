class WelcomeMailer < ActionMailer::Base
  def welcome(name)
    File.write(ENV.fetch("WORKER_LOG"), "mail for #{name}\n", mode: "a")
    mail(to: "#{name}@example.org", from: "shop@example.org", subject: "Welcome", body: "Welcome", content_type: "text/plain")
  end
end
