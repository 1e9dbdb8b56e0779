package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// SampleEvery is the time between two readings of the counters.
	SampleEvery = 10 * time.Second
	// Minutes is for how many minutes the numbers stay in memory.
	Minutes = 60
	// MaxQueues is how many queues have numbers of their own.
	MaxQueues = 100
	// Other is the name of the sum of all other queues, as in the metrics.
	Other = "_other"
	// WriteEvery is the shortest time between two writes.
	WriteEvery = 5 * time.Minute

	unwrittenHours = 24 // how many hours wait for a write that succeeds
	writeTimeout   = 10 * time.Second
)

// Counters are what this sidecar counted since its start.
type Counters struct {
	Enqueued, Acked, Failed int64
	Runs                    [backends.RunBuckets]int64
}

// Config configures a Recorder.
type Config struct {
	// Count calls each with the counters of every queue.
	Count func(each func(queue string, c Counters))
	// Write adds totals to those in the database.
	Write func(ctx context.Context, now time.Time, rows []backends.HourTotals) error
	Log   *slog.Logger
}

// Recorder records one database.
type Recorder struct {
	Config

	mu      sync.Mutex
	began   time.Time
	last    map[string]Counters // as last read
	depths  map[string]int64    // ready jobs, since the last sample
	queues  map[string]*queue
	hours   map[int64]map[string]*backends.Totals // that are not written yet
	written time.Time                             // when the last write began
	failing bool                                  // the last write failed
	after   time.Duration                         // how long after the end of an hour it is written
}

// queue are the totals of the last minutes.
type queue struct {
	ring   [Minutes]backends.Totals
	minute int64 // of the newest one
	used   int64 // the last minute in which something happened
}

// New returns a Recorder that is empty.
func New(c Config) *Recorder {
	return &Recorder{Config: c, began: time.Now(), last: map[string]Counters{}, depths: map[string]int64{}, queues: map[string]*queue{},
		hours: map[int64]map[string]*backends.Totals{}, after: rand.N(WriteEvery)} // sidecars don't write at once
}

// Run samples until ctx is done.
func (r *Recorder) Run(ctx context.Context) {
	r.mu.Lock()
	r.Count(func(name string, c Counters) { r.last[name] = c }) // of an earlier database of the same name
	r.mu.Unlock()
	ticker := time.NewTicker(SampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		r.sample(time.Now())
		r.write(ctx, time.Now(), false)
	}
}

// Close samples a last time and writes the rest. It returns when ctx is done, at the latest.
func (r *Recorder) Close(ctx context.Context) {
	r.sample(time.Now())
	r.write(ctx, time.Now(), true)
}

// Depths records the ready jobs that a reading of statistics found.
func (r *Recorder) Depths(stats []backends.QueueStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range stats {
		if n, ok := r.depths[stats[i].Queue]; ok || len(r.depths) < 10*MaxQueues {
			r.depths[stats[i].Queue] = max(n, stats[i].Ready)
		}
	}
}

// sample adds what happened since the last sample.
func (r *Recorder) sample(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]*backends.Totals{}
	of := func(name string) *backends.Totals {
		t := all[name]
		if t == nil {
			none := backends.NoTotals()
			t = &none
			all[name] = t
		}
		return t
	}
	r.Count(func(name string, c Counters) {
		before := r.last[name]
		if before == c {
			return
		}
		r.last[name] = c
		t := of(name)
		t.Enqueued, t.Acked, t.Failed = max(c.Enqueued-before.Enqueued, 0), max(c.Acked-before.Acked, 0), max(c.Failed-before.Failed, 0)
		for i := range c.Runs {
			t.Runs[i] = max(c.Runs[i]-before.Runs[i], 0) // a reload can give the database another name, with other counters
		}
	})
	for name, ready := range r.depths {
		of(name).Ready = ready
	}
	clear(r.depths)
	minute := now.Unix() / 60
	for name, q := range r.queues {
		if minute-q.used >= Minutes {
			delete(r.queues, name)
		}
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		r.add(name, all[name], minute)
	}
	r.drop(backends.HourOf(now))
}

// add adds totals to the minute and the hour of a queue, or of Other.
func (r *Recorder) add(name string, t *backends.Totals, minute int64) {
	q := r.queues[name]
	if q == nil {
		own := len(r.queues)
		if r.queues[Other] != nil {
			own--
		}
		if t.IsZero() {
			return // a queue without jobs needs no numbers
		}
		if name != Other && own >= MaxQueues {
			if name = Other; r.queues[Other] != nil {
				q = r.queues[Other]
			}
		}
		if q == nil {
			q = &queue{minute: minute - Minutes}
			r.queues[name] = q
		}
	}
	q.at(minute).Add(t)
	if !t.IsZero() {
		q.used = minute
	}
	hour := r.hours[minute/60]
	if hour == nil {
		hour = map[string]*backends.Totals{}
		r.hours[minute/60] = hour
	}
	if sum := hour[name]; sum != nil {
		sum.Add(t)
	} else if !t.IsZero() {
		first := *t
		hour[name] = &first
	}
}

// at returns the totals of a minute, after those of the minutes since the newest one were emptied.
func (q *queue) at(minute int64) *backends.Totals {
	for m := max(q.minute+1, minute-Minutes+1); m <= minute; m++ {
		q.ring[m%Minutes] = backends.NoTotals()
	}
	q.minute = max(q.minute, minute)
	return &q.ring[minute%Minutes]
}

// drop forgets the oldest hours if too many wait.
func (r *Recorder) drop(now int64) {
	for hour := range r.hours {
		if hour <= now-unwrittenHours {
			delete(r.hours, hour)
		}
	}
}

// take returns the rows to write: those of the hours that are over, or of all. It returns none if it is too early.
func (r *Recorder) take(now time.Time, all bool) (rows []backends.HourTotals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := backends.HourOf(now)
	if !all && (now.Sub(r.written) < WriteEvery || now.Sub(time.Unix(current*3600, 0)) < r.after) {
		return nil
	}
	for hour, queues := range r.hours {
		if hour == current && !all {
			continue
		}
		for name, t := range queues {
			if !t.IsZero() {
				rows = append(rows, backends.HourTotals{Hour: hour, Queue: name, Totals: *t})
			}
		}
		delete(r.hours, hour)
	}
	if len(rows) > 0 {
		r.written = now
	}
	slices.SortFunc(rows, func(a, b backends.HourTotals) int {
		return cmp.Or(cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Queue, b.Queue))
	})
	return rows
}

// write writes the rows that are due. If it fails, they are due again.
func (r *Recorder) write(ctx context.Context, now time.Time, all bool) {
	rows := r.take(now, all)
	if len(rows) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, fmt.Errorf("no answer within %v", writeTimeout))
	defer cancel()
	err := r.Write(ctx, now, rows)
	if err != nil && !r.failing {
		r.Log.Warn("can't write the history of the queues", "event", "history_failed", "error", err)
	} else if err == nil && r.failing {
		r.Log.Info("the history of the queues is written again", "event", "history_recovered")
	}
	if r.failing = err != nil; !r.failing {
		return
	}
	if errors.Is(err, backends.ErrUnknownOutcome) {
		return // possibly written: better not at all than twice
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range rows {
		hour := r.hours[rows[i].Hour]
		if hour == nil {
			hour = map[string]*backends.Totals{}
			r.hours[rows[i].Hour] = hour
		}
		if t := hour[rows[i].Queue]; t != nil {
			t.Add(&rows[i].Totals)
		} else {
			hour[rows[i].Queue] = &rows[i].Totals
		}
	}
	r.drop(backends.HourOf(now))
}

// Point are the totals of a time.
type Point struct {
	At time.Time // when it began
	backends.Totals
}

// LastHour returns the totals of the last minutes in which something happened, the oldest first. since is when the first
// sample began, or an hour ago.
func (r *Recorder) LastHour(name string) (since time.Time, points []Point) {
	r.mu.Lock()
	defer r.mu.Unlock()
	minute := time.Now().Unix() / 60
	since = time.Unix(max(r.began.Unix(), (minute-Minutes+1)*60), 0)
	q := r.queues[name]
	if q == nil {
		return since, nil
	}
	for m := minute - Minutes + 1; m <= q.minute; m++ {
		if m <= q.minute-Minutes {
			continue
		}
		if t := q.ring[m%Minutes]; !t.IsZero() || t.Ready == 0 {
			points = append(points, Point{time.Unix(m*60, 0), t})
		}
	}
	return since, points
}

// Queues returns the names of the queues that have numbers, sorted.
func (r *Recorder) Queues() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.queues {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Unwritten returns the totals of a queue, or of all queues if the name is empty, that the database does not have yet.
func (r *Recorder) Unwritten(name string) (rows []backends.HourTotals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for hour, queues := range r.hours {
		for q, t := range queues {
			if (name == "" || q == name) && !t.IsZero() {
				rows = append(rows, backends.HourTotals{Hour: hour, Queue: q, Totals: *t})
			}
		}
	}
	return rows
}
