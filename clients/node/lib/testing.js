'use strict'
// For unit tests of programs that enqueue: jobs run at once, without a sidecar.

const { options } = require('./arguments')
const { testing } = require('./client')
const { Job } = require('./job')
const { Worker, all } = require('./worker')

class Inline {
  #workers
  #throws
  #keys = new Map()
  #before

  constructor({ workers, throws = true }) {
    this.jobs = []
    this.#workers = workers
    this.#throws = throws
    this.#before = testing.inline
    testing.inline = (many) => this.#enqueue(many)
  }

  of(queue) {
    return this.jobs.filter((done) => done.queue === queue)
  }

  restore() {
    testing.inline = this.#before
  }

  async #enqueue(many) {
    const stored = []
    for (const fields of many) stored.push(await this.#one(fields))
    return stored
  }

  async #one(fields) {
    const key = fields.key === undefined ? undefined : JSON.stringify([fields.queue, fields.key])
    const known = this.#keys.get(key)
    const replaces = fields.on_conflict === 'replace' || fields.on_conflict === 'debounce'
    if (known && !(known.ran && (replaces || known.fields.key_until === 'start'))) {
      if (!replaces) return { id: known.job.id, duplicate: true, state: known.ran ? 'deleted' : 'ready' }
      const job = this.#job(known.job.id, fields, known.job.fence)
      Object.assign(known, { job, payload: readable(job), fields })
      return { id: job.id, duplicate: false, state: 'ready', outcome: 'replaced' }
    }
    const number = this.jobs.length + 1
    const job = this.#job(`inline-${number}`, fields, number)
    const done = { job, queue: job.queue, payload: readable(job), fields, ran: false, result: undefined, error: undefined }
    this.jobs.push(done)
    if (key !== undefined) this.#keys.set(key, done)
    const worker = this.#workerOf(job.queue)
    if (worker) {
      done.ran = true
      try {
        done.result = await worker.perform(job)
        await this.#enqueue(job._followUps)
      } catch (error) {
        done.error = error
        if (this.#throws) throw error
      }
    }
    return { id: job.id, duplicate: false, state: undefined }
  }

  #job(id, fields, number) {
    return new Job(recorder, {
      ...fields,
      id,
      lease: `inline.${number}`,
      attempt: 1,
      max_attempts: fields.max_attempts ?? 20,
      fence: number,
      enqueued_at: Date.now(),
    })
  }

  #workerOf(queue) {
    const workers = this.#workers ?? [...all].map((ref) => ref.deref()).filter((worker) => worker instanceof Worker)
    return workers.find((worker) => worker.jobs.has(queue))
  }
}

Inline.prototype[Symbol.dispose ?? Symbol.for('nodejs.dispose')] = Inline.prototype.restore

// Notes how a function settles its job.
const recorder = {
  async _call() {
    return {}
  }
}

function readable(job) {
  try {
    return job.payload
  } catch {
    return job.raw
  }
}

/** Until restore, every enqueue in this process runs its job at once. */
function inline(given = {}) {
  return new Inline(options('inline', given, ['workers', 'throws']))
}

module.exports = { inline }
