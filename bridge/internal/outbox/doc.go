// Package outbox writes the replies of one connection whole and in order, without blocking the requests.
//
// It handles bytes only. Start reading at Outbox.
package outbox
