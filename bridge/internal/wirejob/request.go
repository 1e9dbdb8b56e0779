package wirejob

import (
	"cmp"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// Peek converts a peek, for a result of at most maxBytes. It copies what it keeps of the request.
func Peek(req *protocol.Request, maxBytes int64) backends.Peek {
	p := backends.Peek{
		Queue:    req.Queue,
		IDs:      slices.Clone(req.IDs),
		State:    backends.State(cmp.Or(req.State, protocol.StateReady)),
		Max:      int(req.Max.Or(10)),
		After:    req.After,
		Key:      req.Key,
		Newest:   req.Newest,
		MaxBytes: maxBytes,
	}
	if p.IDs != nil {
		p.Max = len(p.IDs)
	}
	return p
}

// Command converts an operator's command. It copies what it keeps of the request.
func Command(req *protocol.Request) backends.Command {
	kinds := map[protocol.Op]backends.CommandKind{
		protocol.OpRetry: backends.Retry, protocol.OpDelete: backends.Delete, protocol.OpReclaim: backends.Reclaim,
		protocol.OpChange: backends.Change, protocol.OpPurge: backends.Purge, protocol.OpPause: backends.Pause, protocol.OpResume: backends.Resume,
		protocol.OpLimit: backends.Limit, protocol.OpCancel: backends.Cancel,
	}
	c := backends.Command{
		Kind:  kinds[req.Op],
		Queue: req.Queue,
		IDs:   slices.Clone(req.IDs),
		All:   req.All,
		State: backends.State(req.State),

		Remove: req.Delete,
	}
	if n, ok := req.Priority.Get(); ok {
		priority := int16(n)
		c.Priority = &priority
	}
	if ms, ok := req.DelayMS.Get(); ok {
		delay := Millis(ms)
		c.Delay = &delay
	}
	if at, ok := req.RunAt.Get(); ok {
		c.RunAt = time.UnixMilli(at)
	}
	if n, ok := req.MaxClaimed.Get(); ok {
		c.Limits.MaxClaimed = &n
	}
	if n, ok := req.Burst.Get(); ok {
		c.Limits.Burst = &n
	}
	if req.Rate != "" {
		jobs, per, _ := protocol.ParseRate(req.Rate) // the decoder has checked it
		c.Limits.Rate = &backends.Rate{Jobs: jobs, Per: per}
	}
	c.Limits.None = req.None
	if n, ok := req.GroupReady.Get(); ok {
		c.Limits.GroupReady = &n
	}
	if n, ok := req.GroupLimit.Get(); ok {
		c.Limits.GroupLimit = &n
	}
	if req.GroupOnFailure != "" {
		does := backends.GroupHolds
		if req.GroupOnFailure == protocol.GroupSkip {
			does = backends.GroupSkips
		}
		c.Limits.GroupOnFailure = &does
	}
	return c
}

// FromStored converts the jobs that an enqueue stored.
func FromStored(stored []backends.Stored) []protocol.EnqueuedJob {
	out := make([]protocol.EnqueuedJob, len(stored))
	for i, st := range stored {
		out[i] = protocol.EnqueuedJob{ID: st.ID, Duplicate: st.Duplicate && st.Outcome == "", State: protocol.State(st.State), Outcome: protocol.Outcome(st.Outcome)}
	}
	return out
}
