'use strict'
// Runs the functions of jobs, and finds the job of an error that no function caught.

const { AsyncLocalStorage } = require('node:async_hooks')
const { types } = require('node:util')

const { show } = require('./arguments')

// The run of a job, for the code that the job calls, and for callbacks and promises that it leaves behind.
const running = new AsyncLocalStorage()

/** Rejects what is no function, and a function whose call runs nothing. */
function rejectGenerators(what, value, wanted = 'a function') {
  if (typeof value !== 'function') throw new TypeError(`${what} is ${show(value)}: pass ${wanted}`)
  if (types.isGeneratorFunction(value)) {
    throw new TypeError(`${what} is a generator function, and calling it runs nothing: remove the *`)
  }
}

/** Throws if a result contains work that has not run, or that no one waits for. Its job must not count as done. */
function checkResult(value) {
  if (typeof value !== 'function' && (typeof value !== 'object' || value === null)) return
  const seen = new Set()
  const left = [[value, '']]
  while (left.length > 0) {
    const [each, where] = left.pop()
    if (typeof each === 'function' || types.isGeneratorObject(each)) {
      throw new TypeError(`the function returned a ${typeof each === 'function' ? 'function' : 'generator'}${where}, which has not run: its work was not done`)
    }
    if (typeof each !== 'object' || each === null || seen.has(each)) continue
    seen.add(each)
    if (types.isPromise(each)) throw new TypeError(`the function returned a promise${where}: wait for it, with Promise.all for example`)
    if (Array.isArray(each) || each instanceof Set) for (const part of each) left.push([part, ' in a list'])
    else if (each instanceof Map) for (const part of each.values()) left.push([part, ' in a Map'])
    else if (Object.getPrototypeOf(each) === Object.prototype) {
      for (const part of Object.values(each)) if (types.isPromise(part)) left.push([part, ' in an object'])
    }
  }
}

/**
 * Runs a job's function. Returns `{ result }` or `{ error: { reason } }`. An error that the job throws in a callback or
 * in a promise that it doesn't await is an error of the job.
 */
function perform(job, run) {
  return new Promise((resolve) => {
    const end = (outcome) => {
      context.over = true
      resolve(outcome)
    }
    const context = { job, over: false, fail: (reason) => end({ error: { reason } }) }
    running.run(context, async () => {
      try {
        end({ result: await run() })
      } catch (reason) {
        context.fail(reason)
      }
    })
  })
}

/**
 * While it is active, an error that no function caught fails the job that it came from. Without it, Node ends the
 * process, and with it all other jobs. Errors from elsewhere end the process as always.
 */
class Uncaught {
  #log
  #onException = (error) => this.#handle('uncaughtException', error)
  #onRejection = (error) => this.#handle('unhandledRejection', error)

  constructor(log) {
    this.#log = log
    process.on('uncaughtException', this.#onException)
    process.on('unhandledRejection', this.#onRejection)
  }

  #handle(event, error) {
    const context = running.getStore()
    if (context === undefined) {
      if (process.listenerCount(event) > 1) return // the program handles it
      this.end()
      setImmediate(() => {
        throw error // as without this listener
      })
      return
    }
    if (context.over) this.#log.error(`${context.job} threw after its end: ${error?.stack ?? error}`)
    context.fail(error)
  }

  end() {
    process.off('uncaughtException', this.#onException)
    process.off('unhandledRejection', this.#onRejection)
  }
}

module.exports = { perform, checkResult, rejectGenerators, Uncaught }
