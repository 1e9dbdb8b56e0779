package memory

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Stats implements backends.Inspector.
func (b *Backend) Stats(ctx context.Context, queue string) (all []backends.QueueStats, err error) {
	err = b.do(ctx, func() error {
		found := map[string]*backends.QueueStats{}
		of := func(q string) *backends.QueueStats {
			if found[q] == nil {
				found[q] = &backends.QueueStats{Queue: q, Paused: b.paused[q], Limits: b.limits[q]}
			}
			return found[q]
		}
		for _, j := range b.jobs {
			s := of(j.Queue)
			*map[backends.State]*int64{
				backends.StateReady: &s.Ready, backends.StateScheduled: &s.Scheduled, backends.StateClaimed: &s.Claimed,
				backends.StateBlocked: &s.Blocked, backends.StateDead: &s.Dead, backends.StateDone: &s.Done,
			}[j.state]++
			switch j.state {
			case backends.StateReady:
				s.OldestReady = max(s.OldestReady, b.now.Sub(j.readyAt))
			case backends.StateClaimed:
				s.OldestClaimed = max(s.OldestClaimed, b.now.Sub(j.claimed))
			}
		}
		for q := range b.paused {
			of(q)
		}
		for q := range b.limits {
			of(q)
		}
		if queue != "" {
			all = []backends.QueueStats{*of(queue)}
			return nil
		}
		for _, q := range slices.Sorted(maps.Keys(found)) {
			all = append(all, *found[q])
		}
		return nil
	})
	return all, err
}

// Peek implements backends.Inspector.
func (b *Backend) Peek(ctx context.Context, p backends.Peek) (views []backends.View, err error) {
	p.State = cmp.Or(p.State, backends.StateReady)
	order := map[backends.State]func(x, y *job) int{
		backends.StateReady: func(x, y *job) int { return inOrder(x, y, false) },
		backends.StateBlocked: func(x, y *job) int {
			return cmp.Or(strings.Compare(x.Group, y.Group), inOrder(x, y, false))
		},
		backends.StateScheduled: byRunAt, backends.StateClaimed: byClaimed, backends.StateDone: byFinished, backends.StateDead: byFinished,
	}[p.State]
	if order == nil {
		return nil, fmt.Errorf("no job is ever %q", p.State)
	}
	next := func(x, y *job) int { return cmp.Or(order(x, y), bySeq(x, y)) }
	if p.Newest {
		next = func(x, y *job) int { return cmp.Or(order(y, x), bySeq(y, x)) }
	}
	err = b.do(ctx, func() error {
		var shown []*job
		last := b.jobs[p.After]
		switch {
		case len(p.IDs) > 0:
			for i, id := range p.IDs {
				if j := b.jobs[id]; j != nil && j.Queue == p.Queue && !slices.Contains(p.IDs[:i], id) {
					shown = append(shown, j)
				}
			}
		case p.Key != "":
			if j := b.keys[key{p.Queue, p.Key}]; j != nil && b.jobs[j.id] == j {
				shown = append(shown, j)
			}
		case p.After != "" && (last == nil || last.Queue != p.Queue):
			return backends.ErrNoSuchJob
		default:
			if p.Newest && last != nil && last.state != p.State {
				last = nil // it has left the state
			}
			shown = b.sorted(p.Max, next, func(j *job) bool {
				return j.Queue == p.Queue && j.state == p.State && (last == nil || next(j, last) > 0)
			})
		}
		var size int64
		for _, j := range shown[:min(p.Max, len(shown))] {
			size += int64(len(j.Payload) + len(j.result))
			if p.MaxBytes > 0 && size > p.MaxBytes && len(views) > 0 {
				break
			}
			if p.OnlyIDs {
				views = append(views, backends.View{ID: j.id})
			} else {
				views = append(views, j.view())
			}
		}
		return nil
	})
	return views, err
}

func (j *job) view() backends.View {
	v := backends.View{
		ID: j.id, Queue: j.Queue, State: j.state, Payload: bytes.Clone(j.Payload), Priority: j.Priority,
		Attempt: j.Attempts, MaxAttempts: cmp.Or(j.Limit, j.MaxAttempts), EnqueuedAt: j.enqueued,
		FinishedAt: j.finished, Key: j.Key, Group: j.Group, Headers: maps.Clone(j.Headers), Result: bytes.Clone(j.result),
		Failures: slices.Clone(j.failures), HasProgress: j.progress != nil, StartBefore: j.startBefore,
	}
	switch j.state {
	case backends.StateScheduled:
		v.RunAt = j.runAt
	case backends.StateClaimed:
		v.ClaimedAt, v.Worker = j.claimed, j.worker
	}
	return v
}

// Command implements backends.Inspector.
func (b *Backend) Command(ctx context.Context, c backends.Command) (n int64, freed bool, err error) {
	var left []backends.JobState
	var ended []backends.Token
	var pending []backends.StoredPending
	err = b.do(ctx, func() error {
		switch c.Kind {
		case backends.Pause:
			b.paused[c.Queue] = true
			return nil
		case backends.Resume:
			delete(b.paused, c.Queue)
			freed = b.firstReady(backends.Policy{Queue: c.Queue}) != nil
			return nil
		case backends.Limit:
			l, err := c.Limits.Apply(b.limits[c.Queue])
			if err != nil {
				return err
			}
			if b.limits[c.Queue] = l; !l.Stored() {
				delete(b.limits, c.Queue)
			}
			b.touchAll(c.Queue)
			b.admit()
			freed = b.firstReady(backends.Policy{Queue: c.Queue}) != nil
			return nil
		case backends.Purge:
			if !slices.Contains([]backends.State{backends.StateReady, backends.StateBlocked, backends.StateScheduled, backends.StateDone, backends.StateDead}, c.State) {
				return fmt.Errorf("jobs that are %s cannot be purged", c.State)
			}
		}
		left = b.unchanged(&c)
		found := b.sorted(math.MaxInt, byFinished, func(j *job) bool { return j.Queue == c.Queue && j.selectedBy(c) })
		if c.Kind == backends.Retry {
			taken := b.keyTaken(map[string]bool{})
			found = slices.DeleteFunc(found, func(j *job) bool {
				is := taken(j)
				if is {
					left = append(left, backends.JobState{ID: j.id, State: j.state})
				}
				return is
			})
		}
		for _, j := range found {
			if c.Kind == backends.Cancel && j.state == backends.StateClaimed {
				ended = append(ended, j.token)
			}
			b.command(j, c)
		}
		pending = b.pending
		made := len(b.madeReady) > 0
		n, freed = int64(len(found)), len(b.admit()) > 0 || made
		return nil
	})
	if err == nil && c.Unchanged != nil && (len(c.IDs) > 0 || len(left) > 0) {
		c.Unchanged(left)
	}
	if err == nil && c.Ended != nil && len(ended) > 0 {
		c.Ended(ended)
	}
	if err == nil && c.Pending != nil && len(pending) > 0 {
		c.Pending(pending)
	}
	return n, freed, err
}

// selectedBy reports whether the command c applies to j.
func (j *job) selectedBy(c backends.Command) bool {
	named := slices.Contains(c.IDs, j.id)
	switch c.Kind {
	case backends.Retry:
		return j.state == backends.StateDead && (c.All || named)
	case backends.Change:
		return slices.Contains([]backends.State{backends.StateReady, backends.StateBlocked, backends.StateScheduled}, j.state) && named
	case backends.Delete:
		return j.state != backends.StateClaimed && named
	case backends.Reclaim:
		return j.state == backends.StateClaimed && named
	case backends.Cancel:
		return (c.Changes(j.state) || j.cancelled()) && named
	default:
		return j.state == c.State
	}
}

// keyTaken returns a function that reports whether another job has the key of j. It remembers the
// keys of earlier calls in before, so of two jobs with one key only the first can have it.
func (b *Backend) keyTaken(before map[string]bool) func(j *job) bool {
	return func(j *job) bool {
		holder := b.keys[key{j.Queue, j.Key}]
		taken := j.Key != "" && !j.KeyUntilStart && (before[j.Key] || b.remembered(holder) && holder != j)
		before[j.Key] = before[j.Key] || !j.KeyUntilStart
		return taken
	}
}

// cancelled reports whether a Cancel made the job dead.
func (j *job) cancelled() bool {
	return j.state == backends.StateDead && len(j.failures) > 0 && j.failures[len(j.failures)-1].Cause == backends.CauseCancelled
}

// unchanged returns the jobs that a command names and does not change.
func (b *Backend) unchanged(c *backends.Command) (left []backends.JobState) {
	for i, id := range c.IDs {
		s := backends.JobState{ID: id, State: backends.StateDeleted}
		j := b.jobs[id]
		if j != nil && j.Queue == c.Queue {
			s.State, s.Cancelled = j.state, j.cancelled()
		}
		if !slices.Contains(c.IDs[:i], id) && (s.State == backends.StateDeleted || !j.selectedBy(*c)) {
			left = append(left, s)
		}
	}
	return left
}

// Cancelled implements backends.Inspector.
func (b *Backend) Cancelled(ctx context.Context, sidecar backends.Identity) (claims []backends.Token, err error) {
	err = b.do(ctx, func() error {
		claims = slices.Clone(b.cancelled[sidecar])
		return nil
	})
	return claims, err
}

func (b *Backend) cancel(j *job, c backends.Command) {
	if j.state == backends.StateClaimed {
		if j.owner != 0 { // otherwise no sidecar would read the note
			b.cancelled[j.owner] = append(b.cancelled[j.owner], j.token)
		}
	} else if j.retainDead == 0 {
		j.retainDead = c.RetainDead
	}
	if !j.cancelled() {
		b.apply(j, j.counted().AfterCancel())
	}
	if c.Remove {
		b.setState(j, backends.StateDeleted, time.Time{})
		delete(b.jobs, j.id)
	}
}

func (b *Backend) command(j *job, c backends.Command) {
	switch c.Kind {
	case backends.Cancel:
		b.cancel(j, c)
	case backends.Change:
		b.changeWaiting(j, c)
	case backends.Retry:
		if j.Key != "" && !j.KeyUntilStart {
			b.keys[key{j.Queue, j.Key}] = j
		}
		j.startBefore = time.Time{}
		b.apply(j, backends.Disposition{State: backends.StateReady})
	case backends.Reclaim:
		b.apply(j, j.counted().AfterRelease(backends.Release{Uncounted: true}, 0))
	default:
		b.setState(j, backends.StateDeleted, time.Time{})
		delete(b.jobs, j.id)
	}
}

func (b *Backend) changeWaiting(j *job, c backends.Command) {
	switch {
	case c.Delay != nil:
		j.runAt = b.now.Add(*c.Delay)
		if last := j.enqueued.Add(c.Within); c.Within > 0 && j.runAt.After(last) {
			j.runAt = last
		}
	case !c.RunAt.IsZero():
		j.runAt = c.RunAt
	case j.state != backends.StateScheduled:
		j.runAt = time.Time{}
	}
	if c.Priority != nil {
		j.Priority = *c.Priority
	}
	if j.state != backends.StateScheduled {
		b.leaveGroup(j)
	}
	if j.runAt.After(b.now) {
		b.setState(j, backends.StateScheduled, time.Time{})
		return
	}
	b.seq++
	j.pos, j.readyAt = b.seq, b.now
	b.setState(j, backends.StateReady, time.Time{})
}

// Queues implements backends.Locator.
func (b *Backend) Queues(ctx context.Context, leases []backends.Lease) (queues []string, err error) {
	err = b.do(ctx, func() error {
		for _, l := range leases {
			if j := b.jobs[l.Job]; j != nil {
				queues = append(queues, j.Queue)
			}
		}
		return nil
	})
	return queues, err
}
