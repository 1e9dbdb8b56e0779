package adopted

import "time"

// SetClock replaces the clock by which claims scan from the beginning. Then scans from a row always pay.
func (s *Store) SetClock(now func() time.Time) { s.now, s.scanGain = now, -time.Hour }

// EndSlow sets the time after which a statement that others wait for ends.
func (s *Store) EndSlow(after time.Duration) { s.slowAfter = after }

// LetScansPay makes claims start at a row only if that pays by the clock.
func (s *Store) LetScansPay() { s.scanGain = scanGain }
