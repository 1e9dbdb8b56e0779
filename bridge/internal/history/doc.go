// Package history records what happened to the jobs of each queue of a database: by minute for the last hour, in memory,
// and by hour for 14 days, in the database.
//
// It reads the counters that the metrics have anyway, and the depths that others read. It sends no statement of its own to
// find out a depth: where neither the metrics nor a client asks for statistics, the depth is unknown.
//
// What happened in an hour is written once, in the first minutes of the next one, and the rest at the end of the sidecar.
// A write that fails is repeated, at most every WriteEvery, and unwritten totals stay in memory for a day. Nothing waits for a write.
//
// MaxQueues queues have numbers of their own. The others are one sum, Other. A queue in which nothing happened for an hour
// gives up its numbers for another one.
//
// Start reading at Recorder.Run.
package history
