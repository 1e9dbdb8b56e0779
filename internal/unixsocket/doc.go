// Package unixsocket listens on Unix sockets that workers on the same host connect to.
//
// A socket appears complete: with its owner and mode, at one instant, under a lock that one process holds. The package
// refuses paths where another user could replace the socket. It reads the credentials of a peer and notices when a peer
// hangs up. It does not depend on jobs and messages.
//
// Start reading at Listen.
package unixsocket
