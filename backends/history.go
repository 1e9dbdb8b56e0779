package backends

import (
	"context"
	"time"
)

// Historian is a Backend that keeps the totals of each queue by hour. All sidecars of a database add to the same rows.
type Historian interface {
	// AddHistory adds totals to those of their hours. Their hours are those of a clock that shows now: the backend
	// stores the hours of the database's clock. It deletes rows that are older than HistoryHours. Any number of
	// sidecars can call it at the same time.
	AddHistory(ctx context.Context, now time.Time, rows []HourTotals) error

	// History returns the rows of a queue, or of all queues if the name is empty, by hour and queue.
	History(ctx context.Context, queue string) ([]HourTotals, error)
}

// HistoryHours is for how many hours the totals are kept.
const HistoryHours = 14 * 24

// RunBounds are the upper bounds of the buckets of run times. A last bucket has the longer ones. The tables have a
// column for each bucket, so the bounds are part of the schema.
var RunBounds = [RunBuckets - 1]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, time.Hour,
}

// RunBuckets is the number of buckets of run times.
const RunBuckets = 16

// HourTotals are the totals of a queue in an hour.
type HourTotals struct {
	Hour  int64 // hours since 1970, UTC
	Queue string
	Totals
}

// Totals are what happened to the jobs of a queue in some time.
type Totals struct {
	Ready                   int64 // the most ready jobs that statistics showed; negative: none showed them
	Enqueued, Acked, Failed int64
	Runs                    [RunBuckets]int64 // attempts that workers settled, by how long they had the job
}

// NoTotals are the totals of a time in which nothing happened.
func NoTotals() Totals { return Totals{Ready: -1} }

// Add adds the totals of another time or another sidecar.
func (t *Totals) Add(o *Totals) {
	t.Ready = max(t.Ready, o.Ready)
	t.Enqueued += o.Enqueued
	t.Acked += o.Acked
	t.Failed += o.Failed
	for i := range t.Runs {
		t.Runs[i] += o.Runs[i]
	}
}

// IsZero reports whether nothing happened and no job was ready.
func (t *Totals) IsZero() bool {
	return t.Ready <= 0 && t.Enqueued == 0 && t.Acked == 0 && t.Failed == 0 && t.Runs == [RunBuckets]int64{}
}

// RunTime returns a bound of the shortest time in which a share of the runs ended. It is that of the bucket, so it can
// be a few times as long. known is false if there were no runs. If they took longer than the last bound, it is that bound.
func (t *Totals) RunTime(share float64) (bound time.Duration, known bool) {
	var all, below int64
	for _, n := range t.Runs {
		all += n
	}
	if all == 0 {
		return 0, false
	}
	for i, n := range t.Runs[:RunBuckets-1] {
		if below += n; float64(below) >= share*float64(all) {
			return RunBounds[i], true
		}
	}
	return RunBounds[RunBuckets-2], true
}

// HourOf returns the hour of an instant, as in HourTotals.
func HourOf(t time.Time) int64 { return t.Unix() / 3600 }
