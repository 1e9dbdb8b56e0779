'use strict'
// The settle of a job by the result of its function.

const errors = require('./errors')
const { describe } = require('./job')
const { Retry, Snooze, Dead } = require('./outcomes')

// Errors that mean that the settle itself is invalid.
const REJECTED = [errors.TooLarge, errors.BadRequest, errors.UnknownQueue, errors.Forbidden, errors.Unsupported]

const isRejected = (error) => REJECTED.some((type) => error instanceof type)

/** Returns the operation that settles a job, and its fields. Logs an attempt that failed. */
function outcome(job, result, error, log) {
  try {
    return settleOf(job, result, error, log)
  } catch (refusal) {
    if (refusal instanceof errors.LeaseLost) throw refusal
    return refused(job, refusal, log)
  }
}

/** Returns the nack that replaces an invalid settle. Otherwise the job would stay with this worker until it ends. */
function refused(job, refusal, log) {
  log.error(`${job}: its outcome was refused, so the attempt has failed: ${describe(refusal)}`)
  return ['nack', job._nackFields(describe(refusal))]
}

function settleOf(job, result, error, log) {
  if (error === undefined) return ['ack', job._ackFields({ result })]
  const { reason } = error
  const message = reason instanceof Error ? reason.message : ''
  if (reason instanceof Retry) {
    log.warn(`${job} ${failure(job)}: ${message || 'Retry'}`)
    return ['nack', job._nackFields(message || 'Retry', only('delayMs', reason))]
  }
  if (reason instanceof Snooze) {
    log.warn(`${job} is snoozed: ${message || 'Snooze'}`)
    return ['nack', job._nackFields(message || 'Snooze', { ...only('delayMs', reason), snooze: true })]
  }
  if (reason instanceof Dead) {
    log.error(`${job} is dead: ${message}`)
    return ['nack', job._nackFields(message, { dead: true })]
  }
  log.error(`${job} ${failure(job)}: ${describe(reason)}`)
  return ['nack', job._nackFields(describe(reason))]
}

const only = (name, from) => (from[name] === undefined ? {} : { [name]: from[name] })

/** Logs that a lease was lost before its settle. */
function logLoss(job, log) {
  const overran = job._overran()
  if (overran) log.error(`${job} ${failure(job)}: ${overran}`)
  else log.warn(`${job}: its lease was lost; another worker may have done it too`)
}

/** Describes the result of a failed attempt. */
function failure(job) {
  return job.attempt >= job.maxAttempts ? 'is dead, after its last attempt' : 'will be tried again'
}

module.exports = { outcome, refused, isRejected, logLoss }
