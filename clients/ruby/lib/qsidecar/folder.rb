# frozen_string_literal: true

module Qsidecar
  # The working folder of a worker at its start. A deployment can delete it while the worker runs.
  # Then relative paths and late requires of all jobs fail.
  class Folder
    def initialize
      @path = Dir.pwd
      @id = id(".")
    rescue SystemCallError => e
      raise Error, text("of this worker", e)
    end

    # gone returns an error text if the folder was deleted.
    def gone
      Dir.pwd # a stat finds a deleted folder as long as a process is in it
      File.stat(".")
      nil
    rescue SystemCallError => e
      text(@path, e) unless exist? # otherwise a job went to a folder of its own, and deleted that
    end

    private

    def id(path)
      found = File.stat(path)
      [found.dev, found.ino]
    end

    def exist?
      id(@path) == @id
    rescue SystemCallError
      false
    end

    def text(path, error)
      "the working folder #{path} was deleted or is unreachable (#{error.message}), so no job can run: " \
        "start the worker again in an existing folder"
    end
  end
end
