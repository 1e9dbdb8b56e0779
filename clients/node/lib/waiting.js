'use strict'
// Waits for the ends of jobs and batches.

const errors = require('./errors')
const { options, millis, text, show } = require('./arguments')
const { now } = require('./session')

// How long one request waits, in milliseconds. The sidecar queries the jobs by their ids when a request begins.
const PART = 60_000

// How long a call keeps its done job, in milliseconds: the ends of another sidecar's jobs are found within two seconds, and a sidecar can
// restart.
const RETAIN = 60_000

/** How a job ended. */
class EndedJob {
  #fields

  constructor(fields) {
    this.#fields = fields
    this.id = fields.id
    this.state = fields.state
    this.lastError = fields.last_error
  }

  get raw() {
    const { result, result_b64: b64 } = this.#fields
    if (b64 !== undefined) return Buffer.from(b64, 'base64')
    return result === undefined ? undefined : Buffer.from(result)
  }

  get result() {
    if (this.#fields.result_b64 !== undefined) throw new TypeError(`the result of job ${this.id} isn't JSON: its bytes are not UTF-8; raw has them`)
    return this.#fields.result ? JSON.parse(this.#fields.result) : null
  }
}

/** Waits until jobs have ended, and returns those that have. */
async function wait(client, queue, ids, given) {
  const { any = false, waitMs = PART, requestTimeoutMs: limit } = options('wait', given, ['any', 'waitMs', 'requestTimeoutMs'])
  if (!Array.isArray(ids)) throw new TypeError(`wait: ids is ${show(ids)}, must be a list of ids`)
  const until = now() + millis('wait', 'waitMs', waitMs)
  const ended = []
  let left = [...new Set(ids.map((id, i) => text('wait', `ids[${i}]`, id)))]
  for (;;) {
    const part = Math.floor(Math.min(PART, Math.max(0, until - now())))
    const fields = { queue: text('wait', 'queue', queue), ids: left, mode: any ? 'any' : 'all', wait_ms: part }
    const some = (await client._call('wait', fields, { limit, wait: part })).ended.map((job) => new EndedJob(job))
    ended.push(...some)
    const gone = new Set(some.map((job) => job.id))
    left = left.filter((id) => !gone.has(id))
    if (left.length === 0 || (any && ended.length > 0)) return ended
    if (some.length === 0 && part === 0) return ended // with some, others possibly didn't fit the reply
  }
}

/** Waits until a batch has ended, and returns it. */
async function waitForBatch(client, queue, id, given) {
  const { waitMs = PART, requestTimeoutMs: limit } = options('wait', given, ['waitMs', 'requestTimeoutMs'])
  const until = now() + millis('wait', 'waitMs', waitMs)
  for (;;) {
    const part = Math.floor(Math.min(PART, Math.max(0, until - now())))
    const { batch } = await client._call('wait', { queue, batch: id, wait_ms: part }, { limit, wait: part })
    const { state, done = 0, failed = 0, callback } = batch
    if (['ended', 'cancelled'].includes(state) || part === 0) return { id, state, done, failed, callback }
  }
}

/** Returns the result of the only job of a wait. */
function resultOf(queue, job, [ended], waitMs) {
  if (!ended) throw new errors.NotEnded(queue, job, waitMs)
  if (ended.state !== 'done') throw new errors.JobFailed(queue, ended)
  return ended.result
}

module.exports = { PART, RETAIN, wait, waitForBatch, resultOf }
