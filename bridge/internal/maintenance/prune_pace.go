package maintenance

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// pruning decides when to prune and how much. It prunes in batches that delay no other transaction for long. The
// pauses leave the database to the workers, but pruning is still faster than finished jobs come in. Only the
// goroutine of the Maintainer uses it.
//
// A batch that takes too long, also because the machine is busy, is followed by a smaller batch and a longer pause.
// So load slows pruning, and pruning does not slow the load. All sidecars of a database prune, so each prunes
// proportionally less.
type pruning struct {
	alone bool // writes that begin during a batch wait for its end

	next  time.Time // of the next batch
	batch int       // rows; 0: there was none yet
	rank  int       // the share of the time is shares[rank]

	since   time.Time     // time of the last review; zero: pruning was not behind
	overdue time.Duration // how late pruning was at that time
}

const (
	pruneEvery = 10 * time.Second // if nothing is left to prune

	batchTime      = 80 * time.Millisecond // what a batch should take
	batchTimeAlone = 15 * time.Millisecond // the same if alone is set
	firstBatch     = 100                   // rows
	minBatch       = 50
	maxBatch       = 2000

	// minRate is the minimum rate of pruning, in rows per second of all sidecars, regardless of the share of the
	// time. It does not apply if the batch itself takes longer.
	minRate = 1000

	// tolerated is how late pruning can be without harm: expired rows stay in the table for that long before pruning
	// slows workers. A burst, whose jobs expire as fast as they finished, keeps pruning behind for as long as it
	// lasts. It is pruned in the end.
	tolerated = 30 * time.Minute

	// reviewEvery is how often a review checks whether late pruning falls further behind.
	reviewEvery = 2 * time.Minute
)

// shares are the parts of the time for pruning, in percent. If jobs finish faster than the first share prunes, the
// next one applies, and so on.
var shares = []int64{10, 20, 40, 60, 80, 100}

func (p *pruning) due(now time.Time) bool { return !now.Before(p.next) }

func (p *pruning) wait(now time.Time) time.Duration { return p.next.Sub(now) }

func (p *pruning) batchSize() int {
	if p.batch == 0 {
		p.batch = firstBatch
	}
	return p.batch
}

// failed skips pruning for a while after a batch that failed, so that a database that refuses to delete does not
// stop the rest of maintenance.
func (p *pruning) failed(now time.Time) { p.next = now.Add(pruneEvery) }

// pruned records the result of a batch, and plans the next batch. peers is the number of other sidecars.
func (p *pruning) pruned(now time.Time, r backends.MaintenanceResult, peers int) {
	if !r.PruneMore {
		p.next, p.since = now.Add(pruneEvery), time.Time{}
		p.rank = max(p.rank-1, 0)
		return
	}
	p.review(now, r.PruneOverdue)
	share := shares[p.rank]
	pause := min(r.LongestPrune*time.Duration(100-share)/time.Duration(share), time.Duration(r.Pruned)*time.Second/minRate)
	if r.Pruned == 0 { // other transactions have locked the rows
		pause = interval
	}
	p.next = now.Add(min(pause*time.Duration(1+peers), pruneEvery))
	p.size(r.LongestPrune)
}

// size adjusts the size of batches to the time that they should take.
func (p *pruning) size(took time.Duration) {
	n, should := p.batchSize(), int64(batchTime)
	if p.alone {
		should = int64(batchTimeAlone)
	}
	if took > 0 {
		n = int(min(int64(n)*should/int64(took), 2*int64(n)))
	}
	p.batch = min(max(n, p.batchSize()/2, minBatch), maxBatch)
}

// review increases the share of the time if pruning is late and falls further behind, and decreases it if it
// gains.
func (p *pruning) review(now time.Time, overdue time.Duration) {
	switch {
	case p.since.IsZero():
	case now.Sub(p.since) < reviewEvery:
		return
	case overdue >= p.overdue && overdue < tolerated:
	case overdue >= p.overdue:
		p.rank = min(p.rank+1, len(shares)-1)
	default:
		p.rank = max(p.rank-1, 0)
	}
	p.since, p.overdue = now, overdue
}
