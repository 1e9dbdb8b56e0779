// Package replysize keeps the replies to a client within the size that hello announced.
//
// A reply with a list loses the elements that don't fit. Start reading at Limit.
package replysize

import (
	"fmt"
	"math"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// replyHead is the size of a reply without its list. Most of it is the escaped id of the request.
	replyHead = 2 << 10
	// jobText is the size of a job in a reply without its payload, key, headers and errors: its id, its lease and the
	// names of the fields.
	jobText = 3 << 10
	// enqueuedText is the size of an enqueued job in a reply without its id.
	enqueuedText = 64
	// escaped is the maximum number of bytes that JSON writes for one byte of a text.
	escaped = 6
)

// Limit is the largest reply that a client can read.
type Limit struct {
	Max   int // bytes
	Codec protocol.Codec
}

// fitting returns how many of n elements fit one reply. part returns a reply with one of them. most is an upper bound
// of the bytes of all: if that fits, nothing is measured. beside is the size of the rest of the reply, besides
// replyHead.
func (l Limit) fitting(n int, beside, most int64, part func(i int) *protocol.Reply) int {
	room := l.Max - replyHead - int(beside)
	if most <= int64(room) {
		return n
	}
	var buf []byte
	for i := range n {
		buf = l.Codec.AppendReply(buf[:0], part(i)) // not Encode, which returns an error reply for one that is too large
		if room -= len(buf); room < 0 {
			return i
		}
	}
	return n
}

// Jobs returns how many claimed jobs fit one reply beside its other parts, at least 1. One job always fits, as its
// sizes have limits, unless a reload raised max_frame since the client connected. Then it is sent although it is too
// large.
func (l Limit) Jobs(database string, jobs []backends.Job, beside int64) int {
	return max(1, l.fitting(len(jobs), beside, escaped*quota.JobBytes(jobs)+int64(len(jobs))*jobText, func(i int) *protocol.Reply {
		return &protocol.Reply{Jobs: []protocol.Job{wirejob.FromClaim(database, &jobs[i])}}
	}))
}

// Settled returns how large a reply to a settle can be without replyHead and without the jobs of its claim.
func Settled(r *protocol.Reply) (n int64) {
	if r.Settled != nil {
		for _, lease := range r.Settled.Lost {
			n += escaped * int64(len(lease))
		}
	}
	for i := range r.EnqueuedAll {
		n += escaped*int64(len(r.EnqueuedAll[i].ID)) + enqueuedText
	}
	return n
}

// FitViews drops the last jobs of a reply to peek that don't fit. The first one stays. If it is too large alone, it
// loses its payload and result.
func (l Limit) FitViews(views []protocol.JobView) []protocol.JobView {
	n := l.fitting(len(views), 0, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{Views: views[i : i+1]}
	})
	if n == 0 && len(views) > 0 {
		v := &views[0]
		v.LeftOut, v.Payload, v.Result = protocol.Some(int64(len(v.Payload)+len(v.Result))), nil, nil
		n = 1
	}
	return views[:n]
}

// FitEnded drops the last jobs of a reply to wait that don't fit. The first one stays. If it is too large alone, it loses its
// result.
func (l Limit) FitEnded(jobs []protocol.EndedJob) []protocol.EndedJob {
	n := l.fitting(len(jobs), 0, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{Ended: jobs[i : i+1]}
	})
	if n == 0 && len(jobs) > 0 {
		jobs[0].LeftOut, jobs[0].Result = protocol.Some(int64(len(jobs[0].Result))), nil
		n = 1
	}
	return jobs[:n]
}

// FitSchedules returns how many schedules of a list fit a reply, beside some more of other databases that have the name of the last one.
func (l Limit) FitSchedules(all []protocol.Schedule) int {
	const more = 16 << 10
	return l.fitting(len(all), more, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{Schedules: all[i : i+1]}
	})
}

// FitBatches returns how many batches of a list fit a reply.
func (l Limit) FitBatches(all []protocol.Batch) int {
	return l.fitting(len(all), 0, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{Batches: all[i : i+1]}
	})
}

// FitSessions drops the youngest sessions that don't fit from a status.
func (l Limit) FitSessions(st *protocol.Status) {
	all := st.Sessions
	st.Sessions = nil
	n := l.fitting(len(all)+1, 0, math.MaxInt64, func(i int) *protocol.Reply {
		if i == 0 {
			return &protocol.Reply{Status: st}
		}
		return &protocol.Reply{Status: &protocol.Status{Sessions: all[i-1 : i]}}
	})
	st.Sessions = all[:max(n-1, 0)]
}

// FitChanges drops the last changes of a reload that don't fit, and appends how many it dropped.
func (l Limit) FitChanges(changes []string) []string {
	n := l.fitting(len(changes), 0, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{Changes: changes[i : i+1]}
	})
	fit := append([]string{}, changes[:n]...)
	if left := len(changes) - n; left > 0 {
		fit = append(fit, fmt.Sprintf("and %d more (the sidecar's log has all of them)", left))
	}
	return fit
}

// FitReport drops the end of the lists in a reply to config, fleet, history or check that doesn't fit.
func (l Limit) FitReport(r *protocol.Reply) {
	r.Sidecars = r.Sidecars[:l.fitting(len(r.Sidecars), 0, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{Sidecars: r.Sidecars[i : i+1]}
	})]
	r.History = r.History[:l.fitting(len(r.History), 0, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{History: r.History[i : i+1]}
	})]
	r.Findings = r.Findings[:l.fitting(len(r.Findings), 0, math.MaxInt64, func(i int) *protocol.Reply {
		return &protocol.Reply{Findings: r.Findings[i : i+1]}
	})]
	if r.Config == nil {
		return
	}
	all := *r.Config
	n := l.fitting(len(all.Reloads)+len(all.Settings), 0, math.MaxInt64, func(i int) *protocol.Reply {
		if i < len(all.Reloads) {
			return &protocol.Reply{Config: &protocol.Config{Reloads: all.Reloads[i : i+1]}}
		}
		i -= len(all.Reloads)
		return &protocol.Reply{Config: &protocol.Config{Settings: all.Settings[i : i+1]}}
	})
	r.Config.Reloads = all.Reloads[:min(n, len(all.Reloads))]
	r.Config.Settings = all.Settings[:max(n-len(all.Reloads), 0)]
}

// FitText cuts a text so that it fits one reply, however it is escaped.
func (l Limit) FitText(text string) string {
	most := (l.Max - replyHead) / escaped
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "… (the sidecar's log has all of it)"
}

// Append appends a reply to buf. A report (queues, jobs of peek, status, config) above the limit becomes an error, because the
// client is possibly unable to read it. The reply to a request that changed something is always sent.
func (l Limit) Append(buf []byte, reply *protocol.Reply) []byte {
	before := len(buf)
	buf = l.Codec.AppendReply(buf, reply)
	report := len(reply.Queues) > 0 || len(reply.Views) > 0 || reply.Status != nil || reply.Config != nil || len(reply.Schedules) > 0 || len(reply.Batches) > 0
	if size := len(buf) - before; report && size > l.Max {
		buf = l.Codec.AppendReply(buf[:before], &protocol.Reply{ID: reply.ID, Error: protocol.Errorf(protocol.CodeUnsupported,
			"the answer has %d bytes, which exceeds max_reply (%d): ask for less, or raise max_frame in the sidecar's config", size, l.Max)})
	}
	return buf
}
