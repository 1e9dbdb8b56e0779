package maintenance

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// prunes simulates a database in which a batch of n rows takes cost(n). It returns the total time of the batches, and
// the size of the largest.
func prunes(p *pruning, now *time.Time, rows int, peers int, overdue func() time.Duration, cost func(n int) time.Duration) (sum, longest time.Duration, most int) {
	for rows > 0 {
		if !p.due(*now) {
			*now = now.Add(p.wait(*now))
		}
		n := min(p.batchSize(), rows)
		took := cost(n)
		rows -= n
		*now = now.Add(took)
		sum, longest, most = sum+took, max(longest, took), max(most, n)
		p.pruned(*now, backends.MaintenanceResult{PruneMore: rows > 0, Pruned: n, LongestPrune: took, PruneOverdue: overdue()}, peers)
	}
	return sum, longest, most
}

func never() time.Duration { return 0 }

// TestPruningKeepsItsShare shows that batches are as large as their time allows, and that they take a tenth of the
// time, of all sidecars together.
func TestPruningKeepsItsShare(t *testing.T) {
	for _, c := range []struct {
		peers int
		alone bool
		take  time.Duration
	}{{0, false, batchTime}, {9, false, batchTime}, {0, true, batchTimeAlone}} {
		p, peers := pruning{alone: c.alone}, c.peers
		now := time.Unix(1_000_000, 0)
		began, gain := now, time.Hour
		shrinking := func() time.Duration { gain -= time.Millisecond; return gain }
		sum, longest, most := prunes(&p, &now, 1_000_000, c.peers, shrinking, func(n int) time.Duration { return time.Duration(n) * 40 * time.Microsecond })
		if longest > c.take*11/10 || most < int(c.take/(41*time.Microsecond)) {
			t.Errorf("%d peers: the longest bite took %v, the largest was of %d rows", peers, longest, most)
		}
		share := float64(sum) / float64(now.Sub(began)) * float64(1+peers)
		if share < 0.09 || share > 0.17 {
			t.Errorf("%d peers: pruning had %.2f of the time", peers, share)
		}
	}
}

// TestPruningUnderLoad shows that batches become small and pauses long if batches take longer, and that both have a
// limit.
func TestPruningUnderLoad(t *testing.T) {
	var p pruning
	now := time.Unix(1_000_000, 0)
	prunes(&p, &now, 10_000, 0, never, func(n int) time.Duration { return time.Duration(n) * 10 * time.Microsecond })
	if p.batchSize() != maxBatch {
		t.Errorf("bites of %d rows where they are cheap, want %d", p.batchSize(), maxBatch)
	}
	_, _, _ = prunes(&p, &now, 100_000, 0, never, func(n int) time.Duration { return time.Duration(n) * 2 * time.Millisecond })
	if p.batchSize() != minBatch {
		t.Errorf("bites of %d rows where each takes two milliseconds, want %d", p.batchSize(), minBatch)
	}
	p.pruned(now, backends.MaintenanceResult{PruneMore: true, Pruned: 50, LongestPrune: time.Minute}, 0)
	if left := p.wait(now); left != 50*time.Second/minRate {
		t.Errorf("a pause of %v after 50 rows", left)
	}
	p.pruned(now, backends.MaintenanceResult{PruneMore: true, Pruned: 2000, LongestPrune: time.Hour}, 100)
	if left := p.wait(now); left > pruneEvery {
		t.Errorf("a pause of %v, want at most %v", left, pruneEvery)
	}
}

// TestPruningOfABurst shows that jobs that expire together are pruned in the usual tenth of the time. Their number
// does not slow any worker.
func TestPruningOfABurst(t *testing.T) {
	var p pruning
	now := time.Unix(1_000_000, 0)
	began := now
	sum, _, _ := prunes(&p, &now, 1_000_000, 0, func() time.Duration { return now.Sub(began) }, func(n int) time.Duration { return time.Duration(n) * 80 * time.Microsecond })
	if share := float64(sum) / float64(now.Sub(began)); share > 0.13 || now.Sub(began) > 20*time.Minute {
		t.Errorf("a million took %v, and %.2f of the time", now.Sub(began), share)
	}
}

// TestPruningCatchesUp shows that late pruning that falls further behind gets more and more of the time, and less
// again afterwards.
func TestPruningCatchesUp(t *testing.T) {
	var p pruning
	now := time.Unix(1_000_000, 0)
	began := now
	prunes(&p, &now, 2_000_000, 0, func() time.Duration { return tolerated + now.Sub(began) }, func(n int) time.Duration { return time.Duration(n) * 400 * time.Microsecond })
	if now.Sub(began) > 30*time.Minute || p.rank < len(shares)-2 {
		t.Errorf("after %v the share is %d %%", now.Sub(began), shares[p.rank])
	}
	for range shares {
		p.pruned(now, backends.MaintenanceResult{}, 0)
	}
	if p.rank != 0 || p.wait(now) != pruneEvery {
		t.Errorf("with nothing left the share is %d %%, the next look in %v", shares[p.rank], p.wait(now))
	}
}

// TestPruningThatFails shows that maintenance continues without pruning after a failure, so that a database that
// refuses to delete does not stop the rest.
func TestPruningThatFails(t *testing.T) {
	var p pruning
	now := time.Unix(1_000_000, 0)
	if !p.due(now) {
		t.Error("the first sweep does not prune")
	}
	p.failed(now)
	if p.due(now.Add(pruneEvery-time.Second)) || !p.due(now.Add(pruneEvery)) {
		t.Errorf("it is tried again in %v, want %v", p.wait(now), pruneEvery)
	}
}
