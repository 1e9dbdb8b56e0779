package memory

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// number is the id as a number; what is none matches nothing above 0.
func number(id string) int64 {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Stats implements backends.Inspector.
func (b *Backend) Stats(ctx context.Context, queue string) (all []backends.QueueStats, err error) {
	err = b.do(ctx, func(t *tx) error {
		found := map[string]*backends.QueueStats{}
		of := func(q string) *backends.QueueStats {
			if found[q] == nil {
				found[q] = &backends.QueueStats{Queue: q, Paused: t.paused[q]}
			}
			return found[q]
		}
		for _, j := range t.jobs {
			switch s := of(j.Queue); j.state {
			case backends.StateReady:
				s.Ready++
				s.OldestReady = max(s.OldestReady, t.now.Sub(j.readyAt))
			case backends.StateScheduled:
				s.Scheduled++
			case backends.StateClaimed:
				s.Claimed++
				s.OldestClaimed = max(s.OldestClaimed, t.now.Sub(j.claimed))
			case backends.StateDead:
				s.Dead++
			case backends.StateDone:
				s.Done++
			}
		}
		for q := range t.paused {
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
		backends.StateReady: inOrder, backends.StateScheduled: byRunAt, backends.StateClaimed: byClaimed,
		backends.StateDone: byFinished, backends.StateDead: byFinished,
	}[p.State]
	if order == nil {
		return nil, fmt.Errorf("no job is ever %q", p.State)
	}
	err = b.do(ctx, func(t *tx) error {
		var shown []*job
		switch last := t.jobs[p.After]; {
		case len(p.IDs) > 0:
			for i, id := range p.IDs {
				if j := t.jobs[id]; j != nil && j.Queue == p.Queue && !slices.Contains(p.IDs[:i], id) {
					shown = append(shown, j)
				}
			}
		case p.After != "" && (last == nil || last.Queue != p.Queue):
			return backends.ErrNoSuchJob
		default:
			shown = t.sorted(p.Max, order, func(j *job) bool {
				return j.Queue == p.Queue && j.state == p.State && (last == nil || cmp.Or(order(j, last), bySeq(j, last)) > 0)
			})
		}
		var size int64
		for _, j := range shown[:min(p.Max, len(shown))] {
			size += int64(len(j.Payload) + len(j.result))
			if p.MaxBytes > 0 && size > p.MaxBytes && len(views) > 0 {
				break
			}
			views = append(views, j.view())
		}
		return nil
	})
	return views, err
}

func (j *job) view() backends.View {
	v := backends.View{
		ID: j.id, Queue: j.Queue, State: j.state, Payload: bytes.Clone(j.Payload), Priority: j.Priority,
		Attempt: j.attempts, MaxAttempts: cmp.Or(j.limit, j.MaxAttempts), EnqueuedAt: j.enqueued,
		FinishedAt: j.finished, Key: j.Key, Headers: maps.Clone(j.Headers), Result: bytes.Clone(j.result),
		Failures: slices.Clone(j.failures),
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
	err = b.do(ctx, func(t *tx) error {
		switch c.Kind {
		case backends.Pause:
			t.paused[c.Queue] = true
			return nil
		case backends.Resume:
			delete(t.paused, c.Queue)
			freed = len(t.ready[c.Queue]) > 0
			return nil
		case backends.Purge:
			if !slices.Contains([]backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead}, c.State) {
				return fmt.Errorf("jobs that are %s cannot be purged", c.State)
			}
		}
		for _, j := range t.sorted(math.MaxInt, byFinished, func(j *job) bool { return j.Queue == c.Queue && j.suits(c) }) {
			if c.Kind == backends.Retry && t.taken(j) {
				return backends.ErrKeyTaken
			}
			t.change(j, func() { t.command(j, c.Kind) })
			n++
		}
		freed = len(t.freed) > 0
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	return n, freed, nil
}

// suits: the command c is for j.
func (j *job) suits(c backends.Command) bool {
	named := slices.Contains(c.IDs, j.id)
	switch c.Kind {
	case backends.Retry:
		return j.state == backends.StateDead && (c.All || named)
	case backends.Delete:
		return j.state != backends.StateClaimed && named
	case backends.ForceRelease:
		return j.state == backends.StateClaimed && named
	default:
		return j.state == c.State
	}
}

// taken: another job has the key of j; where none has it, j has it again.
func (t *tx) taken(j *job) bool {
	if j.Key == "" {
		return false
	}
	k := key{j.Queue, j.Key}
	old := t.keys[k]
	if old != nil && old.job != j.id && (t.unfinished(old) || t.now.Before(old.expires)) {
		return true
	}
	t.keys[k] = &keyed{job: j.id, expires: j.enqueued.Add(j.KeyTTL)}
	t.undo = append(t.undo, func() {
		if t.keys[k] = old; old == nil {
			delete(t.keys, k)
		}
	})
	return false
}

func (t *tx) command(j *job, kind backends.CommandKind) {
	switch kind {
	case backends.Retry:
		j.attempts, j.losses, j.finished, j.expires = 0, 0, time.Time{}, time.Time{}
		t.again(j, 0)
	case backends.ForceRelease:
		t.release(j, backends.Release{Uncharged: true})
	default:
		t.remove(j, backends.StateDeleted)
	}
}
