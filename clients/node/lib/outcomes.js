'use strict'
// The errors that a job's function throws to choose the outcome of the attempt.

const { options, millis } = require('./arguments')

class Retry extends Error {
  constructor(message = '', given = {}) {
    super(message)
    this.name = 'Retry'
    options('Retry', given, ['delayMs', 'cause'])
    if (given.delayMs !== undefined) this.delayMs = millis('Retry', 'delayMs', given.delayMs)
    if (given.cause !== undefined) this.cause = given.cause
  }
}

class Snooze extends Error {
  constructor(message = '', given = {}) {
    super(message)
    this.name = 'Snooze'
    options('Snooze', given, ['delayMs', 'cause'])
    if (given.delayMs !== undefined) this.delayMs = millis('Snooze', 'delayMs', given.delayMs)
    if (given.cause !== undefined) this.cause = given.cause
  }
}

class Dead extends Error {
  constructor(message = '', given = {}) {
    super(message)
    this.name = 'Dead'
    options('Dead', given, ['cause'])
    if (given.cause !== undefined) this.cause = given.cause
  }
}

module.exports = { Retry, Snooze, Dead }
