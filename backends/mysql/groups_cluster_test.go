package mysql

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestGaleraGroups works jobs of groups through two nodes at once. Neither node sees the other's locks, so what gives a slot away must be
// written on both: no group has two leases at a time, and each job is delivered. A batch that both nodes end has one callback.
func TestGaleraGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	g := startGalera(t)
	t.Run("batches", func(t *testing.T) { endBatches(t, g.Nodes[0].Database(t), g.Nodes[:2]) })
	workGroups(t, g.Nodes[0].Database(t), g.Nodes[:2])
}

// workGroups stores jobs of groups through all nodes, and works them.
func workGroups(t *testing.T, name string, nodes []*testserver.MySQL) {
	const groups, each, workers = 4, 40, 3 // workers of each node
	var stores []*Store
	for i, m := range nodes {
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, backends.Identity(i+1))
		stores = append(stores, s)
	}
	var left atomic.Int64
	left.Store(groups * each)
	var mu sync.Mutex
	held := map[string]int{}
	over := func() bool { return t.Failed() || slices.ContainsFunc(nodes, (*testserver.MySQL).Ended) }
	again := func(err error) bool {
		if err != nil && !backends.Retryable(err) {
			t.Error(err)
		}
		return err != nil && !over()
	}
	commit := func(s *Store, b backends.CommitContent) (r backends.Results) {
		var err error
		for r, err = s.Commit(t.Context(), b); again(err); {
			r, err = s.Commit(t.Context(), b)
		}
		s.Admit(t.Context(), r.Groups)
		return r
	}
	var wg sync.WaitGroup
	for n, s := range stores {
		wg.Go(func() {
			for range each / len(stores) {
				var jobs []backends.NewJob
				for i := range groups {
					jobs = append(jobs, backends.NewJob{Queue: "q", Group: fmt.Sprint(i), Payload: fmt.Append(nil, i)})
				}
				commit(s, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
			}
		})
		wg.Go(func() {
			for left.Load() > 0 && !over() {
				_, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 100})
				again(err)
			}
		})
		for w := range workers {
			wg.Go(func() {
				for number := uint64(1 + w*1_000_000); left.Load() > 0 && !over(); number += claimAtOnce {
					jobs := commit(s, claimOf(backends.Identity(n+1), claimAtOnce, number)).Claims
					if len(jobs) == 0 {
						continue
					}
					mu.Lock()
					for _, j := range jobs[0].Jobs {
						if held[string(j.Payload)]++; held[string(j.Payload)] > 1 {
							t.Errorf("%d jobs of the group %s are claimed", held[string(j.Payload)], j.Payload)
						}
					}
					mu.Unlock()
					for _, j := range jobs[0].Jobs {
						mu.Lock()
						held[string(j.Payload)]-- // before the write, because another worker can get the next job before this one hears of the commit
						mu.Unlock()
						commit(s, backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf([]backends.Job{j})}}})
						left.Add(-1)
					}
				}
			})
		}
	}
	wg.Wait()
	if !t.Failed() && over() {
		t.Skip("MariaDB 10.11 sometimes crashes when transactions conflict")
	}
	st, err := stores[0].Stats(t.Context(), "q")
	if err != nil || st[0].Ready+st[0].Blocked+st[0].Claimed != 0 {
		t.Errorf("at the end: %+v, %v", st, err)
	}
}

// TestMultiPrimaryGroups is TestGaleraGroups for members of a group of MySQL servers that all accept writes.
func TestMultiPrimaryGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	g := wholeGroup(t, nil)
	t.Run("batches", func(t *testing.T) { endBatches(t, g.Nodes[0].Database(t), g.Nodes[:2]) })
	workGroups(t, g.Nodes[0].Database(t), g.Nodes[:2])
}
