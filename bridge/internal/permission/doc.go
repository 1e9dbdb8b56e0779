// Package permission decides which ops a client of a socket can use on which queues.
//
// It depends on ops (package protocol) and peer credentials (package unixsocket), and not on sessions. Start reading
// at Rule and Grant.
package permission
