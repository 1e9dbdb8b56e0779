// Package dispatch holds the claims of one database that wait for jobs, and the jobs that were claimed before a worker asked.
//
// It has no goroutine and calls no database. Its caller includes the claims that Gather chooses in a commit, and passes the
// result to Deliver or Fail, which answer them.
//
// Start reading at Dispatcher, which has the lock, and matcher, which has all decisions.
package dispatch
