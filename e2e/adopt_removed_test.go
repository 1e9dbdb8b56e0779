package e2e

import (
	"slices"
	"strings"
	"testing"
)

// removed: a reload takes the queue out of the config while its jobs are worked on, with and
// without another one in an adopted table. They are settled as if it were there, none is
// given out again under its worker, and what a worker that goes had is free.
func (a adoption) removed(t *testing.T, h tableServer) {
	for what, next := range map[string]string{
		"another one is adopted": "  other:" + strings.ReplaceAll(a.config, "\n    max_attempts: 3", "\n    max_attempts: 2"),
		"none is":                "  plain: {}\n",
	} {
		b := a.besideOwn(t, h, 8)
		text := b.sc.text()
		goes := b.sc.dial()
		left := goes.claimOne(b.name)
		jobs := b.claim(4)
		b.reload(strings.Replace(text, "  "+a.name+":"+a.config, next, 1))
		seen := b.own("own-1", 1)
		if len(seen) != 1 || slices.Contains(append(itemsOf(jobs), left.ID), seen[0]) {
			t.Errorf("%s: its own consumer takes %v, and workers have %v and %s", what, seen, itemsOf(jobs), left.ID)
		}
		b.finish("own-1", seen...)
		b.w.must(msg{"op": "ack", "lease": jobs[0].Lease})
		b.w.must(msg{"op": "nack", "lease": jobs[1].Lease, "error": "no luck", "delay_ms": 0})
		b.w.refused("lease_lost", msg{"op": "ack", "lease": jobs[1].Lease})
		if err := goes.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, patience, what+": what failed, and what a worker left, is free", func() bool {
			own := b.own("own-1", 1)
			b.finish("own-1", own...)
			seen = append(seen, own...)
			return slices.Contains(seen, jobs[1].ID) && slices.Contains(seen, left.ID)
		})
		b.reload(text)
		b.w.must(msg{"op": "ack", "leases": []string{jobs[2].Lease, jobs[3].Lease}})
		if r := b.w.must(msg{"op": "claim", "queue": b.name}); len(r.Jobs) > 0 && slices.Contains(itemsOf(jobs), r.Jobs[0].ID) {
			t.Errorf("%s: given out again: %+v", what, r.Jobs)
		}
		for _, id := range append(itemsOf(jobs), left.ID) {
			if n := slices.Index(seen, id); n >= 0 && id != jobs[1].ID && id != left.ID {
				t.Errorf("%s: its own consumer had %s, which a worker had", what, id)
			}
		}
	}
}
