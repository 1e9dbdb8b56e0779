package wirejob

import (
	"bytes"
	"maps"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// Schedule converts a definition. It copies what it keeps of the request.
func Schedule(req *protocol.Request) backends.Schedule {
	s := req.Schedule
	return backends.Schedule{
		Name: s.Name, Queue: req.Queue, Cron: s.Cron, Every: Millis(s.EveryMS), Zone: s.Zone, Splay: Millis(s.SplayMS),
		Payload: bytes.Clone(s.Payload), Headers: maps.Clone(s.Headers), Priority: int16(s.Priority),
		Missed: backends.MissedPolicy(s.Missed), Overlap: backends.OverlapPolicy(s.Overlap), Source: s.Source, Version: s.Version,
	}
}

// ScheduleView converts a schedule.
func ScheduleView(s *backends.Schedule) protocol.Schedule {
	v := protocol.Schedule{
		Name: s.Name, Queue: s.Queue, Cron: s.Cron, EveryMS: s.Every.Milliseconds(), Zone: s.Zone, SplayMS: s.Splay.Milliseconds(), Priority: int64(s.Priority),
		Missed: string(s.Missed), Overlap: string(s.Overlap), Source: s.Source, Version: s.Version,
		Paused: s.Paused, NextAt: optTime(s.NextAt), LastAt: optTime(s.LastAt), LastJob: s.LastJob,
		Payload: s.Payload, Headers: s.Headers,
	}
	for _, at := range s.Upcoming {
		v.Upcoming = append(v.Upcoming, at.UnixMilli())
	}
	if s.Change != nil {
		v.ClockChange = &protocol.ClockChange{At: s.Change.At.UnixMilli(), Skipped: s.Change.Skipped}
	}
	return v
}

// Declared converts what became of a declaration.
func Declared(d *backends.Declared) *protocol.Declared {
	to := &protocol.Declared{Outcome: string(d.Outcome), NextAt: optTime(d.NextAt)}
	for _, c := range d.Changes {
		to.Differences = append(to.Differences, protocol.Difference(c))
	}
	return to
}

func optTime(t time.Time) protocol.Opt[int64] {
	if t.IsZero() {
		return protocol.Opt[int64]{}
	}
	return protocol.Some(t.UnixMilli())
}
