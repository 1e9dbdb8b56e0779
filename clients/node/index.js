'use strict'
// A client and a worker for the job queue in your database. lib/client.js and lib/worker.js are the places to start.

const { fromWire, ...errors } = require('./lib/errors')
const { Client } = require('./lib/client')
const { Retry, Snooze, Dead } = require('./lib/outcomes')
const { Worker } = require('./lib/worker')
const testing = require('./lib/testing')

module.exports = { Client, Worker, Retry, Snooze, Dead, ...errors, testing }
