package adopted

import (
	"context"
	"fmt"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// inserts are the jobs of one write that go into adopted tables.
type inserts struct {
	n          int   // the write's number in the batch
	managedAck int   // the number of the engine's write whose lease must be valid; < 0: none
	positions  []int // of the jobs in the write's list
	jobs       []backends.NewJob
}

// insert stores new jobs, but not those of an ack whose lease is lost.
func (k *commitment) insert(ctx context.Context, sql backends.SQL, r *backends.Results) error {
	var all []*backends.Statement
	for _, ins := range k.inserts {
		res := &k.res.Writes[ins.n]
		if len(res.Lost) > 0 || ins.managedAck >= 0 && len(r.Writes[ins.managedAck].Lost) > 0 {
			continue
		}
		stored := k.stored(ins.n)
		for i, j := range ins.jobs {
			q := k.s.queues()[j.Queue]
			st, err := q.Insert(j, &stored[ins.positions[i]].ID)
			if err != nil {
				return err
			}
			all = append(all, st)
			if !q.Appends() {
				addQueues(&k.reordered, j.Queue)
			}
			if j.Delay <= 0 && j.RunAt.IsZero() {
				addQueues(&res.MadeReady, j.Queue)
			}
		}
	}
	if err := do(ctx, sql, all); err != nil {
		return err
	}
	k.s.readyIn(0, k.reordered...)
	for _, st := range all {
		if st.Matched != 1 {
			return backends.Refused(fmt.Errorf("%s stored no row, because of a trigger or rule of the table", strings.SplitN(st.Text, " (", 2)[0]))
		}
	}
	return nil
}
