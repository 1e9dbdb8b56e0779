package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestGatesWithoutRights checks that a role without rights on a table of limits still works queues without limits, also in a claim that
// names both, and that the error names the table.
func TestGatesWithoutRights(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role := runner(t, p, "gateless")
		url := filled(t, p)
		tables(t, url, role)
		s := open(t, postgres.Options{URL: as(t, url, role)})
		const me = backends.Identity(7)
		if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: me, Timeout: time.Hour, Kind: backends.HeartbeatJoin}); err != nil {
			t.Fatal(err)
		}
		one := int64(1)
		if _, _, err := s.Command(t.Context(), backends.Command{Kind: backends.Limit, Queue: "capped", Limits: backends.LimitsChange{MaxClaimed: &one}}); err != nil {
			t.Fatal(err)
		}
		jobs := []backends.NewJob{{Queue: "capped"}, {Queue: "free"}, {Queue: "free"}, {Queue: "free"}, {Queue: "free"}}
		if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}); err != nil {
			t.Fatal(err)
		}
		number := uint64(0)
		claim := func(queues ...backends.Policy) (backends.ClaimResult, error) {
			number++
			for i := range queues {
				queues[i].MaxAttempts = 3
			}
			r, err := s.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{{Queues: queues, Slots: []backends.Slot{{Token: backends.Token{Sidecar: me, Number: number}}}}}})
			if err != nil {
				return backends.ClaimResult{}, err
			}
			return r.Claims[0], r.Claims[0].Err
		}
		capped, free := backends.Policy{Queue: "capped", Gated: true}, backends.Policy{Queue: "free"}
		for _, table := range []string{"qsidecar_gates", "qsidecar_capped"} {
			must(t, url, "REVOKE ALL ON qsidecar."+table+" FROM "+role)
			if r, err := claim(capped); err == nil || !strings.Contains(err.Error(), table) {
				t.Errorf("without rights on %s: %+v, %v", table, r, err)
			}
			for _, queues := range [][]backends.Policy{{free}, {capped, free}} {
				if r, err := claim(queues...); err != nil || len(r.Jobs) != 1 || r.Jobs[0].Queue != "free" {
					t.Errorf("without rights on %s, a claim of %d queues gets %+v, %v", table, len(queues), r, err)
				}
			}
			must(t, url, "GRANT ALL ON qsidecar."+table+" TO "+role)
			s.Recheck(t.Context()) // maintenance does it, too
		}
		if r, err := claim(capped); err != nil || len(r.Jobs) != 1 {
			t.Errorf("with the rights again: %+v, %v", r, err)
		}
	})
}
