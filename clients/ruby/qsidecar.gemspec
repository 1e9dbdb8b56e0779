# frozen_string_literal: true

Gem::Specification.new do |s|
  s.name = "qsidecar"
  s.version = File.read(File.join(__dir__, "lib/qsidecar.rb"))[/VERSION = "(.*)"/, 1]
  s.summary = "Client and worker for qsidecar, a job queue in the database you already have"
  s.description = "Enqueue, claim, ack and nack jobs through the qsidecar of this host, over its Unix socket. " \
                  "Standard library alone; msgpack is used where it is installed."
  s.authors = ["the authors of qsidecar"]
  s.homepage = "https://github.com/qsidecar/qsidecar"
  s.license = "Apache-2.0"
  s.metadata = { "rubygems_mfa_required" => "true" }
  s.required_ruby_version = ">= 2.7"
  s.files = Dir.chdir(__dir__) { Dir["lib/**/*.{rb,tt}", "exe/*", "README.md", "LICENSE"] }
  s.bindir = "exe"
  s.executables = Dir.chdir(__dir__) { Dir["exe/*"].map { |f| File.basename(f) } }
end
