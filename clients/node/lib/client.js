'use strict'
// The client: one connection to the sidecar for the whole process.

const errors = require('./errors')
const { changes, options, millis, text, integer, queueNames, strings, show } = require('./arguments')
const { Call, MAX_LIST, pauseFor, start, transient } = require('./call')
const { Job, Progress, JOB_OPTIONS, NACK_OPTIONS, newJobFields, manyFields, enqueued, nackFields } = require('./job')
const { Session, now } = require('./session')
const { PART, RETAIN, wait, resultOf } = require('./waiting')
const { Batch, batchFields } = require('./batch')

// Default time limits of a call, in milliseconds. An enqueue is short, because a producer with a user at the other end
// must not wait for a sidecar that is down. A worker with a finished job must wait.
const ENQUEUE_TIME = 2000
const REQUEST_TIME = 60_000
// How long close waits for replies.
const CLOSE_TIME = 10_000

const CLIENT_OPTIONS = ['socket', 'worker', 'requestTimeoutMs', 'onLost', 'onDraining', 'logger']
const CLAIM_OPTIONS = ['max', 'waitMs', 'leaseMs', 'order', 'weights', 'signal', 'requestTimeoutMs']
const PEEK_OPTIONS = ['queue', 'ids', 'state', 'max', 'after', 'newest', 'key', 'text', 'error', 'headers']
const SCHEDULE_OPTIONS = [
  'queue', 'cron', 'everyMs', 'tz', 'payload', 'splayMs', 'priority', 'headers', 'missed', 'overlap', 'source', 'version',
]
const STATES = ['ready', 'blocked', 'scheduled', 'claimed', 'done', 'dead']

// How a claim of several queues chooses: in turn, or the first one that has a job.
const ORDERS = ['rotate', 'strict']

const QUIET = { info() {}, warn: (line) => console.warn(line), error: (line) => console.error(line) }

// Replaces the sidecar in tests: set by testing.inline.
const testing = { inline: undefined }

class Client {
  #options
  #session

  constructor(given = {}) {
    options('Client', given, CLIENT_OPTIONS)
    const { socket, worker, requestTimeoutMs, onLost, onDraining, logger } = given
    if (socket !== undefined) text('Client', 'socket', socket)
    if (worker !== undefined) text('Client', 'worker', worker)
    if (requestTimeoutMs !== undefined) millis('Client', 'requestTimeoutMs', requestTimeoutMs)
    for (const name of ['onLost', 'onDraining']) {
      if (given[name] !== undefined && typeof given[name] !== 'function') {
        throw new TypeError(`Client: ${name} is ${show(given[name])}, must be a function`)
      }
    }
    this.#options = { socket, worker, requestTimeoutMs, onLost, onDraining, logger: logger ?? QUIET }
    this.#session = this.#newSession()
  }

  #newSession() {
    const { socket, worker, onLost, onDraining, logger } = this.#options
    return new Session({
      socket,
      worker,
      makeJob: (fields) => new Job(this, fields),
      onLost: onLost ?? (() => {}),
      onDraining: onDraining ?? (() => {}),
      warn: (line) => setImmediate(() => logger.warn(`qsidecar: ${line}`)),
    })
  }

  get _session() {
    return this.#session
  }

  // --- producing ---

  enqueue(queue, payload, given = {}) {
    return start('enqueue', async () => {
      options('enqueue', given, [...JOB_OPTIONS, 'requestTimeoutMs'])
      const fields = newJobFields('enqueue', queue, payload, given)
      if (testing.inline) return (await testing.inline([fields]))[0]
      return enqueued((await this._call('enqueue', fields, { limit: given.requestTimeoutMs })).job)
    })
  }

  enqueueMany(jobs, given = {}) {
    return start('enqueueMany', async () => {
      options('enqueueMany', given, ['requestTimeoutMs'])
      const fields = manyFields('enqueueMany', jobs)
      if (fields.length === 0) return []
      if (fields.length > MAX_LIST) {
        throw new RangeError(`enqueueMany: ${fields.length} jobs; one transaction takes ${MAX_LIST} at most`)
      }
      if (testing.inline) return testing.inline(fields)
      return (await this._call('enqueue', { jobs: fields }, { limit: given.requestTimeoutMs })).jobs.map(enqueued)
    })
  }

  schedule(name, given) {
    return start('schedule', async () => {
      const { requestTimeoutMs, ...definition } = options('schedule', given, [...SCHEDULE_OPTIONS, 'requestTimeoutMs'])
      return (await this._call('schedule', scheduleFields(name, definition), { limit: requestTimeoutMs })).declared.outcome
    })
  }

  wait(queue, ids, given = {}) {
    return start('wait', () => wait(this, queue, ids, given))
  }

  call(queue, payload, given = {}) {
    return start('call', async () => {
      const { waitMs = PART, ...rest } = options('call', given, [...JOB_OPTIONS, 'waitMs', 'requestTimeoutMs'])
      const job = await this.enqueue(queue, payload, { retainMs: RETAIN, ...rest }).catch((error) => {
        if (!(error instanceof errors.Unsupported) || rest.retainMs !== undefined) throw error
        return this.enqueue(queue, payload, rest) // its result only arrives if it ends through this client's sidecar
      })
      return resultOf(queue, job, await this.wait(queue, [job.id], { waitMs }), waitMs)
    })
  }

  batch(given = {}) {
    return start('batch', async () => {
      const fields = batchFields(given)
      const { batch } = await this._call('open_batch', fields, { limit: given.requestTimeoutMs })
      return new Batch(this, fields.queue, batch.id)
    })
  }

  // --- working ---

  claim(queues, given = {}) {
    return start('claim', async () => {
      options('claim', given, CLAIM_OPTIONS)
      const names = queueNames('claim', queues)
      const fields = names.length === 1 ? { queue: names[0] } : { queues: names }
      if (given.max !== undefined) fields.max = integer('claim', 'max', given.max, 1, MAX_LIST)
      if (given.waitMs !== undefined) fields.wait_ms = millis('claim', 'waitMs', given.waitMs)
      if (given.leaseMs !== undefined) fields.lease_ms = millis('claim', 'leaseMs', given.leaseMs)
      orderFields('claim', names, given.order ?? 'strict', given.weights, fields)
      const more = { limit: given.requestTimeoutMs, wait: fields.wait_ms, signal: given.signal }
      return (await this._call('claim', fields, more)).jobs
    })
  }

  jobs(queues, given = {}) {
    return start('jobs', () => this.#jobs(queues, given))
  }

  async *#jobs(queues, given) {
    options('jobs', given, ['leaseMs', 'order', 'weights', 'signal'])
    while (!given.signal?.aborted) {
      let jobs
      try {
        jobs = await this.claim(queues, { waitMs: 300_000, ...given })
      } catch (e) {
        if (given.signal?.aborted) return
        throw e
      }
      yield* jobs
    }
  }

  ackMany(jobs, given = {}) {
    return start('ackMany', async () => {
      options('ackMany', given, ['requestTimeoutMs'])
      return this.#settleMany('ack', jobs, {}, given.requestTimeoutMs)
    })
  }

  nackMany(jobs, error, given = {}) {
    return start('nackMany', async () => {
      const { requestTimeoutMs, ...rest } = options('nackMany', given, [...NACK_OPTIONS, 'requestTimeoutMs'])
      return this.#settleMany('nack', jobs, nackFields('nackMany', error, rest), requestTimeoutMs)
    })
  }

  async #settleMany(op, jobs, fields, limit) {
    if (!Array.isArray(jobs) || !jobs.every((job) => typeof job?.lease === 'string')) {
      throw new TypeError(`${op}Many: pass a list of jobs that were claimed, not ${show(jobs)}`)
    }
    if (jobs.length === 0) return []
    if (jobs.length > MAX_LIST) throw new RangeError(`${op}Many: ${jobs.length} jobs; one request takes ${MAX_LIST} at most`)
    const reply = await this._call(op, { leases: jobs.map((job) => job.lease), ...fields }, { limit })
    for (const job of jobs) job.settled = true
    const lost = new Set(reply.lost ?? [])
    return jobs.filter((job) => lost.has(job.lease))
  }

  cancelClaims() {
    this.#session.endClaims()
  }

  // --- the rest ---

  stats(queue) {
    return start('stats', async () => {
      const fields = queue === undefined ? {} : { queue: text('stats', 'queue', queue) }
      return (await this._call('stats', fields)).queues.map(camel)
    })
  }

  peek(given = {}) {
    return start('peek', async () => {
      options('peek', given, PEEK_OPTIONS)
      if (given.state !== undefined && !STATES.includes(given.state)) {
        throw new TypeError(`peek: state is ${show(given.state)}, must be one of ${STATES.join(', ')}`)
      }
      if (given.max !== undefined) integer('peek', 'max', given.max, 1, MAX_LIST)
      if (given.headers !== undefined) strings('peek', 'headers', given.headers)
      const reply = await this._call('peek', given)
      const jobs = reply.jobs.map(snapshot)
      if (reply.after !== undefined) jobs.after = reply.after
      return jobs
    })
  }

  job(id) {
    return start('job', async () => (await this.peek({ ids: [text('job', 'id', id)] }))[0])
  }

  retry(queue, ids) {
    return this.#operate('retry', queue, ids === 'all' ? { all: true } : { ids })
  }

  change(queue, ids, given) {
    return start('change', async () => {
      changes('change', given, ['priority', 'delayMs', 'runAt'])
      const { queue: name, ...fields } = newJobFields('change', queue, undefined, given)
      return (await this._call('change', { queue: name, ids, ...fields })).count
    })
  }

  delete(queue, ids) {
    return this.#operate('delete', queue, { ids })
  }

  reclaim(queue, ids) {
    return this.#operate('reclaim', queue, { ids })
  }

  cancel(queue, which, given = {}) {
    return start('cancel', async () => {
      const { delete: remove } = options('cancel', given, ['delete'])
      const fields = Array.isArray(which) ? { ids: which } : { key: options('cancel', which, ['key']).key }
      return (await this._call('cancel', { queue: text('cancel', 'queue', queue), ...fields, ...(remove ? { delete: true } : {}) })).count
    })
  }

  purge(queue, state) {
    return this.#operate('purge', queue, { state })
  }

  pause(queue) {
    return this.#operate('pause', queue, {}).then(() => {})
  }

  resume(queue) {
    return this.#operate('resume', queue, {}).then(() => {})
  }

  limit(queue, given = {}) {
    return start('limit', async () => {
      changes('limit', given, ['maxClaimed', 'rate', 'burst', 'groupLimit', 'groupOnFailure', 'groupReady', 'none'])
      const { maxClaimed, rate, burst, groupLimit, groupOnFailure, groupReady, none } = given
      const fields = {
        max_claimed: maxClaimed, rate: rate === 0 ? '0' : rate, burst, group_limit: groupLimit, group_on_failure: groupOnFailure,
        group_ready: groupReady, none: none || undefined,
      }
      await this.#operate('limit', queue, Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)))
    })
  }

  #operate(op, queue, fields) {
    return start(op, async () => (await this._call(op, { queue: text(op, 'queue', queue), ...fields })).count)
  }

  ping() {
    return start('ping', async () => {
      await this._call('ping', {})
    })
  }

  request(op, fields = {}) {
    return start('request', async () => {
      if (['hello', 'bye', 'cancel_claim', 'claim'].includes(op) || 'claim' in fields) {
        throw new TypeError(`request: the client itself sends ${'claim' in fields ? 'claim' : op}`)
      }
      const { id, ok, ...reply } = await this._call(text('request', 'op', op), fields)
      return reply
    })
  }

  /** Sends a request, and repeats it after transient errors. Adds the jobs of a settle's claim to `claimed`. */
  async _call(op, fields, { limit, wait = 0, signal, claimed } = {}) {
    const session = this.#session
    signal?.throwIfAborted()
    const began = now()
    if (limit !== undefined) millis(op, 'requestTimeoutMs', limit)
    else limit = this.#timeLimit(op)
    const until = wait > 0 ? began + wait : undefined
    const last = until ?? began + limit
    let resent = false
    for (let tries = 1; ; tries++) {
      const call = new Call(op, fields, undefined, { until, resent })
      call.ms = wait + limit
      const abort = () => session.cancelClaim(call, signal.reason)
      signal?.addEventListener('abort', abort, { once: true })
      let error
      try {
        return await session.request(call, began + wait + limit - now())
      } catch (e) {
        error = e
        if (testing.inline && e instanceof errors.NotConnected) {
          e.message = `${op}: testing.inline covers enqueue only; ${e.message}`
        }
        Error.captureStackTrace(e) // with the caller's functions, instead of the reader's
      } finally {
        signal?.removeEventListener('abort', abort)
        if (claimed && call.reply?.jobs?.length > 0) {
          claimed.push(...call.reply.jobs)
          const { claim, ...rest } = fields
          fields = rest
        }
      }
      if (signal?.aborted || !transient(op, fields, error, wait > 0)) throw error
      const pause = pauseFor(error, tries)
      if (now() + pause > last) throw error
      resent ||= error instanceof errors.UnknownOutcome
      if (!(await this.#pause(session, call, pause))) {
        if (session.closing) throw new errors.Closed(`${op}: the client is closed`)
        return { jobs: [] }
      }
    }
  }

  #timeLimit(op) {
    return this.#options.requestTimeoutMs ?? (op === 'enqueue' ? enqueueTime() : REQUEST_TIME)
  }

  async #pause(session, call, ms) {
    if (!call.settles) return session.pause(call.op, ms)
    // The reply to the second try reports a lease that is lost between two tries.
    session.leases.settling(call.leases(), +1)
    try {
      return await session.pause(call.op, ms)
    } finally {
      session.leases.settling(call.leases(), -1)
    }
  }

  close() {
    const close = () => this.#close()
    return this.#session.leases.size > 0 ? start('close', close) : close()
  }

  async #close() {
    const session = this.#session
    if (session.closing) return
    session.closing = true
    try {
      await this.#returnJobs(session, now() + CLOSE_TIME)
    } finally {
      session.end()
    }
  }

  async [Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')]() {
    await this.close()
  }

  /** Closes the connection like close. The next call opens a new one. */
  async _disconnect() {
    await this.close()
    this.#session = this.#newSession()
  }

  async #returnJobs(session, deadline) {
    session.endClaims(new errors.Closed('the client is closed'))
    await session.waitSettled(deadline)
    const send = (op, fields) => session.request(new Call(op, fields, undefined, { internal: true }), deadline - now())
    const leases = session.leases.keys()
    if (leases.length === 0) return
    if (session.wire && session.leases.unbound(session.wire.number).length === 0) {
      try {
        return void (await send('bye', {})) // it keeps the jobs' positions, but it applies to one connection
      } catch {
        // the connection has ended since
      }
    }
    for (let i = 0; i < leases.length; i += MAX_LIST) {
      await send('nack', { leases: leases.slice(i, i + MAX_LIST), snooze: true, delay_ms: 0 }).catch(() => {})
    }
  }
}

function enqueueTime() {
  const given = process.env.QSIDECAR_ENQUEUE_TIMEOUT
  if (!given) return ENQUEUE_TIME
  const seconds = Number(given)
  if (!(seconds > 0 && seconds < 1e9)) throw new RangeError(`QSIDECAR_ENQUEUE_TIMEOUT=${given} isn't a number of seconds: write it without a unit, such as 2 or 0.5`)
  return seconds * 1000
}

/** Returns the fields of a declaration. */
function scheduleFields(name, given) {
  const what = 'schedule'
  text(what, 'name', name)
  options(what, given, SCHEDULE_OPTIONS)
  const { cron, everyMs, tz, splayMs, missed, overlap, source, version } = given
  if ((cron === undefined) === (everyMs === undefined)) throw new TypeError(`schedule ${name}: give cron or everyMs`)
  const { queue, ...job } = newJobFields(what, given.queue, given.payload, { priority: given.priority, headers: given.headers })
  const schedule = { name, ...job }
  for (const [option, value] of Object.entries({ cron, tz, missed, overlap, source })) {
    if (value !== undefined) schedule[option] = text(what, option, value)
  }
  if (everyMs !== undefined) schedule.every_ms = millis(what, 'everyMs', everyMs)
  if (splayMs !== undefined) schedule.splay_ms = millis(what, 'splayMs', splayMs)
  if (version !== undefined) schedule.version = integer(what, 'version', version, 0, Number.MAX_SAFE_INTEGER)
  return { queue, schedule }
}

/** Sets the order of a claim, and the weights. Those of one queue have no meaning, and strict is the protocol's default. */
function orderFields(what, queues, order, weights, fields) {
  if (!ORDERS.includes(order)) throw new TypeError(`${what}: order is ${show(order)}, must be one of ${ORDERS.join(', ')}`)
  const given = Object.entries(weights ?? {})
  if (given.length > 0 && order !== 'rotate') {
    throw new TypeError(`${what}: weights need order: 'rotate'; with strict, the first queue comes first`)
  }
  for (const [name, weight] of given) {
    if (!queues.includes(name)) throw new RangeError(`${what}: weights has the queue ${show(name)}, which isn't one of ${queues.join(', ')}`)
    integer(what, `weights.${name}`, weight, 1, 1000)
  }
  if (order === 'rotate' && queues.length > 1) {
    fields.order = order
    if (given.length > 0) fields.weights = { ...weights }
  }
  return fields
}

/** Returns a reply's map with the names of this language, and instants as dates. */
function camel(fields) {
  const out = {}
  for (const [name, value] of Object.entries(fields)) {
    const to = name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase())
    out[to] = typeof value === 'number' && (name.endsWith('_at') || name === 'at' || name === 'start_before') ? new Date(value) : value
  }
  return out
}

/** Returns a job of peek. Its payload and result are bytes. */
function snapshot(fields) {
  const { payload, payload_b64: payload64, result, result_b64: result64, errors: failures, progress, ...rest } = fields
  const job = camel(rest)
  const bytes = (data, b64) => (b64 !== undefined ? Buffer.from(b64, 'base64') : data === undefined ? undefined : Buffer.from(data))
  job.payload = bytes(payload, payload64)
  job.result = bytes(result, result64)
  if (progress) job.progress = new Progress(progress)
  job.errors = (failures ?? []).map(camel)
  return job
}

module.exports = { Client, CLIENT_OPTIONS, ORDERS, orderFields, scheduleFields, testing, QUIET }
