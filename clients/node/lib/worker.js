'use strict'
// The worker: functions for queues, and how many of their jobs run at once.

const errors = require('./errors')
const { options, integer, queueNames, show } = require('./arguments')
const { Behind, reportLost } = require('./behind')
const { start } = require('./call')
const { Client, CLIENT_OPTIONS, ORDERS, orderFields, scheduleFields, QUIET } = require('./client')
const { Folder } = require('./folder')
const handlers = require('./handlers')
const { outcome, refused, isRejected, logLoss } = require('./settle')
const { now } = require('./session')
const { Threads } = require('./threads')

// How long one claim waits, in milliseconds. Then the worker claims again.
const CLAIM_WAIT = 300_000

// Transient errors of a claim. Other errors end the worker.
const TRANSIENT = [
  errors.NotConnected, errors.Unavailable, errors.UnknownOutcome, errors.Busy, errors.Draining, errors.Internal,
]
// Of these, errors that mean that the sidecar or its database is unavailable: exit code 5.
const UNAVAILABLE = TRANSIENT.slice(0, -1)
const EXIT_UNAVAILABLE = 5

// When a job is settled: while the next ones run, or before the next one begins.
const ACKS = ['behind', 'sync']

const RUN_OPTIONS = ['concurrency', 'queues', 'drain', 'ack', 'order', 'weights', 'signals', 'threads', 'module']
const WORKER_OPTIONS = [...RUN_OPTIONS.filter((name) => name !== 'module'), 'client', 'before', 'after', ...CLIENT_OPTIONS]

const QUEUE_NAME = /^[A-Za-z0-9_:/][A-Za-z0-9._:/-]{0,127}$/

const is = (error, kinds) => kinds.some((type) => error instanceof type)

class Worker {
  #options
  #before
  #after
  #schedules = []
  #pool

  constructor(handlersOfQueues, given = {}) {
    if (handlersOfQueues === null || typeof handlersOfQueues !== 'object') {
      throw new TypeError(`Worker: pass an object with a function for each queue, not ${show(handlersOfQueues)}`)
    }
    options('Worker', given, WORKER_OPTIONS)
    this.jobs = new Map()
    for (const [queue, entry] of Object.entries(handlersOfQueues)) {
      const { run, result = false } = typeof entry === 'object' && entry !== null ? entry : { run: entry }
      if (!QUEUE_NAME.test(queue)) {
        throw new TypeError(`Worker: "${queue}" is not a queue name: use A-Z a-z 0-9 . _ : / - and do not start with . or -`)
      }
      handlers.rejectGenerators(`Worker: the handler of the queue ${queue}`, run, 'a function, or an object with one in run')
      this.jobs.set(queue, { run, result })
    }
    if (this.jobs.size === 0) throw new TypeError('Worker: it has no queue: pass an object with a function for each queue')
    this.#before = hooks('before', given.before)
    this.#after = hooks('after', given.after)
    this.#options = given
    if (given.client !== undefined && !(given.client instanceof Client)) {
      throw new TypeError(`Worker: client is ${show(given.client)}, must be a Client`)
    }
    const own = Object.fromEntries(CLIENT_OPTIONS.filter((name) => given[name] !== undefined).map((name) => [name, given[name]]))
    if (given.client && Object.keys(own).some((name) => name !== 'logger')) {
      throw new TypeError(`Worker: pass a client, or ${Object.keys(own).join(', ')} for a client of its own`)
    }
    this.client = given.client ?? new Client(own)
    all.add(new WeakRef(this))
  }

  /** Declares a schedule when the worker runs. */
  schedule(name, given) {
    scheduleFields(name, given) // checks them here, not at the start
    this.#schedules.push([name, given])
  }

  /** Runs until a signal or stop. */
  run(given = {}) {
    return start('run', () => this.#run(given))
  }

  async #run(given) {
    options('run', given, [...RUN_OPTIONS, 'logger'])
    if (this.#pool) throw new Error('the worker runs already')
    const chosen = { drain: false, ack: ACKS[0], order: ORDERS[0], signals: true, ...this.#options, ...given }
    const shares = this._shares(chosen)
    if (!ACKS.includes(chosen.ack)) throw new TypeError(`run: ack is ${show(chosen.ack)}, must be one of ${ACKS.join(', ')}`)
    if (chosen.threads !== undefined) integer('run', 'threads', chosen.threads, 1, 1024)
    if (chosen.threads !== undefined && chosen.module === undefined) {
      throw new TypeError('run: threads load the module of the worker: run it with qsidecar-node work, or pass module, its URL')
    }
    const log = prefixed(chosen.logger ?? QUIET)
    const pool = (this.#pool = new Pool(this, shares, chosen, log))
    // A job that waits for nothing that Node counts must not end the process.
    const alive = setInterval(() => {}, 2 ** 30)
    const uncaught = new handlers.Uncaught(log)
    const signals = chosen.signals ? new Signals(pool, log) : undefined
    log.info(`worker started: ${shares.map(({ queues, slots, weights }) => `queues ${listed(queues, chosen.order, weights)}, concurrency ${slots}`).join('; ')}`)
    if (process.pid === 1) {
      log.warn('this worker is the first process of its container, and Node.js does not reap the processes that jobs leave behind: start the container with an init (docker run --init) if jobs start processes')
    }
    try {
      await pool.run(this.#schedules)
    } finally {
      this.#pool = undefined
      await this.client._disconnect()
      signals?.end()
      uncaught.end()
      clearInterval(alive)
      log.info('worker stopped')
    }
    if (pool.error) throw pool.error
  }

  /** Ends run: running jobs finish. */
  stop() {
    this.#pool?.stop()
  }

  /** Returns lists of queues, each with how many of their jobs run at once. */
  _shares({ threads, concurrency = threads ?? 8, queues, order = ORDERS[0], weights }) {
    integer('run', 'concurrency', concurrency, 1, 100_000)
    let wanted = [...this.jobs.keys()].map((name) => [name, undefined])
    if (queues !== undefined && (typeof queues === 'string' || Array.isArray(queues))) {
      wanted = queueNames('run', queues).map((name) => [name, undefined])
    } else if (queues !== undefined) {
      wanted = Object.entries(queues ?? {})
    }
    if (wanted.length === 0) throw new TypeError('run: queues is empty: name at least one queue')
    for (const [name, count] of wanted) {
      if (count !== undefined && count !== null) integer('run', `queues.${name}`, count, 1, 100_000)
      if (!this.jobs.has(name)) {
        throw new RangeError(`run: the worker has no function for the queue ${show(name)}, only for ${[...this.jobs.keys()].join(', ')}`)
      }
    }
    const rest = wanted.filter(([, count]) => !count).map(([name]) => name)
    const shares = wanted.filter(([, count]) => count).map(([name, slots]) => ({ queues: [name], slots }))
    for (const { queues: [name] } of shares) {
      if (weights?.[name] !== undefined) {
        throw new RangeError(`run: weights has the queue ${show(name)}, whose jobs have a number of their own: leave one of them out`)
      }
    }
    orderFields('run', rest, order, weights, {})
    return rest.length > 0 ? [{ queues: rest, slots: concurrency, weights }, ...shares] : shares
  }

  /** Runs a job's function and its hooks. Returns what the function returns if the queue's results are kept. */
  async perform(job) {
    const entry = this.jobs.get(job.queue)
    let error
    let result
    try {
      for (const before of this.#before) await before(job)
      result = await entry.run(job)
      handlers.checkResult(result)
    } catch (reason) {
      error = { reason }
    }
    for (const after of this.#after) {
      try {
        await after(job, error?.reason)
      } catch (reason) {
        error ??= { reason }
      }
    }
    if (error) throw error.reason
    return entry.result ? result : undefined
  }
}

const listed = (queues, order, weights) =>
  queues.map((name) => (weights?.[name] === undefined ? name : `${name}=${weights[name]}`)).join(', ') + (queues.length === 1 ? '' : order === 'rotate' ? ' in rotation' : ' in strict order')

function hooks(name, given) {
  const list = given === undefined ? [] : Array.isArray(given) ? given : [given]
  for (const hook of list) handlers.rejectGenerators(`Worker: ${name}`, hook)
  return list
}

function prefixed(logger) {
  return {
    info: (line) => logger.info?.(`qsidecar: ${line}`),
    warn: (line) => logger.warn(`qsidecar: ${line}`),
    error: (line) => logger.error(`qsidecar: ${line}`),
  }
}

/** One run of a worker. */
class Pool {
  constructor(worker, shares, chosen, log) {
    this.worker = worker
    this.client = worker.client
    this.log = log
    this.drain = chosen.drain
    this.order = chosen.order
    this.sync = chosen.ack === 'sync'
    this.groups = shares.map(({ queues, slots, weights }) => ({
      queues,
      slots,
      weights,
      free: slots,
      nextClaim: orderFields('run', queues, chosen.order, weights, queues.length === 1 ? { queue: queues[0] } : { queues }),
    }))
    this.stopping = false
    this.error = undefined
    this.finished = 0
    this.works = new Set() // promises of the slots that work
    this.waiters = [] // functions to call when a slot is free, or when the run ends
    this.folder = new Folder()
    const slots = shares.reduce((sum, share) => sum + share.slots, 0)
    this.behind = new Behind(this.client, slots, this.drain, () => this.stopping, log)
    this.threads = chosen.threads && new Threads(chosen.threads, chosen.module, log, (error) => {
      this.error ??= error
      this.stop()
    })
  }

  async run(schedules) {
    try {
      for (const schedule of schedules) await this.#declare(schedule)
      await Promise.all(this.groups.map((group) => this.#claimGuarded(group)))
      while (this.works.size > 0) await Promise.all(this.works)
      this.error = (await this.behind.end()) ?? this.error
    } finally {
      await this.threads?.end()
    }
  }

  /** Declares a schedule. It waits for the sidecar and its database, like a claim, but not in a drain. */
  async #declare([name, given]) {
    for (let failed = 0; !this.stopping; await this.#pause(1000)) {
      const call = this.client.schedule(name, given).then((outcome) => this.log.info(`schedule ${name}: ${outcome}`))
      try {
        return void (await Promise.race([call, this.#until(() => this.stopping)]))
      } catch (e) {
        if (!is(e, UNAVAILABLE) || this.drain) throw e
        if (++failed === 1) this.log.warn(`can't declare the schedule ${name}, trying again: ${e.message}`)
      } finally {
        call.catch(() => {}) // if the run ends before
      }
    }
  }

  stop() {
    this.stopping = true
    this.client.cancelClaims()
    this.behind.wake()
    this.#wake()
  }

  get busy() {
    return this.groups.reduce((sum, group) => sum + group.slots - group.free, 0)
  }

  #wake() {
    for (const resolve of this.waiters.splice(0)) resolve()
  }

  async #until(condition) {
    while (!condition()) await new Promise((resolve) => this.waiters.push(resolve))
  }

  async #claimGuarded(group) {
    try {
      await this.#claim(group)
    } catch (e) {
      this.error ??= e
      this.stop() // the other groups end, too
    }
  }

  async #claim(group) {
    let failed = 0
    while (!this.stopping) {
      await this.#until(() => group.free > 0 || this.stopping)
      const { finished } = this
      // A job that runs, or an ack that is not carried out, can store another job after this claim.
      const quiet = this.busy === 0 && this.behind.idle
      if (this.stopping || !(await this.behind.canBegin()) || this.stopping) return
      let jobs
      try {
        jobs = await this.client.claim(group.queues, { max: Math.min(group.free, 1000), waitMs: this.drain ? 0 : CLAIM_WAIT, order: this.order, weights: group.weights })
        if (failed > 0) this.log.warn('jobs can be claimed again')
        failed = 0
      } catch (e) {
        if (this.stopping && e instanceof errors.Closed) return
        if (!is(e, TRANSIENT) || this.drain) throw e // cron will start it again soon
        if (++failed === 1) this.log.warn(`can't claim jobs, trying again: ${e.message}`)
        await this.#pause(Math.min(50 * 2 ** Math.min(failed, 10), 2000))
        continue
      }
      if (this.stopping) {
        await this.#giveBack(jobs)
        return
      }
      if (this.drain && jobs.length === 0) {
        if (quiet) return
        await this.#until(() => this.finished > finished || this.busy === 0)
        if (this.busy === 0) await this.behind.wait()
        continue
      }
      group.free -= jobs.length
      for (const job of jobs) {
        const work = this.#work(group, job).finally(() => this.works.delete(work))
        this.works.add(work)
      }
    }
  }

  #pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms)
      this.waiters.push(() => {
        if (!this.stopping) return
        clearTimeout(timer)
        resolve()
      })
    })
  }

  /** Runs a job, and then those that come with its settle. */
  async #work(group, first) {
    let job = first
    let last = first
    while (job !== undefined) {
      last = job
      if (!(await this.behind.begin(job))) {
        await this.#giveBack([job])
        break
      }
      try {
        await this.#runJob(job, group)
      } catch (e) {
        this.log.error(`${job} could not be settled: ${e?.stack ?? e}`)
      }
      this.behind.leave(job)
      job = await this.#next(job)
    }
    if (this.drain) await this.behind.wait(last) // its ack can store jobs that the next claim must see
    group.free++
    this.finished++
    this.#wake()
  }

  /** Returns the job that was claimed with the settle of a job. If the run ends, it gives that job back. */
  async #next(job) {
    const next = job._next.splice(0) // a chain of all jobs would stay in memory
    if (next.length > 0 && this.stopping) {
      await this.#giveBack(next)
      return undefined
    }
    return next[0]
  }

  async #giveBack(jobs) {
    try {
      await this.client.nackMany(jobs, undefined, { snooze: true, delayMs: 0 })
    } catch (e) {
      this.log.warn(`${jobs[0]} could not be returned, it is released when the connection closes: ${e.message}`)
    }
  }

  /** Returns whether the working folder is gone. Then it returns the job, and the run ends. */
  async #cannotRun(job) {
    const gone = this.folder.gone()
    if (gone === undefined) return false
    this.error ??= gone
    this.stop()
    await this.#giveBack([job])
    return true
  }

  async #runJob(job, group) {
    if (job.cancelled) return this.log.info(`${job} was cancelled before it began`)
    if (job.lost) {
      // While it waited to begin.
      this.log.warn(`${job}: its lease was lost before it began; another worker can have it`)
      return
    }
    if (await this.#cannotRun(job)) return
    const { result, error } = await (this.threads ? this.threads.perform(job) : handlers.perform(job, () => this.worker.perform(job)))
    if (this.threads?.broken && error) return this.#giveBack([job])
    if (job.settled) {
      // By its function.
      if (error) this.log.error(`${job} was settled by its function, and then failed: ${error.reason?.stack ?? error.reason}`)
      return
    }
    if (job.cancelled) return this.log.info(`${job} was cancelled while it ran`)
    if (job.lost) return logLoss(job, this.log)
    if (error && (await this.#cannotRun(job))) return
    try {
      await this.#settle(job, group, result, error)
    } catch (e) {
      if (e instanceof errors.SettledOrLost) this.log.info(`${job}: ${e.message}`)
      else if (e instanceof errors.LeaseLost) reportLost(this.client, job, this.log)
      else throw e
    }
  }

  /** Settles a job, and claims the next one unless the run ends. */
  async #settle(job, group, result, error) {
    let settle = outcome(job, result, error, this.log)
    const claim = () => (this.stopping ? undefined : group.nextClaim)
    if (!this.sync && !this.client._session.joins) {
      job._next.push(...(await this.behind.settle(job, settle, claim())))
      return
    }
    let replaced = false
    const since = now()
    for (let tries = 1; ; tries++) {
      job._claim = claim()
      try {
        return void (await this.behind.answer(since, job._do(settle[0], { ...settle[1] }, Infinity)))
      } catch (e) {
        if (is(e, TRANSIENT) && this.behind.over(since)) {
          this.behind.giveUp(job)
          return this.stop()
        }
        if (e instanceof errors.Internal && !this.stopping) {
          // Otherwise the job would stay with this worker until it ends.
          this.log.warn(`${job} could not be settled yet: ${e.message}`)
          await this.#pause(Math.min(50 * 2 ** Math.min(tries, 10), 2000))
        } else if (!replaced && (isRejected(e) || !(e instanceof errors.QsidecarError))) {
          settle = refused(job, e, this.log)
          replaced = true
        } else {
          throw e
        }
      }
    }
  }
}

/** SIGTERM and SIGINT: the first one stops the run, the second one ends the process. */
class Signals {
  #handle

  constructor(pool, log) {
    let received = 0
    this.#handle = () => {
      if (++received > 1) {
        try {
          log.warn(`ended by a second signal; running jobs that use up an attempt: ${pool.busy}`)
        } finally {
          process.exit(1)
        }
      }
      log.info(`stopping; running jobs: ${pool.busy}; a second signal ends the worker at once`)
      pool.stop()
    }
    for (const name of ['SIGTERM', 'SIGINT']) process.on(name, this.#handle)
  }

  end() {
    for (const name of ['SIGTERM', 'SIGINT']) process.off(name, this.#handle)
  }
}

/** Returns the exit code of a worker that failed. The program qsidecar uses the same. */
function exitCode(error) {
  return is(error, UNAVAILABLE) ? EXIT_UNAVAILABLE : 1
}

const all = new Set() // weak references, for testing.inline

module.exports = { Worker, exitCode, ACKS, all }
