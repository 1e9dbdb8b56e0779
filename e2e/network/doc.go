// Package network tests databases that are disconnected, silent, stopped or unavailable at the
// start, and the cost of waiting for jobs.
package network
