'use strict'
// The working folder of a worker, which a deployment can delete while the worker runs.

const fs = require('node:fs')

const errors = require('./errors')

/** The working folder at the start of a run. If it is deleted, imports and relative paths of all jobs fail. */
class Folder {
  #path
  #found

  constructor() {
    try {
      this.#path = fs.realpathSync.native('.')
      this.#found = fs.statSync('.')
    } catch (e) {
      throw gone('of this worker', e)
    }
  }

  /** Returns an error if the folder was deleted. */
  gone() {
    try {
      // process.cwd returns what it returned before, and a stat finds a deleted folder as long as a process is in it.
      fs.realpathSync.native('.')
      return undefined
    } catch (e) {
      return this.#exists() ? undefined : gone(this.#path, e) // a job went to a folder of its own, and deleted that
    }
  }

  #exists() {
    try {
      const found = fs.statSync(this.#path)
      return found.dev === this.#found.dev && found.ino === this.#found.ino
    } catch {
      return false
    }
  }
}

function gone(path, why) {
  return new errors.QsidecarError(
    `the working folder ${path} was deleted or is unreachable (${why.code}), so no job can run: ` +
      'start the worker again in an existing folder',
  )
}

module.exports = { Folder }
