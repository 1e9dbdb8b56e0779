package crash

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Failovers are the figures of a run with failovers.
type Failovers struct {
	LostJobs  int            // enqueues answered ok that a failover lost
	LostAcks  int            // acks answered ok that a failover lost, so that the job was delivered again
	Errors    map[string]int // that workers and producers got, by code
	BySidecar map[string]int // deliveries
	FirstAcks []FirstAck
	// Unseen counts jobs that claims did not return for more than 2 s although it was their turn and the claims returned nothing
	// else. LongestUnseen is the longest such time. It is from the first to the last such claim that was sent after three moments:
	// the job was stored, the last event ended (at the first ack after a failover), and no job stored before was left. A claim
	// also returns nothing while its sidecar has no working connection, as after a failover that other sidecars noticed sooner. So
	// a claim counts only if the same sidecar answered a commit during it.
	Unseen        int
	LongestUnseen time.Duration
}

// delivery has the times at which a job was stored and first delivered.
type delivery struct{ stored, at int64 }

// FirstAck is the time from the moment a new primary accepts writes until an ack is answered ok.
type FirstAck struct {
	Event string
	After time.Duration
}

func (f Failovers) String() string {
	return fmt.Sprintf("first ack after each failover: %v; %d enqueues lost, %d acks lost; errors: %v; deliveries by sidecar: %v; %d jobs unseen for 2 s, the longest for %v",
		f.FirstAcks, f.LostJobs, f.LostAcks, f.Errors, f.BySidecar, f.Unseen, f.LongestUnseen.Round(time.Millisecond))
}

func (f FirstAck) String() string {
	return fmt.Sprint(f.Event, " ", f.After.Round(time.Millisecond))
}

// watch is what the checker keeps for the figures.
type watch struct {
	enqueued map[string]Record // by job
	failover *Record           // the one without an ack so far
	calm     int64             // the end of the last event
	empty    []Record          // claims that returned nothing, in the order of their replies

	deliveries []delivery // the first of each job, in the order of their replies

	// commits has the times at which each sidecar answered enqueues, acks and claims with a job, in ascending order.
	commits map[string][]int64
}

// watchFailovers reads a record for the figures. It returns true if the record is for nothing else.
func (c *checkState) watchFailovers(rec Record) bool {
	switch rec.What {
	case enqueued, acked, claimed:
		c.commits[rec.Via] = append(c.commits[rec.Via], rec.At)
	}
	switch rec.What {
	case enqueued:
		id := rec.Job
		if c.Lossy {
			id = rec.Payload
		}
		c.enqueued[id] = rec
	case refused:
		c.Errors[rec.Code]++
	case nothing:
		c.empty = append(c.empty, rec)
	case Serves:
		c.failover = &rec
	default:
		switch rec.What {
		case failed:
			c.Errors[rec.Code]++
		case lost:
			c.Errors["lease_lost"]++
		case Killed:
			c.calm = max(c.calm, rec.At, rec.Until)
		case acked:
			if c.failover != nil {
				c.FirstAcks = append(c.FirstAcks, FirstAck{c.failover.Who, time.Duration(rec.At - c.failover.At)})
				c.failover, c.calm = nil, max(c.calm, rec.At)
			}
		}
		return false
	}
	return true
}

// judgeUnseen measures how long a job was unseen before its first delivery, which is at now.
func (c *checkState) judgeUnseen(job string, now int64) {
	stored, ok := c.enqueued[job]
	if !ok || len(c.byJob[job]) > 0 {
		return
	}
	from := max(stored.At, c.calm, c.turn(stored.At))
	c.deliveries = append(c.deliveries, delivery{stored.At, now})
	if c.failover != nil {
		return
	}
	first, last := int64(math.MaxInt64), int64(0)
	for _, empty := range slices.Backward(c.empty) {
		if empty.At < from {
			break
		}
		if empty.Asked >= from && c.works(empty) {
			first, last = min(first, empty.Asked), max(last, empty.Asked)
		}
	}
	unseen := time.Duration(last - first)
	c.LongestUnseen = max(c.LongestUnseen, unseen)
	if unseen > 2*time.Second {
		c.Unseen++
	}
}

// turn returns when the last of the jobs that were stored before that time was delivered, of those that were.
func (c *checkState) turn(stored int64) int64 {
	for _, d := range slices.Backward(c.deliveries) {
		if d.stored < stored {
			return d.at
		}
		if d.at < stored {
			break
		}
	}
	return 0
}

// works reports whether a claim's sidecar answered a commit while the claim waited.
func (c *checkState) works(claim Record) bool {
	commits := c.commits[claim.Via]
	i, _ := slices.BinarySearch(commits, claim.Asked)
	return i < len(commits) && commits[i] <= claim.At
}

// lost reports whether a failover explains that a commit was lost: it happened while the failover
// could lose commits. A record without times has none.
func (c *checkState) lost(commit Record) bool {
	for _, f := range c.kills[Failover] {
		if commit.At >= f.At && commit.Asked <= f.Until {
			return true
		}
	}
	return false
}

// lostClaim reports whether a failover explains that a claim was lost. A sidecar can hand out a job that it prefetched before the
// failover, until a heartbeat shows that the claim is gone. Without heartbeats it hands out jobs for less than Waits.
func (c *checkState) lostClaim(claim Record) bool {
	claim.Asked -= int64(c.Waits)
	return c.lost(claim)
}
