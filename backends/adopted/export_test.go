package adopted

import "time"

// SetClock replaces the clock by which claims scan from the beginning.
func (s *Store) SetClock(now func() time.Time) { s.now = now }
