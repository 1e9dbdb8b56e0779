// Package session holds the connections of package mysql: how they are opened and pooled, how a script of
// statements travels in one packet, how its rows are read, and what the server's errors mean for the connection.
//
// It contains no table of the sidecar. Start reading at Dialer and Script.
package session
