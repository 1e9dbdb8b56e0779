package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
)

// TestCost checks how many transactions the claim path takes.
func TestCost(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "jobs.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	at := time.Now()
	s.LocalTime = func() time.Time { return at }
	transactions := func() cost.Cost { return cost.Cost{int(s.Usage().RoundTrips.Count)} }
	cost.Check(t, s, transactions, map[string]cost.Cost{
		"enqueue of 1": {1, 0}, "claim of 1": {1, 0}, "ack of 1": {1, 0}, "nack of 1": {1, 0}, "ack and claim of 1": {1, 0},
		"enqueue of 100": {1, 0}, "claim of 100": {1, 0}, "ack of 100": {1, 0}, "nack of 100": {1, 0}, "ack and claim of 100": {1, 0},
		"enqueue with keys of 1": {1, 0}, "enqueue with keys of 100": {1, 0}, "idle claim": {1, 0},
	})
	cost.Expiring(t, s, transactions, cost.Cost{1, 0})
}
