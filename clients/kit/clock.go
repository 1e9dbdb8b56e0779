package main

import "time"

// The kit's uses of the clock. A slow machine cannot make a client fail: a pause or a
// window only lasts longer, a client is late only after the kit's whole patience, and
// otherwise the scenarios ask for at least some time between two messages.

// since is a figure for the report, or a least time that a client must let pass.
func since(began time.Time) time.Duration { return time.Since(began) }

// after ends a pause or the kit's patience.
func after(d time.Duration) <-chan time.Time { return time.After(d) }

// over reports whether a window has ended.
func over(until time.Time) bool { return time.Now().After(until) }
