'use strict'
// Settles that no job waits for. The worker begins its next job before they are answered.

const errors = require('./errors')
const { Call, pauseFor, transient } = require('./call')
const { refused, isRejected, logLoss } = require('./settle')
const { now } = require('./session')

// How many jobs can be begun and not settled. If the worker dies, they are delivered again, although most of them are
// done. One commit of the sidecar answers all settles that arrived by then, and these are enough until then.
const MOST = 32
// The same for each job that runs at once, for workers that run many. With fewer than two these workers would wait.
const MOST_EACH = 2
// No job begins while a settle is unanswered for so long, in milliseconds. No commit takes that long unless the
// database is in trouble, and each further job could be delivered again.
const LONGEST = 1000
// How old an unanswered settle can be when the run drains or ends, in milliseconds. A sidecar that was killed and is not
// started again never answers.
const LAST = 60_000

class Behind {
  #client
  #most
  #drain
  #ending
  #log
  #begun = new Set() // jobs after begin, before settle or leave
  #unanswered = new Map() // jobs: since when; infinity once the database has rejected the settle
  #sent = new Map() // the jobs of #unanswered: since when, also then; the oldest is the first
  #givenUp = 0
  #waiters = [] // functions that check their condition again
  #checks // while a job waits, because time alone ends some waits
  #again = new Set() // settles that pause between two tries

  constructor(client, concurrency, drain, ending, log) {
    this.#client = client
    this.#most = Math.max(MOST, MOST_EACH * concurrency)
    this.#drain = drain
    this.#ending = ending
    this.#log = log
  }

  /**
   * Sends a settle and, if further jobs can begin, a claim. Returns the jobs of the claim when it is answered. In a drain
   * it waits until a settle is too old. If the run ends otherwise, it also ends the claims.
   */
  async settle(job, [op, fields], claim) {
    this.#begun.delete(job)
    this.#unanswered.set(job, now())
    this.#sent.set(job, now())
    const session = this.#client._session
    // Until the reply that ends it, so also between two tries. Then the lease is not held any more.
    session.leases.settling([job.lease], +1)
    const call = this.#call({ job, op, fields, tries: 0, resent: false, refused: false, internal: false })
    if (claim === undefined || !this.#canBegin()) {
      session.submit([call])
      return []
    }
    return new Promise((resolve) => {
      // If the claim fails, the claim of the pool fails too, and reports it.
      let answered = false
      const claiming = new Call('claim', claim, (error, reply) => {
        answered = true
        resolve(reply?.jobs ?? [])
      })
      session.submit([call, claiming])
      if (!this.#drain) return
      this.#until(() => answered || this.#late()).then(() => session.abandon(claiming, new errors.NotConnected('claim: no answer in time')))
    })
  }

  /** Waits until the job can begin, and counts it until settle or leave. Returns false if the run ends before. */
  async begin(job) {
    // Another job can begin between the end of a wait and its continuation. So check, and count it, in one step.
    while (!this.#canBegin()) {
      if (this.#ending() || this.#late()) return false
      await this.#change()
    }
    this.#begun.add(job)
    return true
  }

  /** Waits until a job could begin. Returns false if the run ends before. */
  async canBegin() {
    while (!this.#canBegin()) {
      if (this.#ending() || this.#late()) return false
      await this.#change()
    }
    return true
  }

  /** Ends a job after begin. It does nothing after settle. */
  leave(job) {
    if (this.#begun.delete(job)) this.#changed()
  }

  get idle() {
    return this.#unanswered.size === 0
  }

  /** Waits until the settle of the job, or without a job all settles, have ended, or the run ends, or one is too old. */
  wait(job) {
    return this.#until(() => this.idle || (job && !this.#unanswered.has(job)) || this.#ending() || this.#late())
  }

  /** Waits until all settles have ended. Gives up if one is too old, and returns the error of those without an answer. */
  async end() {
    await this.#until(() => this.idle || this.#late())
    for (const pausing of this.#again) clearTimeout(pausing.timer)
    for (const job of this.#unanswered.keys()) this.giveUp(job)
    this.#unanswered.clear()
    if (this.#givenUp === 0) return undefined
    return new errors.Unavailable(
      `no answer for a minute to the settles of finished jobs (${this.#givenUp}): the sidecar or its database is unavailable; ` +
        'check that it runs: these jobs are delivered again, after the sidecar timeout at the latest',
      { code: 'unavailable' },
    )
  }

  /** Returns whether the run drains or ends, and a settle that was sent then is too old. */
  over(since) {
    return now() - since >= LAST && (this.#drain || this.#ending())
  }

  /** Waits for a settle that was sent then. It rejects when that is over. */
  async answer(since, settle) {
    let done = false
    const ended = () => {
      done = true
      this.#changed()
    }
    settle.then(ended, ended)
    await this.#until(() => done || this.over(since))
    if (!done) throw new errors.Unavailable('no answer in time', { code: 'unavailable' })
    return settle
  }

  /** Notes that nothing waits for the settle of the job any more. It is unanswered. */
  giveUp(job) {
    this.#log.error(`${job} could not be settled: no answer from the sidecar`)
    this.#givenUp++
  }

  #late() {
    for (const since of this.#sent.values()) return this.over(since)
    return false
  }

  /** Ends what only waits for the end of the run. */
  wake() {
    if (this.#ending()) {
      for (const pausing of [...this.#again]) {
        if (!pausing.settle.internal) continue
        clearTimeout(pausing.timer)
        this.#again.delete(pausing)
        this.#log.error(`${pausing.settle.job} could not be settled`)
        this.#over(pausing.settle)
      }
    }
    this.#changed()
  }

  #canBegin() {
    if (this.#begun.size + this.#unanswered.size >= this.#most) return false
    for (const since of this.#unanswered.values()) {
      if (since !== Infinity) return now() - since < LONGEST // the oldest one
    }
    return true
  }

  async #until(condition) {
    while (!condition()) await this.#change()
  }

  #change() {
    this.#checks ??= setInterval(() => this.#changed(), 200)
    return new Promise((resolve) => this.#waiters.push(resolve))
  }

  #changed() {
    const waiters = this.#waiters.splice(0)
    for (const resolve of waiters) resolve()
    if (waiters.length === 0 && this.#checks !== undefined) {
      clearInterval(this.#checks)
      this.#checks = undefined
    }
  }

  #call(settle) {
    return new Call(settle.op, settle.fields, (error) => this.#answered(settle, error), { resent: settle.resent })
  }

  #answered(settle, error) {
    if (!this.#unanswered.has(settle.job)) return // it was given up
    if (!error) {
      settle.job.settled = true
      return this.#over(settle)
    }
    try {
      this.#handle(settle, error)
    } catch (e) {
      this.#log.error(`${settle.job} could not be settled: ${e.stack}`)
      this.#over(settle)
    }
  }

  #over(settle) {
    this.#client._session.leases.settling([settle.job.lease], -1)
    this.#unanswered.delete(settle.job)
    this.#sent.delete(settle.job)
    this.#changed()
  }

  #handle(settle, error) {
    const { job } = settle
    settle.internal = false
    if (transient(settle.op, settle.fields, error)) {
      settle.resent ||= error instanceof errors.UnknownOutcome
      this.#later(settle, pauseFor(error, ++settle.tries))
    } else if (error instanceof errors.Internal && !this.#ending()) {
      this.#log.warn(`${job} could not be settled yet: ${error.message}`)
      settle.internal = true
      this.#unanswered.set(job, Infinity) // the database works, so other jobs can begin
      this.#changed()
      this.#later(settle, Math.min(50 * 2 ** Math.min(++settle.tries, 10), 2000))
    } else if (!settle.refused && (isRejected(error) || !(error instanceof errors.QsidecarError))) {
      const [op, fields] = refused(job, error, this.#log)
      Object.assign(settle, { op, fields, tries: 0, resent: false, refused: true })
      this.#client._session.submit([this.#call(settle)])
    } else {
      this.#over(settle)
      this.#report(job, error)
    }
  }

  #later(settle, ms) {
    const pausing = { settle }
    pausing.timer = setTimeout(() => {
      this.#again.delete(pausing)
      this.#client._session.submit([this.#call(settle)])
    }, ms)
    this.#again.add(pausing)
  }

  #report(job, error) {
    job.settled = true
    if (error instanceof errors.SettledOrLost) this.#log.info(`${job}: ${error.message}`)
    else if (error instanceof errors.LeaseLost) reportLost(this.#client, job, this.#log)
    else this.#log.error(`${job} could not be settled: ${error.message}`)
  }
}

/** Reports that the lease of a finished job was lost before its settle. */
function reportLost(client, job, log) {
  logLoss(job, log)
  client._session.reportLost([job])
}

module.exports = { Behind, reportLost }
