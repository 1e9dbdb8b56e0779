// Package quota bounds what clients can use: the jobs that a session holds, the memory for messages and jobs, the
// queue names of a user, and the rate of rejected requests.
//
// Session is how the pipelines see a client connection. The package does not depend on pipelines or sockets. Start
// reading at Session and Memory.
package quota
