package wirejob

import (
	"bytes"
	"maps"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// NewBatch converts a new batch. It copies what it keeps of the request.
func NewBatch(req *protocol.Request) backends.NewBatch {
	j := req.Job
	return backends.NewBatch{On: backends.BatchCondition(req.On), Key: req.Key, Callback: backends.NewJob{
		Queue: j.Queue, Payload: bytes.Clone(j.Payload), Priority: int16(j.Priority), Headers: maps.Clone(j.Headers), Group: j.Group,
		MaxAttempts: int(j.MaxAttempts.Or(0)), Timeout: Millis(j.TimeoutMS.Or(0)), Batch: j.Batch,
	}}
}

// BatchView converts a batch.
func BatchView(b *backends.Batch) protocol.Batch {
	v := protocol.Batch{
		ID: b.ID, Queue: b.Queue, On: string(b.On), Key: b.Key, Parent: b.Parent, State: string(b.State),
		CreatedAt: optTime(b.CreatedAt), ClosedAt: optTime(b.ClosedAt), EndedAt: optTime(b.EndedAt), ExpiresAt: optTime(b.ExpiresAt),
		Done: protocol.Some(b.Done), Failed: protocol.Some(b.Failed), Left: protocol.Some(b.Left), Callback: b.Callback, Payload: b.Payload,
	}
	for _, j := range b.Jobs {
		v.Jobs = append(v.Jobs, protocol.BatchJob{ID: j.ID, Queue: j.Queue, State: protocol.State(j.State), Batch: j.Batch})
	}
	return v
}
