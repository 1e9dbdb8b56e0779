'use strict'
// Threads for jobs that compute. The main thread keeps the connection, so it binds the leases while they compute.

const path = require('node:path')
const { Worker: Thread } = require('node:worker_threads')

const { Retry, Snooze, Dead } = require('./outcomes')

const OUTCOMES = { Retry, Snooze, Dead }

class Threads {
  #most
  #module
  #log
  #onBroken
  #free = []
  #all = new Set()
  #waiting = []
  broken = false // a thread could not load the module: no job has run in it

  constructor(most, module, log, onBroken) {
    this.#most = most
    this.#module = String(module)
    this.#log = log
    this.#onBroken = onBroken
  }

  /** Runs a job in a thread. Returns its result, or its error as `{ reason }`. */
  async perform(job) {
    const thread = this.#free.pop() ?? (this.#all.size < this.#most ? this.#start() : await this.#next())
    const flag = new Int32Array(new SharedArrayBuffer(4))
    const lose = () => {
      Atomics.store(flag, 0, job.cancelled ? 2 : 1)
      thread.postMessage({ lost: true })
    }
    job.signal.addEventListener('abort', lose, { once: true })
    const answer = await new Promise((resolve) => {
      thread.answer = resolve
      thread.report = (fields) => job._do('progress', { ...fields, lease: job._valid() })
      thread.postMessage({ job: job._fields(), flag })
    })
    job.signal.removeEventListener('abort', lose)
    if (this.#all.has(thread)) this.#release(thread)
    if (answer.error === undefined) {
      job._followUps.push(...answer.followUps)
      return { result: answer.result && Buffer.from(answer.result) }
    }
    return { error: { reason: thrown(answer.error) } }
  }

  #start() {
    const thread = new Thread(path.join(__dirname, 'thread.js'), { workerData: { module: this.#module } })
    this.#all.add(thread)
    let ready = false
    let failure
    thread.on('message', (message) => {
      if (message.ready) ready = true
      else if (message.report) report(thread, message)
      else thread.answer(message)
    })
    thread.on('error', (error) => {
      failure = error
    })
    thread.on('exit', (code) => {
      this.#all.delete(thread)
      this.#free = this.#free.filter((other) => other !== thread)
      const error = failure ?? new Error(`the thread ended with the exit code ${code}`)
      if (!ready) this.broken = true
      if (!ready) this.#onBroken(new Error(`a thread could not load ${this.#module}: ${error.message}`, { cause: error }))
      else if (thread.answer) this.#log.warn(`a thread ended during a job, another one replaces it: ${error.message}`)
      thread.answer?.({ error: { name: error.name, message: error.message, stack: error.stack } })
      this.#waiting.shift()?.(this.#start.bind(this))
    })
    return thread
  }

  async #next() {
    const got = await new Promise((resolve) => this.#waiting.push(resolve))
    return typeof got === 'function' ? got() : got
  }

  #release(thread) {
    thread.answer = undefined
    const next = this.#waiting.shift()
    if (next) next(thread)
    else this.#free.push(thread)
  }

  async end() {
    await Promise.all([...this.#all].map((thread) => (thread.removeAllListeners('exit'), thread.terminate())))
  }
}

/** Sends a report of progress, and its outcome to the thread. */
async function report(thread, { report: fields, number }) {
  let error
  try {
    await thread.report(fields)
  } catch (e) {
    error = { name: e.name, message: e.message }
  }
  thread.postMessage({ number, error })
}

/** Returns an error of a thread with the type that chooses the outcome. */
function thrown({ name, message, stack, delayMs }) {
  if (OUTCOMES[name]) return new OUTCOMES[name](message, delayMs === undefined ? {} : { delayMs })
  const error = new Error(message)
  error.stack = stack
  return error
}

module.exports = { Threads }
