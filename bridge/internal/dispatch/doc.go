// Package dispatch holds the claims of one database that wait for jobs, and the jobs that were claimed before a worker asked.
//
// It has no goroutine and calls no database. Its caller includes the claims that Gather chooses in a commit, and passes the
// result to Deliver or Fail, which answer them.
//
// A wait queue is due when a commit has to include its claims. What makes it due, and what then wakes a commit loop:
//
//	event                               makes wait queues due                      wakes a loop
//	a new claim (Add)                   its own, unless the gate is closed         Add
//	jobs of the commit itself           those whose claims the commit can have     no one: Gather follows (Announce)
//	the same, after the commit          those whose claims have own commits        NotifyOthers
//	other ready jobs, here or elsewhere all of the queue, unless it is closed      Notify, NotifyReady
//	maintenance found ready jobs        all of the queue, unless it is closed      NotifyReady, about each second
//	a settle, or the rate, frees slots all of the queue                           Reopen
//	a job is back in the database       all of the queue; those with held claims   Returned
//	an admission has ended              all of the ready queues; with held claims  Admitted
//	a settle has ended                  those with held claims                     Settled
//	a result that leaves some over      that of the group (cleanUp)                the loop goes on; EndOwn
//	memory is free, or a job was read   it stayed due                              quota, through WakeClaims
//	the first heartbeat after a gap     they stayed due                            Heartbeater.Revived
//
// The waker is loops.WakeClaims of package pipeline. It pokes the loop of the writes if commits of writes include claims, and otherwise
// that of the claims. Both start the own commits.
//
// Start reading at Dispatcher, which has the lock, and matcher, which has all decisions.
package dispatch
