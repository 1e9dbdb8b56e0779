// Package network tests databases that are cut off, silent, stopped or away at the start, and what
// waiting for jobs costs.
package network
