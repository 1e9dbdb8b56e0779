'use strict'
// A job to store, and a job that is claimed.

const errors = require('./errors')
const { options, millis, text, integer, instant, strings, dump, setBytes, show } = require('./arguments')
const { start } = require('./call')

const JOB_OPTIONS = ['priority', 'delayMs', 'runAt', 'key', 'headers', 'maxAttempts', 'timeoutMs', 'group', 'batch', 'startBefore', 'startWithinMs', 'onExpiry', 'retainMs', 'keyUntil', 'onConflict', 'debounceMaxMs']
const NEW_JOB = ['queue', 'payload', ...JOB_OPTIONS]
// Lines of a stack that don't help to find the error.
const INNER = /^ +at (.*\(?node:|new Promise \(<anonymous>\))/

// A run whose lease is lost so shortly before its time limit was ended by it, in milliseconds, at most half of it. The sidecar
// counts the run from the commit of the claim, and the client from the reply.
const ALMOST = 100

const NACK_OPTIONS = ['delayMs', 'dead', 'snooze']

/** Returns the fields of a job to store as the wire has them. */
function newJobFields(what, queue, payload, given) {
  const fields = { queue: text(what, 'queue', queue) }
  if (given.delayMs !== undefined && given.runAt !== undefined) throw new TypeError(`${what}: delayMs and runAt exclude each other`)
  setBytes(fields, 'payload', dump(what, 'payload', payload))
  if (given.priority !== undefined) fields.priority = integer(what, 'priority', given.priority, -32768, 32767)
  if (given.delayMs !== undefined) fields.delay_ms = millis(what, 'delayMs', given.delayMs)
  if (given.runAt !== undefined) fields.run_at = instant(what, 'runAt', given.runAt)
  if (given.key !== undefined) fields.key = text(what, 'key', given.key)
  if (given.headers !== undefined) fields.headers = strings(what, 'headers', given.headers)
  if (given.maxAttempts !== undefined) fields.max_attempts = integer(what, 'maxAttempts', given.maxAttempts, 1, 32767)
  if (given.timeoutMs !== undefined) fields.timeout_ms = millis(what, 'timeoutMs', given.timeoutMs)
  if (given.group !== undefined) fields.group = text(what, 'group', given.group)
  if (given.batch !== undefined) fields.batch = text(what, 'batch', given.batch)
  if (given.startBefore !== undefined) fields.start_before = instant(what, 'startBefore', given.startBefore)
  if (given.startWithinMs !== undefined) fields.start_within_ms = millis(what, 'startWithinMs', given.startWithinMs)
  if (given.onExpiry !== undefined) fields.on_expiry = text(what, 'onExpiry', given.onExpiry)
  if (given.retainMs !== undefined) fields.retain_ms = millis(what, 'retainMs', given.retainMs)
  if (given.keyUntil !== undefined) fields.key_until = text(what, 'keyUntil', given.keyUntil)
  if (given.onConflict !== undefined) fields.on_conflict = text(what, 'onConflict', given.onConflict)
  if (given.debounceMaxMs !== undefined) fields.debounce_max_ms = millis(what, 'debounceMaxMs', given.debounceMaxMs)
  return fields
}

function manyFields(what, jobs) {
  if (!Array.isArray(jobs)) throw new TypeError(`${what}: pass a list of jobs, not ${show(jobs)}`)
  return jobs.map((job, i) => {
    const where = `${what}, job ${i}`
    options(where, job, NEW_JOB)
    return newJobFields(where, job.queue, job.payload, job)
  })
}

function enqueued(fields) {
  const stored = { id: String(fields.id), duplicate: fields.duplicate === true, state: fields.state }
  return fields.outcome === undefined ? stored : { ...stored, outcome: fields.outcome }
}

/** Returns the fields of a nack besides its leases. */
function nackFields(what, error, given) {
  options(what, given, NACK_OPTIONS)
  const fields = {}
  const why = error instanceof Error ? describe(error) : error
  if (why !== undefined && why !== '') fields.error = wireText(text(what, 'error', why))
  if (given.delayMs !== undefined) fields.delay_ms = millis(what, 'delayMs', given.delayMs)
  if (given.dead) fields.dead = true
  if (given.snooze) fields.snooze = true
  return fields
}

/** Escapes what the wire does not allow in a text, and cuts it as the sidecar would. */
function wireText(value) {
  return value.slice(0, 4096).toWellFormed().replaceAll('\0', '\\0')
}

/** Describes an error for people: the error, then the calls. The sidecar keeps 4 KiB. */
function describe(error) {
  try {
    if (!(error instanceof Error)) return typeof error === 'string' ? error : `thrown: ${show(error)}`
    const stack = typeof error.stack === 'string' ? error.stack : String(error)
    const lines = stack.split('\n').filter((line) => !line.includes(__dirname) && !INNER.test(line))
    const cause = error.cause === undefined ? '' : `\ncause: ${String(error.cause)}`
    return lines.join('\n') + cause
  } catch {
    return 'an error that could not be converted to text'
  }
}

/** How far a job was when its worker last reported it. */
class Progress {
  #fields

  constructor(fields) {
    this.#fields = fields
    this.done = fields.done
    this.total = fields.total
    this.at = new Date(fields.at)
  }

  get raw() {
    const { data, data_b64: b64 } = this.#fields
    return b64 !== undefined ? Buffer.from(b64, 'base64') : Buffer.from(data ?? '')
  }

  get data() {
    if (this.#fields.data_b64 !== undefined) throw new TypeError("the data of a progress isn't JSON: its bytes are not UTF-8; raw has them")
    return this.#fields.data === undefined ? null : JSON.parse(this.#fields.data)
  }

  _fields() {
    return this.#fields
  }
}

class Job {
  #client
  #signal
  #data
  #b64

  constructor(client, fields) {
    this.#client = client
    this.#data = fields.payload
    this.#b64 = fields.payload_b64
    this.id = fields.id
    this.queue = fields.queue
    // Not enumerable, because a lease is the right to settle and must not be logged.
    Object.defineProperty(this, 'lease', { value: fields.lease })
    this.attempt = fields.attempt
    this.maxAttempts = fields.max_attempts
    this.fence = fields.fence
    this.priority = fields.priority ?? 0
    this.enqueuedAt = new Date(fields.enqueued_at ?? 0)
    this.timeoutMs = fields.timeout_ms
    this.headers = fields.headers ?? {}
    this.key = fields.key
    this.lastError = fields.last_error
    this.lastProgress = fields.progress && new Progress(fields.progress)
    this.settled = false
    this.lost = false
    this.cancelled = false
    hidden(this, '_began', this.timeoutMs && performance.now())
    hidden(this, '_followUps', [])
    hidden(this, '_claim', undefined) // the claim that its settle carries
    hidden(this, '_next', []) // the jobs that this claim got
  }

  toString() {
    return `job ${this.id} of ${this.queue}, attempt ${this.attempt} of ${this.maxAttempts}`
  }

  /** Returns the fields of the wire that a thread needs for the same job. */
  _fields() {
    const { id, queue, attempt, maxAttempts, fence, priority, timeoutMs, headers, key, lastError } = this
    return {
      id, queue, attempt, fence, priority, headers, key, lease: '', max_attempts: maxAttempts, timeout_ms: timeoutMs,
      last_error: lastError, progress: this.lastProgress?._fields(), enqueued_at: this.enqueuedAt.getTime(), payload: this.#data, payload_b64: this.#b64,
    }
  }

  get raw() {
    if (this.#b64 !== undefined) return Buffer.from(this.#b64, 'base64')
    return Buffer.from(this.#data ?? '')
  }

  get payload() {
    if (this.#b64 === undefined && !this.#data) return null
    try {
      if (this.#b64 !== undefined) throw new SyntaxError('its bytes are not UTF-8')
      return JSON.parse(this.#data)
    } catch (e) {
      throw new TypeError(`the payload of job ${this.id} of ${this.queue} isn't JSON (${e.message}); job.raw has its bytes`)
    }
  }

  get signal() {
    this.#signal ??= new AbortController()
    if (this.lost) this.#signal.abort(lostError(this))
    return this.#signal.signal
  }

  _lose() {
    this.lost = true
    this.#signal?.abort(lostError(this))
  }

  followUp(queue, payload, given = {}) {
    const what = 'followUp'
    options(what, given, JOB_OPTIONS)
    this._followUps.push(newJobFields(what, queue, payload, given))
  }

  ack(given = {}) {
    return start('ack', async () => {
      const { requestTimeoutMs, ...rest } = options('ack', given, ['result', 'enqueue', 'requestTimeoutMs'])
      const reply = await this._do('ack', this._ackFields(rest), requestTimeoutMs)
      return (reply.enqueued ?? []).map(enqueued)
    })
  }

  _ackFields({ result, enqueue } = {}) {
    const fields = { lease: this._valid() }
    setBytes(fields, 'result', dump('ack', 'result', result))
    const more = enqueue === undefined ? this._followUps : [...this._followUps, ...manyFields('ack, enqueue', enqueue)]
    if (more.length > 0) fields.enqueue = more
    return fields
  }

  nack(error, given = {}) {
    return start('nack', async () => {
      const { requestTimeoutMs, ...rest } = options('nack', given, [...NACK_OPTIONS, 'requestTimeoutMs'])
      await this._do('nack', this._nackFields(error, rest), requestTimeoutMs)
    })
  }

  _nackFields(error, given = {}) {
    return { lease: this._valid(), ...nackFields('nack', error, given) }
  }

  extend(given = {}) {
    return start('extend', async () => {
      const { leaseMs, requestTimeoutMs } = options('extend', given, ['leaseMs', 'requestTimeoutMs'])
      const fields = { lease: this._valid() }
      if (leaseMs !== undefined) fields.lease_ms = millis('extend', 'leaseMs', leaseMs)
      await this._do('extend', fields, requestTimeoutMs)
    })
  }

  progress(done, total, data, given = {}) {
    return start('progress', async () => {
      const { requestTimeoutMs } = options('progress', given, ['requestTimeoutMs'])
      const fields = { lease: this._valid() }
      if (done !== undefined) fields.done = integer('progress', 'done', done, 0, Number.MAX_SAFE_INTEGER)
      if (total !== undefined) fields.total = integer('progress', 'total', total, 0, Number.MAX_SAFE_INTEGER)
      setBytes(fields, 'data', dump('progress', 'data', data))
      await this._do('progress', fields, requestTimeoutMs)
    })
  }

  /** Describes a run that its time limit has ended, for a job whose lease is lost. Otherwise the text is empty. */
  _overran() {
    const over = this.timeoutMs && performance.now() - this._began > this.timeoutMs - Math.min(ALMOST, this.timeoutMs / 2)
    return over ? `it ran longer than its time limit of ${this.timeoutMs / 1000} s` : ''
  }

  _valid() {
    if (this.lost) throw lostError(this)
    return this.lease
  }

  async _do(op, fields, requestTimeoutMs) {
    const settles = op !== 'extend' && op !== 'progress'
    if (this._claim && this._next.length === 0 && settles) fields.claim = this._claim
    try {
      const reply = await this.#client._call(op, fields, { limit: requestTimeoutMs, claimed: this._next })
      if (settles) this.settled = true
      return reply
    } catch (e) {
      // This process can do nothing more about it.
      if (e instanceof errors.LeaseLost || e instanceof errors.SettledOrLost) this.settled = true
      throw e
    }
  }
}

function hidden(object, name, value) {
  Object.defineProperty(object, name, { value, writable: true })
}

function lostError(job) {
  if (job.cancelled) return new errors.Cancelled(`job ${job.id} of ${job.queue} was cancelled`)
  return new errors.LeaseLost(`job ${job.id}: ${job._overran() || 'its lease was lost'}; another worker can have it`)
}

module.exports = { Job, Progress, JOB_OPTIONS, NEW_JOB, NACK_OPTIONS, newJobFields, manyFields, enqueued, nackFields, describe }
