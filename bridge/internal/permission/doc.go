// Package permission decides which ops a client of a socket can use on which queues.
//
// It knows ops (package protocol) and peer credentials (package unixsocket), and no sessions. Start reading at Rule
// and Grant.
package permission
