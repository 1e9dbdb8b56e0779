package adopted_test

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestEmptiedLeases: another program empties the table of the leases. The sidecar still settles and returns the jobs that it had
// claimed, and takes back those whose leases end.
func TestEmptiedLeases(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start(twoTables(product))
		timed := k.claimOf(1, "b")
		timed.Slots[0].Lease = time.Second
		jobs := slices.Concat(k.claim("a", 5), k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{timed}}).Claims[0].Jobs)
		if len(jobs) != 6 {
			t.Fatalf("claimed %d jobs", len(jobs))
		}
		k.write(backends.Extend{Leases: leases(jobs[4])}, 0)
		table := "qsidecar_leases"
		if product == "PostgreSQL" {
			table = "qsidecar." + table
		}
		k.sql("DELETE FROM " + table)
		k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
		k.write(backends.Nack{Leases: leases(jobs[1]), HasDelay: true}, 0)
		k.write(backends.Release{Leases: leases(jobs[2]), Cause: backends.CauseDisconnected}, 0)
		k.write(backends.Extend{Leases: leases(jobs[3]), Bind: me}, 0)
		testwait.Until(t, "the timed lease ends", func() bool {
			return k.maintain(backends.Maintenance{}).Reaped[backends.CauseLeaseEnded] == 1
		})
		for _, l := range leases(jobs[3], jobs[4]) { // one is stored again by its extend, and one by maintenance
			k.write(backends.Ack{Leases: []backends.Lease{l}}, 0)
		}
		testwait.Until(t, "the other jobs are claimed again", func() bool {
			jobs = append(jobs, slices.Concat(k.claim("a", 9), k.claim("b", 9))...)
			return len(jobs) == 6+3+6
		})
		k.write(backends.Ack{Leases: leases(jobs[6:]...)}, 0)
	})
}

// TestLeaseThatIsGone: a lease that ended in another way stays lost, also while one of the table's own consumers has the row.
func TestLeaseThatIsGone(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start(twoTables(product))
		first := k.one("a")
		second := k.one("a")
		table := "qsidecar_leases"
		if product == "PostgreSQL" {
			table = "qsidecar." + table
		}
		k.sql("DELETE FROM " + table + " WHERE item = '2'") // another sidecar reclaimed it, and a consumer has it
		if second.ID != "2" {
			t.Fatalf("claimed %s", second.ID)
		}
		k.write(backends.Ack{Leases: leases(second)}, 1)
		for range 3 {
			k.maintain(backends.Maintenance{})
		}
		k.write(backends.Ack{Leases: leases(second)}, 1)
		k.write(backends.Ack{Leases: leases(first)}, 0)
	})
}
