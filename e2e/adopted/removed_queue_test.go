package adopted

import (
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// removed removes the queue from the config while its jobs are being processed, with and without
// another queue in an adopted table. The jobs are settled as before, none is delivered a second
// time while its worker has it, and the jobs of a worker that leaves are free.
func removed(a adopt.Table, t *testing.T, h adopt.Server) {
	for what, next := range map[string]string{
		"another one is adopted": "  other:" + strings.ReplaceAll(a.Config, "\n    max_attempts: 3", "\n    max_attempts: 2"),
		"none is":                "  plain: {}\n",
	} {
		b := newSharedTable(a, t, h, 8)
		text := b.sc.ReadConfig()
		goes := b.sc.Dial()
		left := goes.ClaimOne(b.Name)
		jobs := b.claim(4)
		b.reload(strings.Replace(text, "  "+a.Name+":"+a.Config, next, 1))
		seen := b.own("own-1", 1)
		if len(seen) != 1 || slices.Contains(append(itemsOf(jobs), left.ID), seen[0]) {
			t.Errorf("%s: its own consumer takes %v, and workers have %v and %s", what, seen, itemsOf(jobs), left.ID)
		}
		b.finish("own-1", seen...)
		b.w.Must(kit.Msg{"op": "ack", "lease": jobs[0].Lease})
		b.w.Must(kit.Msg{"op": "nack", "lease": jobs[1].Lease, "error": "no luck", "delay_ms": 0})
		b.w.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": jobs[1].Lease})
		if err := goes.Close(); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, what+": what failed, and what a worker left, is free", func() bool {
			own := b.own("own-1", 1)
			b.finish("own-1", own...)
			seen = append(seen, own...)
			return slices.Contains(seen, jobs[1].ID) && slices.Contains(seen, left.ID)
		})
		b.reload(text)
		b.w.Must(kit.Msg{"op": "ack", "leases": []string{jobs[2].Lease, jobs[3].Lease}})
		if r := b.w.Must(kit.Msg{"op": "claim", "queue": b.Name}); len(r.Jobs) > 0 && slices.Contains(itemsOf(jobs), r.Jobs[0].ID) {
			t.Errorf("%s: delivered again: %+v", what, r.Jobs)
		}
		for _, id := range append(itemsOf(jobs), left.ID) {
			if n := slices.Index(seen, id); n >= 0 && id != jobs[1].ID && id != left.ID {
				t.Errorf("%s: its own consumer had %s, which a worker had", what, id)
			}
		}
	}
}
