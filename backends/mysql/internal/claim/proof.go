package claim

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

const (
	proveFor   = time.Second
	proveEvery = 50 * time.Millisecond
)

// prove checks in the background whether ready jobs remain behind a queue's heads, if such a check is due.
func (f *Finder) prove(queue string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.proving || f.Life.Err() != nil || f.Now().Sub(f.proved) < proveEvery {
		return
	}
	p, ok := f.Cursors.ToProve(queue)
	if !ok {
		return
	}
	f.proving = true
	f.running.Go(func() {
		ctx, cancel := context.WithTimeout(f.Life, proveFor)
		defer cancel()
		if err := f.Prove(ctx, p); err != nil {
			f.Log.Debug("claim position not advanced", "event", "claim_position_not_advanced", "queue", queue, "error", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.proving, f.proved = false, f.Now()
	})
}

// Prove reads the entries of the index with locks, so it sees committed and uncommitted rows. If
// another transaction has locked, inserted or changed a row of the piece, and can still roll back, the
// server returns an error instead of waiting. Then nothing is proven.
func (f *Finder) Prove(ctx context.Context, p cursor.Proof) error {
	ended, first := int64(0), make([]int64, len(p.Urgency))
	var t session.Script
	t.Int(&ended, f.SQL.Position)
	for i := range p.Urgency {
		where := table.Within([]cursor.Segment{{
			From: cursor.Spot{Urgency: p.Urgency[i], Position: p.Low[i]}, To: cursor.Spot{Urgency: p.Urgency[i], Position: p.High[i]},
		}})
		t.Int(&first[i], f.SQL.Probe, "r"+p.Queue, "r"+p.Queue, session.Part{SQL: where})
	}
	if err := f.Run(ctx, &t); err != nil {
		return err
	}
	f.Cursors.Advance(p, ended, first)
	return nil
}
