package adopted_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestLockedRowOfAnotherJob makes each change of jobs while another transaction has the row, or the lease, of another job locked. A server that
// finds rows in another way than by their key waits for that lock. It does in a small table, if a statement is about most of its rows. SQLite has no
// locks of rows.
func TestLockedRowOfAnotherJob(t *testing.T) {
	dead := func(k *kit, jobs []backends.Job) {
		k.write(backends.Nack{Leases: leases(jobs...), Error: "no", Dead: true}, 0)
	}
	changes := []struct {
		name   string
		before func(k *kit, jobs []backends.Job)
		writes func(jobs []backends.Job) []backends.Write
		does   func(k *kit, ids []string)
	}{
		{name: "extend", writes: func(j []backends.Job) []backends.Write {
			return []backends.Write{backends.Extend{Leases: leases(j...), Lease: time.Hour}}
		}},
		{name: "bind", writes: func(j []backends.Job) []backends.Write {
			return []backends.Write{backends.Extend{Leases: leases(j...), Bind: me, Worker: "other"}}
		}},
		{name: "ack", writes: func(j []backends.Job) []backends.Write { return []backends.Write{backends.Ack{Leases: leases(j...)}} }},
		{name: "acks", writes: func(j []backends.Job) []backends.Write {
			return []backends.Write{backends.Ack{Leases: leases(j[0])}, backends.Ack{Leases: leases(j[1])}, backends.Ack{Leases: leases(j[2])}}
		}},
		{name: "nack", writes: func(j []backends.Job) []backends.Write {
			return []backends.Write{backends.Nack{Leases: leases(j...), Error: "no", Delay: time.Hour, HasDelay: true}}
		}},
		{name: "dead", writes: func(j []backends.Job) []backends.Write {
			return []backends.Write{backends.Nack{Leases: leases(j...), Error: "no", Dead: true}}
		}},
		{name: "release", writes: func(j []backends.Job) []backends.Write {
			return []backends.Write{backends.Release{Leases: leases(j...), Uncounted: true}}
		}},
		{name: "reclaim", does: func(k *kit, ids []string) { k.command(backends.Command{Kind: backends.Reclaim, IDs: ids}, 3) }},
		{name: "cancel", does: func(k *kit, ids []string) { k.cancel(backends.Command{IDs: ids}, 3) }},
		{name: "cancel and delete", does: func(k *kit, ids []string) { k.cancel(backends.Command{IDs: ids, Remove: true}, 3) }},
		{name: "retry", before: dead, does: func(k *kit, ids []string) { k.command(backends.Command{Kind: backends.Retry, IDs: ids}, 3) }},
		{name: "delete", before: dead, does: func(k *kit, ids []string) { k.command(backends.Command{Kind: backends.Delete, IDs: ids}, 3) }},
		{name: "claim again", before: func(k *kit, jobs []backends.Job) {
			k.write(backends.Nack{Leases: leases(jobs...), Error: "no", HasDelay: true}, 0)
		}, does: func(k *kit, ids []string) {
			if got := k.claim("q", 3); len(got) != 3 {
				k.Errorf("%d jobs were claimed, want 3", len(got))
			}
		}},
	}
	kept, deleted := settleTable(mapping.Update), settleTable(mapping.Delete)
	kept.Where, deleted.Where = nil, nil
	onEach(t, func(t *testing.T, on *product) {
		for kind, m := range map[string]mapping.Table{"kept": kept, "deleted": deleted} {
			k := on.newKit(t, "CREATE TABLE work (id int NOT NULL PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', who varchar(20), why varchar(90));",
				map[string]mapping.Table{"q": m})
			own := ownTable(on.name, "qsidecar_leases")
			hint := func(index string) string { // so that it locks one row
				if on.name == "PostgreSQL" {
					return ""
				}
				return " FORCE INDEX (" + index + ")"
			}
			for i, c := range changes {
				for _, locked := range []int{0, 3} {
					for table, lock := range map[string]string{
						"lease": "SELECT item FROM " + own + hint("qsidecar_leases_item") + " WHERE queue = 'q' AND item = '%d' FOR UPDATE",
						"row":   "SELECT concat(id, '') FROM work" + hint("PRIMARY") + " WHERE id = %d FOR UPDATE",
					} {
						t.Run(fmt.Sprint(kind, " ", c.name, " ", table, " ", locked), func(t *testing.T) {
							was := k.T
							k.T = t
							defer func() { k.T = was }()
							k.sql("DELETE FROM work")
							k.sql("DELETE FROM " + own)
							first := 1000*(i+1) + 100*locked + 10*len(table)
							for n := range 4 {
								k.sql(fmt.Sprintf("INSERT INTO work (id) VALUES (%d)", first+n))
							}
							jobs := k.claim("q", 4)
							if len(jobs) != 4 {
								t.Fatalf("%d jobs, want 4", len(jobs))
							}
							others := slices.Delete(slices.Clone(jobs), locked, locked+1)
							if c.before != nil {
								c.before(k, others)
							}
							k.sql("BEGIN")
							defer k.sql("ROLLBACK")
							if got, err := k.rows(fmt.Sprintf(lock, first+locked)); err != nil || len(got) != 1 {
								t.Fatal(got, err)
							}
							if c.does != nil {
								var ids []string
								for _, j := range others {
									ids = append(ids, j.ID)
								}
								c.does(k, ids)
								return
							}
							r, err := k.Commit(t.Context(), backends.CommitContent{Writes: c.writes(others)})
							if err != nil {
								t.Fatal(err)
							}
							for _, w := range r.Writes {
								if w.Err != nil || len(w.Lost) > 0 {
									t.Errorf("%v, lost %v", w.Err, w.Lost)
								}
							}
						})
					}
				}
			}
		}
	})
}
