package main

import "time"

// The kit's uses of the clock. A slow machine can't make a client fail. A pause or a window only
// lasts longer, a client is late only after the kit's whole patience, and other scenarios only
// require a minimum time between two messages.

// since returns a duration for the report, or the time between two messages of a client.
func since(began time.Time) time.Duration { return time.Since(began) }

// after ends a pause or the kit's patience.
func after(d time.Duration) <-chan time.Time { return time.After(d) }

// over reports whether a window has ended.
func over(until time.Time) bool { return time.Now().After(until) }
