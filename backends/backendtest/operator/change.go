package operator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func change(ids ...string) backends.Command { return backends.Command{Kind: backends.Change, IDs: ids} }

func to(c backends.Command, priority int16) backends.Command {
	c.Priority = &priority
	return c
}

func after(c backends.Command, d time.Duration) backends.Command {
	c.Delay = &d
	return c
}

func changePriority(k *Kit) {
	ids := k.enqueue(make([]backends.NewJob, 5)...)
	later := k.enqueue(backends.NewJob{Delay: time.Minute, Priority: 1})[0]
	k.operate(to(change(ids[3]), 7), 1, true)
	k.operate(to(change(ids[0], ids[0], "nonsense"), -7), 1, true)
	k.operate(to(change(ids[4]), 0), 1, true) // the same priority, in a new position
	k.operate(to(change(later), 9), 1, false)
	if v := k.view(later); v.State != backends.StateScheduled || v.Priority != 9 || v.RunAt.IsZero() {
		k.Errorf("a scheduled job: %+v", v)
	}
	k.operate(to(change(ids[1]), 0), 1, true)
	k.wantClaims(9, ids[3], ids[2], ids[4], ids[1], ids[0])
	first := k.enqueue(backends.NewJob{Priority: 8})[0]
	k.Advance(time.Minute)
	k.maintain()
	k.wantClaims(9, later, first)
}

func changeTime(k *Kit) {
	ids := k.enqueue(backends.NewJob{}, backends.NewJob{}, backends.NewJob{Delay: time.Hour}, backends.NewJob{Delay: time.Hour}, backends.NewJob{Delay: time.Hour})
	at := k.view(ids[2]).RunAt
	k.operate(after(change(ids[0]), time.Minute), 1, false)
	k.operate(after(to(change(ids[2]), 1), 0), 1, true)
	c := change(ids[3])
	c.RunAt = at.Add(-30 * time.Minute)
	k.operate(c, 1, false)
	if v := k.view(ids[3]); v.State != backends.StateScheduled || !v.RunAt.Equal(c.RunAt) {
		k.Errorf("at a time: %+v, want %v", v, c.RunAt)
	}
	c = change(ids[4])
	c.RunAt = at.Add(-2 * time.Hour)
	k.operate(c, 1, true) // in the past
	if v := k.view(ids[2]); v.State != backends.StateReady || v.Priority != 1 {
		k.Errorf("ready now: %+v", v)
	}
	if v := k.view(ids[0]); v.State != backends.StateScheduled {
		k.Errorf("scheduled: %+v", v)
	}
	k.wantClaims(9, ids[2], ids[1], ids[4])
	k.Advance(time.Minute)
	k.maintain()
	k.wantClaims(9, ids[0])
	k.Advance(30 * time.Minute)
	k.maintain()
	k.wantClaims(9, ids[3])
}

func changeOnlyWaitingJobs(k *Kit) {
	ids := k.enqueue(make([]backends.NewJob, 4)...)
	jobs := k.claim(3)
	k.commit(0, backends.Ack{Leases: leases(jobs[:1])})
	k.commit(0, backends.Nack{Leases: leases(jobs[1:2]), Dead: true})
	k.operate(after(to(change(ids[:3]...), 5), time.Minute), 0, false)
	for i, state := range []backends.State{backends.StateDone, backends.StateDead, backends.StateClaimed} {
		if v := k.view(ids[i]); v.State != state || v.Priority != 0 {
			k.Errorf("a job that was %s: %+v", state, v)
		}
	}
	c := to(change(ids[3]), 5)
	c.Queue = "p"
	if n, freed, err := k.inspector().Command(k.Context(), c); n != 0 || freed || err != nil {
		k.Errorf("in another queue: %d, %v, %v", n, freed, err)
	}
	if r := k.commit(0, backends.Ack{Leases: leases(jobs[2:])}); len(r.Writes[0].Lost) != 0 {
		k.Error("the change of a claimed job took its lease")
	}
}

// changeAndClaimAtOnce changes jobs while another sidecar claims them. Each job is claimed once, with one of the two
// priorities, and none is lost.
func changeAndClaimAtOnce(k *Kit) {
	ids := k.enqueue(make([]backends.NewJob, 60)...)
	second := k.OpenAnother()
	var wg sync.WaitGroup
	wg.Go(func() {
		i, ok := second.(backends.Inspector)
		if !ok {
			k.Errorf("%T isn't an Inspector", second)
			return
		}
		for part := range slices.Chunk(ids, 6) {
			c := to(change(part...), 3)
			c.Queue = "q"
			if _, _, err := retrying(k.Context(), i, c); err != nil {
				k.Errorf("change: %v", err)
			}
		}
	})
	var got []string
	claim := func() bool {
		jobs := k.claim(7)
		for _, j := range jobs {
			got = append(got, j.ID)
		}
		return len(jobs) > 0
	}
	for range 4 {
		claim()
	}
	wg.Wait()
	for claim() {
	}
	slices.Sort(got)
	if slices.Sort(ids); !slices.Equal(got, ids) {
		k.Errorf("%d jobs were claimed, want %d, each once", len(got), len(ids))
	}
}

// retrying repeats a command that another transaction got in the way of.
func retrying(ctx context.Context, i backends.Inspector, c backends.Command) (n int64, freed bool, err error) {
	for range 10 {
		if n, freed, err = i.Command(ctx, c); !backends.Retryable(err) {
			break
		}
	}
	return n, freed, err
}
