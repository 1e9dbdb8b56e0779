package adopted_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestRefusedWorkerHurtsNoOther: if a CHECK of the owner refuses the name of one worker, its claims fail with the constraint's
// name. No row counts as refused, so that others get all of them.
func TestRefusedWorkerHurtsNoOther(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start(`CREATE TABLE a (id int PRIMARY KEY, state varchar(20) NOT NULL DEFAULT 'new', who varchar(20), CONSTRAINT no_mallory CHECK (who <> 'mallory'));
			INSERT INTO a (id) VALUES (1), (2), (3), (4), (5), (6)`, map[string]mapping.Table{"a": {
			Name: "a", MaxAttempts: 3, OnAck: mapping.Delete, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Worker: {"who"}},
			States: map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}},
		}})
		claim := func(workers ...string) backends.Claim {
			c := k.claimOf(len(workers), "a")
			for i, w := range workers {
				c.Slots[i].Worker = w
			}
			return c
		}
		for range 2 {
			res, err := k.as(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{claim("mallory", "bob"), claim("bob"), k.claimOf(1, "m")}})
			if err != nil {
				t.Fatal(err)
			}
			var slot *backends.SlotError
			if err := res.Claims[0].Err; !errors.As(err, &slot) || slot.Worker != "mallory" || backends.Retryable(err) || !strings.Contains(err.Error(), "no_mallory") {
				t.Errorf("a refused worker's claim: %v", err)
			}
			if len(res.Claims[1].Jobs) != 1 || res.Claims[2].Err != nil {
				t.Errorf("beside it: %+v", res.Claims)
			}
		}
		if jobs := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{claim("bob", "bob", "mallory")}}).Claims[0].Jobs; len(jobs) != 2 {
			t.Errorf("before its slot %d jobs, want 2", len(jobs))
		}
		if all := k.Obstacles(); slices.ContainsFunc(all, func(o backends.Obstacle) bool { return o.Doing == backends.DoingClaim }) {
			t.Errorf("obstacles %+v", all)
		}
	})
}
