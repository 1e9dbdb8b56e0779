'use strict'
// One request that waits for its reply, and when it is sent again.

const errors = require('./errors')

// The pause between two tries to connect, in milliseconds. The maximum is well below the shortest restart grace (1 s).
const BACKOFF_FIRST = 10
const BACKOFF_MOST = 400
// How many leases or jobs one request can have.
const MAX_LIST = 1000

/** Returns the jittered pause before the n-th try, n from 1, in milliseconds. */
function backoff(tries) {
  return Math.min(BACKOFF_FIRST * 2 ** Math.min(tries - 1, 10), BACKOFF_MOST) * (0.5 + Math.random() / 2)
}

class Call {
  constructor(op, fields, onDone, { until, resent = false, internal = false } = {}) {
    this.op = op
    this.fields = fields
    this.onDone = onDone // called once, with an error or the reply
    this.until = until // the end of a claim's own wait, by performance.now
    this.resent = resent // also sent before, without a reply that decides
    this.internal = internal // accepted while the client closes
    this.id = 0
    this.sent = false // given to the current connection
    this.done = false
    this.dropped = false // must not be written any more
    this.abandoned = false // the caller no longer waits for the reply
    this.rebinds = false // the extend that the session sends after a reconnect
    this.timer = undefined // the end of the caller's time
    this.ms = 0 // that time, over all tries
  }

  get settles() {
    return this.op === 'ack' || this.op === 'nack'
  }

  leases() {
    return this.fields.leases ?? (this.fields.lease === undefined ? [] : [this.fields.lease])
  }

  /** Returns the fields of the claim that it is or, as a settle, carries. */
  claim() {
    return this.op === 'claim' ? this.fields : this.settles ? this.fields.claim : undefined
  }
}

/**
 * Starts a call. While the process exits, no reply arrives any more, and a rejected promise is not reported either.
 * So the call throws at once.
 */
function start(op, run) {
  if (process._exiting) {
    throw new errors.Closed(`${op} was not sent: the process exits, and the event loop has ended; call it before, on 'beforeExit' for example`)
  }
  return run()
}

/** Returns whether a request can be sent again although the sidecar may have carried out the first one. */
function repeatable(op, fields) {
  if (op === 'enqueue') return (fields.jobs ?? [fields]).every((job) => job.key !== undefined)
  if (op === 'open_batch') return fields.key !== undefined
  // A second reclaim could take back a newer claim, and a second run of a schedule would store another job. The others refer to one connection.
  return op !== 'reclaim' && op !== 'change_schedule' && op !== 'cancel_claim' && op !== 'bye'
}

/**
 * Returns whether the same request can succeed soon, and whether the client repeats it. It does not repeat an enqueue
 * that was not carried out: the caller decides whether to wait for a database.
 */
function transient(op, fields, error, waits) {
  if (error instanceof errors.UnknownOutcome) return error.reported === true && repeatable(op, fields)
  if (error instanceof errors.Unavailable || error instanceof errors.Busy || error instanceof errors.Draining) {
    return op === 'ack' || op === 'nack' || op === 'extend' || op === 'progress' || (op === 'claim' && waits)
  }
  return false
}

/** Returns the pause that the sidecar asks for, or a back-off, in milliseconds. */
function pauseFor(error, tries) {
  return error?.retryMs ?? backoff(tries + 2) // at least 20 ms, because the sidecar answered
}

function unanswered(call, why) {
  return new errors.UnknownOutcome(`${call.op}: no answer (${why}); it may or may not have been carried out`)
}

module.exports = { Call, MAX_LIST, backoff, repeatable, start, transient, pauseFor, unanswered }
