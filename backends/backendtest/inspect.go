package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// jobsInAllStates creates three jobs in each state and returns their ids by state, in the order of
// Peek.
func (k *kit) jobsInAllStates() map[backends.State][]string {
	k.Helper()
	ids := map[backends.State][]string{}
	p := policy("q")
	p.RetainDone = time.Hour
	claim := func(n int) []backends.Job {
		k.enqueuePayloads(numbered(n)...)
		k.AdvanceClock(time.Second)
		jobs := k.commit(k.claimBatch(me, n, 0, p)).Claims[0].Jobs
		return jobs
	}
	for range 3 {
		j := claim(1)
		k.writeLosing(backends.Ack{Leases: leasesOf(j...)}, 0)
		ids[backends.StateDone] = append(ids[backends.StateDone], j[0].ID)
		j = claim(1)
		k.writeLosing(backends.Nack{Leases: leasesOf(j...), Dead: true, Error: "dead"}, 0)
		ids[backends.StateDead] = append(ids[backends.StateDead], j[0].ID)
		ids[backends.StateClaimed] = append(ids[backends.StateClaimed], claim(1)[0].ID)
	}
	for i := range 3 {
		ids[backends.StateScheduled] = append(ids[backends.StateScheduled],
			k.enqueue(backends.NewJob{Queue: "q", Delay: time.Duration(9-i) * time.Minute})...)
		ids[backends.StateReady] = append(ids[backends.StateReady], k.enqueue(job("r", int16(i)))...)
		k.AdvanceClock(time.Second)
	}
	slices.Reverse(ids[backends.StateScheduled])
	slices.Reverse(ids[backends.StateReady])
	return ids
}

func (k *kit) peek(p backends.Peek) (ids []string) {
	k.Helper()
	p.Queue = "q"
	if p.Max == 0 {
		p.Max = 100
	}
	for _, v := range k.views(p) {
		if len(p.IDs) == 0 && v.State != p.State {
			k.Errorf("peek %s shows a job that is %s", p.State, v.State)
		}
		ids = append(ids, v.ID)
	}
	return ids
}

var inspectTests = map[string]func(*kit){
	"QueuesOfLeases": func(k *kit) {
		l, ok := k.Backend.(backends.Locator)
		if !ok {
			k.Fatal("it isn't a Locator")
		}
		if k.Info().Engine == "sqlserver" {
			return // the test server does not support this form of OPENJSON
		}
		ids := k.enqueue(backends.NewJob{Queue: "q"}, backends.NewJob{Queue: "Q"}, backends.NewJob{Queue: "other"})
		got, err := l.Queues(k.Context(), []backends.Lease{{Job: ids[0]}, {Job: ids[1]}, {Job: "999999999"}, {Job: "none"}})
		slices.Sort(got)
		if err != nil || !slices.Equal(got, []string{"Q", "q"}) {
			k.Errorf("the queues of two jobs of three: %q, %v", got, err)
		}
		if got, err := l.Queues(k.Context(), []backends.Lease{{Job: "x"}}); err != nil || len(got) != 0 {
			k.Errorf("the queues of an unknown job: %q, %v", got, err)
		}
	},
	"StatsCountEachState": func(k *kit) {
		k.jobsInAllStates()
		k.enqueue(backends.NewJob{Queue: "p"}, backends.NewJob{Queue: "p"})
		k.operate(backends.Command{Kind: backends.Pause, Queue: "empty"}, 0, false)
		all, err := k.inspector().Stats(k.Context(), "")
		if err != nil || len(all) != 3 || all[0].Queue != "empty" || all[1].Queue != "p" || all[2].Queue != "q" {
			k.Fatalf("%+v, %v; want empty, p and q", all, err)
		}
		q := all[2]
		if q.OldestReady < 3*time.Second || q.OldestReady > time.Minute || q.OldestClaimed < 3*time.Second || q.OldestClaimed > time.Minute {
			k.Errorf("the oldest ready for %v, claimed for %v", q.OldestReady, q.OldestClaimed)
		}
		q.OldestReady, q.OldestClaimed = 0, 0
		want := backends.QueueStats{Queue: "q", Ready: 3, Scheduled: 3, Claimed: 3, Dead: 3, Done: 3}
		if q != want || q != func() backends.QueueStats { s := k.stats(); s.OldestReady, s.OldestClaimed = 0, 0; return s }() {
			k.Errorf("%+v, want %+v", q, want)
		}
		if !all[0].Paused || all[0].Ready != 0 || all[1].Ready != 2 || all[1].Paused || all[1].OldestClaimed != 0 {
			k.Errorf("%+v", all)
		}
	},
	"StatsOfAllQueuesAgreeWithEach": func(k *kit) {
		k.jobsInAllStates()
		for i, name := range []string{"a", "b", "Q", "q1", "p", "r:x", "z"} {
			p := policy(name)
			p.RetainDone = time.Hour
			for n := range 4 * i {
				k.enqueue(backends.NewJob{Queue: name, Priority: int16(n % 3), Delay: time.Duration(n%4/3) * time.Hour})
				k.AdvanceClock(time.Second)
				switch jobs := k.commit(k.claimBatch(me, n%3/2, 0, p)).Claims[0].Jobs; {
				case len(jobs) == 0:
				case n%2 == 0:
					k.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 0)
				case n%5 == 0:
					k.writeLosing(backends.Nack{Leases: leasesOf(jobs...), Dead: true, Error: "dead"}, 0)
				}
			}
		}
		stats := func(queue string, n int) []backends.QueueStats {
			all, err := k.inspector().Stats(k.Context(), queue)
			if err != nil || len(all) != n {
				k.Fatalf("%q: %+v, %v; want those of %d queues", queue, all, err, n)
			}
			return all
		}
		all := stats("", 7) // queue a has no job
		var each []backends.QueueStats
		for _, s := range all {
			each = append(each, stats(s.Queue, 1)...)
		}
		for i, later := range stats("", 7) {
			s, one := all[i], each[i]
			for _, ages := range [][3]*time.Duration{{&s.OldestReady, &one.OldestReady, &later.OldestReady}, {&s.OldestClaimed, &one.OldestClaimed, &later.OldestClaimed}} {
				if *ages[0] > *ages[1] || *ages[1] > *ages[2] || (*ages[0] == 0) != (*ages[2] == 0) {
					k.Errorf("%s: ages of %v, then alone %v, then %v", s.Queue, *ages[0], *ages[1], *ages[2])
				}
				*ages[0], *ages[1], *ages[2] = 0, 0, 0
			}
			if s != one || later != one {
				k.Errorf("among all: %+v, %+v, alone: %+v", s, later, one)
			}
		}
	},
	"StatsOfManyQueuesTakeFewRoundTrips": func(k *kit) {
		m, ok := k.Backend.(backends.Metered)
		if !ok {
			return // it has no server
		}
		const queues = 100
		for i := range queues {
			k.enqueue(backends.NewJob{Queue: fmt.Sprintf("queue-%d", i)})
		}
		before := m.Usage().RoundTrips.Count
		if all, err := k.inspector().Stats(k.Context(), ""); err != nil || len(all) != queues {
			k.Fatalf("%d queues, %v", len(all), err)
		}
		if n := m.Usage().RoundTrips.Count - before; n > queues/2 {
			k.Errorf("%d round trips for %d queues", n, queues)
		}
	},
	"StatsOfAnUnknownQueue": func(k *kit) {
		if s := k.stats(); s != (backends.QueueStats{Queue: "q"}) {
			k.Errorf("%+v", s)
		}
		if all, err := k.inspector().Stats(k.Context(), ""); err != nil || len(all) != 0 {
			k.Errorf("%+v, %v; want no queue", all, err)
		}
	},
	"PeekInTheStatesOrder": func(k *kit) {
		for state, want := range k.jobsInAllStates() {
			if got := k.peek(backends.Peek{State: state}); !slices.Equal(got, want) {
				k.Errorf("%s: %v, want %v", state, got, want)
			}
			if got := k.peek(backends.Peek{State: state, Max: 2}); !slices.Equal(got, want[:2]) {
				k.Errorf("%s, two: %v, want %v", state, got, want[:2])
			}
			if got := k.peek(backends.Peek{State: state, After: want[0]}); !slices.Equal(got, want[1:]) {
				k.Errorf("%s after the first: %v, want %v", state, got, want[1:])
			}
			if got := k.peek(backends.Peek{State: state, After: want[2]}); len(got) != 0 {
				k.Errorf("%s after the last: %v", state, got)
			}
		}
	},
	"PeekReadyInsideAPriority": func(k *kit) {
		ids := k.enqueue(job("a", 0), job("b", 0), job("x", 1), job("c", 0), job("z", -1))
		want := []string{ids[2], ids[0], ids[1], ids[3], ids[4]}
		for i := range want {
			if got := k.peek(backends.Peek{State: backends.StateReady, After: want[i]}); !slices.Equal(got, want[i+1:]) {
				k.Errorf("after %d: %v, want %v", i, got, want[i+1:])
			}
		}
	},
	"PeekByIDs": func(k *kit) {
		m := k.jobsInAllStates()
		foreign := k.enqueue(backends.NewJob{Queue: "p"})[0]
		want := []string{m[backends.StateDead][1], m[backends.StateReady][0], m[backends.StateDone][2], m[backends.StateClaimed][0], m[backends.StateScheduled][0]}
		asked := append([]string{foreign, "nonsense", "0", "-1", "99999999"}, want...)
		if got := k.peek(backends.Peek{IDs: append(asked, want[0])}); !slices.Equal(got, want) {
			k.Errorf("%v, want %v", got, want)
		}
	},
	"PeekAfterADeletedJob": func(k *kit) {
		foreign := k.enqueue(backends.NewJob{Queue: "p"})[0]
		for _, after := range []string{"99999999", "nonsense", foreign} {
			_, err := k.inspector().Peek(k.Context(), backends.Peek{Queue: "q", State: backends.StateReady, Max: 1, After: after})
			if !errors.Is(err, backends.ErrNoSuchJob) {
				k.Errorf("after %q: %v, want ErrNoSuchJob", after, err)
			}
		}
	},
	"PeekStopsByBytes": func(k *kit) {
		ids := k.enqueuePayloads("aaaa", "bbbb", "cc")
		for maxBytes, want := range map[int64][]string{1: ids[:1], 8: ids[:2], 9: ids[:2], 10: ids} {
			if got := k.peek(backends.Peek{State: backends.StateReady, MaxBytes: maxBytes}); !slices.Equal(got, want) {
				k.Errorf("%d bytes: %v, want %v", maxBytes, got, want)
			}
		}
	},
	"ViewInEachState": func(k *kit) {
		m := k.jobsInAllStates()
		for state, ids := range m {
			v := k.view(ids[0])
			if (state == backends.StateScheduled) == v.RunAt.IsZero() || (state == backends.StateClaimed) == v.ClaimedAt.IsZero() ||
				(state == backends.StateDone || state == backends.StateDead) == v.FinishedAt.IsZero() || v.EnqueuedAt.IsZero() {
				k.Errorf("%s: %+v", state, v)
			}
		}
		dead := k.view(m[backends.StateDead][0])
		if dead.Attempt != 1 || dead.MaxAttempts != 3 || len(dead.Failures) != 1 || dead.Failures[0].Message != "dead" {
			k.Errorf("%+v", dead)
		}
	},
	"PeekChangesNothing": func(k *kit) {
		m := k.jobsInAllStates()
		before := k.stats()
		for state := range m {
			k.peek(backends.Peek{State: state})
		}
		if after := k.stats(); after != before {
			k.Errorf("%+v, before %+v", after, before)
		}
	},
}
