// Package unixsocket listens on Unix sockets that workers on the same host connect to.
//
// A socket accepts connections only when its file is complete: with its owner and mode, under a lock that one process
// holds. If the file is lost, the package creates it again, but takes the path from no other program. It refuses
// paths where another user could replace the socket. It reads the credentials of a peer and notices when a peer
// hangs up. It does not depend on jobs and messages.
//
// Start reading at Listen.
package unixsocket
