'use strict'
// A client and a worker for the job queue in your database. lib/client.js and lib/worker.js are the places to start.

const { fromWire, ...errors } = require('./lib/errors')
const { Client } = require('./lib/client')

module.exports = { Client, ...errors }
