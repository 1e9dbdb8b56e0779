package adopted

import "time"

// SetClock replaces the clock by which claims scan from the beginning. Then scans from a row always pay.
func (s *Store) SetClock(now func() time.Time) { s.now, s.scanGain = now, -time.Hour }

// No statement is slow, except in tests that use EndSlow.
func init() {
	whenSlow = func(func()) func() bool { return func() bool { return true } }
}

// EndSlow replaces the timer that ends a statement that others wait for.
func (s *Store) EndSlow(whenSlow func(f func()) (stop func() bool)) { s.whenSlow = whenSlow }

// LetScansPay makes claims start at a row only if that pays by the clock.
func (s *Store) LetScansPay() { s.scanGain = scanGain }
