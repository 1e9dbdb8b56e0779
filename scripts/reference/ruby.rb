# frozen_string_literal: true

# Prints the page of the Ruby client's API, from the comments in its source. RDoc, which comes with
# Ruby, reads the source and converts the comments to Markdown.

require "rdoc"

MODULES = %w[Qsidecar Qsidecar::Client Qsidecar::Job Qsidecar::Enqueued Qsidecar::Batch Qsidecar::Worker Qsidecar::SQL Qsidecar::Testing
             Qsidecar::ActiveJobWorker ActiveJob::QueueAdapters::QsidecarAdapter].freeze

# Methods that are public for other files of the library only.
INTERNAL = %w[
  Qsidecar.error Qsidecar::Client#on_outage Qsidecar::Client#inline Qsidecar::Client.inline Qsidecar::Job#settled! Qsidecar::SQL#columns
  Qsidecar::SQL#engine Qsidecar::SQL#run_postgres Qsidecar::Worker#handles? Qsidecar::Worker#made Qsidecar::Worker#ran
  Qsidecar::Worker#ran? Qsidecar::Worker.exit_status
].freeze

options = RDoc::Options.new
options.verbosity = 0
options.visibility = :public
store = RDoc::Store.new
store.options = options if store.respond_to?(:options=)
rdoc = RDoc::RDoc.new
rdoc.options = options
rdoc.store = store
stats = RDoc::Stats.new(store, 0, 0)
Dir["clients/ruby/lib/**/*.rb"].sort.each do |file|
  top = store.add_file(file, relative_name: file, parser: RDoc::Parser::Ruby)
  RDoc::Parser::Ruby.new(top, file, File.read(file), options, stats).scan
end
store.complete(:public)

# bullets writes the lines that describe parameters, as in "wait: in seconds", as a list.
def bullets(text, names)
  item = false
  text.lines.map do |line|
    name, rest = line.match(/\A(\w+): +(.*)/m)&.captures
    if name && names.include?(name)
      item = true
      "* <code>#{name}</code>: #{rest}"
    elsif item && line.start_with?("  ")
      "  #{line.lstrip}"
    else
      item = false
      line
    end
  end.join
end

def markdown(comment, names = [])
  text = comment.respond_to?(:text) ? comment.text : comment.to_s
  return "" if text.strip.empty?

  RDoc::Markup.parse(bullets(text, names)).accept(RDoc::Markup::ToMarkdown.new).strip
end

def parameters(method)
  (method.params || "()").gsub(/\s+/, " ").strip
end

def show(heading, title, signature, comment)
  puts "#{heading} #{title}\n\n```ruby\n#{signature}\n```\n\n"
  text = markdown(comment, signature.scan(/(\w+):/).flatten)
  puts "#{text}\n\n" unless text.empty?
end

def documented(list)
  list.reject { |m| m.comment.to_s.strip.empty? || m.visibility != :public || INTERNAL.include?(title(m)) }
end

def title(method)
  "#{method.parent.full_name}#{method.singleton ? "." : "#"}#{method.name}"
end

def comment_of(mod)
  mod.comment_location.map { |c, _| c.respond_to?(:text) ? c.text : c.to_s }.join("\n")
end

def show_module(mod)
  name = mod.full_name
  parent = mod.superclass unless mod.is_a?(RDoc::NormalModule)
  parent = parent.full_name if parent.respond_to?(:full_name)
  parent = nil unless parent.to_s.match?(/\A[\w:]+\z/) # an expression
  kind = mod.is_a?(RDoc::NormalModule) ? "module" : "class"
  show("##", name, "#{kind} #{name}#{" < #{parent}" if parent && parent != "Object"}", comment_of(mod))
  documented(mod.attributes).each { |a| show("###", title(a), a.name, a.comment) }
  documented(mod.method_list).sort_by { |m| [m.singleton ? 0 : 1, m.name == "new" ? 0 : 1, m.line || 0] }.each do |m|
    show("###", title(m), "#{m.singleton ? "#{name}." : ""}#{m.name}#{parameters(m)}", m.comment)
  end
end

puts "# Ruby API\n\nThe [README](../../clients/ruby/README.md) has examples.\n\n"
all = store.all_classes_and_modules
MODULES.each do |name|
  mod = all.find { |m| m.full_name == name }
  abort "the source has no #{name}" if mod.nil? && name != "Qsidecar::Enqueued"
  show_module(mod) if mod
end
puts "## Errors\n\n| class | parent | meaning |\n| --- | --- | --- |"
all.select { |m| m.is_a?(RDoc::NormalClass) && m.full_name.start_with?("Qsidecar::") && m.in_files.any? { |f| f.base_name == "errors.rb" } }
   .sort_by(&:full_name).each do |m|
  parent = m.superclass
  parent = parent.full_name if parent.respond_to?(:full_name)
  text = markdown(comment_of(m)).gsub("\n", " ")
  puts "| `#{m.full_name}` | `#{parent}` | #{text} |"
end
