package crash

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// outcome is the result of a crash run, the input of check.
type outcome struct {
	Enqueued map[string]string // job id → payload, from the replies to the producers
	Records  []Record          // in order of time
	Left     []string          // ids of the jobs still in the table, in any state
	Waits    time.Duration     // how long a settle waits for the database: sidecar_timeout
	Lossy    bool              // as in Plan; Enqueued and the history have payloads instead of ids then
}

// Verdict is the result of check.
type Verdict struct {
	Jobs, Deliveries, Redelivered, Bound, Kills int
	Acked                                       int // acks with a successful reply
	Overlaps                                    int // overlapping claims that a kill explains
	Stale                                       int // claims received after a newer delivery, because their sidecar was stopped
	InDoubt                                     int // jobs whose ack was sent and never answered with success
	Cuts                                        int // database connections that were ended
	Unknown                                     int // acks and extends with the reply unknown_outcome
	Lost                                        int // acks and extends with the reply lease_lost
	Problems                                    []string
	Failovers
}

func (v Verdict) String() string {
	return fmt.Sprintf("%d jobs, %d deliveries, %d of them again (%d kills); %d overlaps, each through a kill, %d of them handed out late; %d leases bound again; %d acks settled unanswered; %d connections cut, %d unknown outcomes, %d lease_lost, each explained; %d problems",
		v.Jobs, v.Deliveries, v.Redelivered, v.Kills, v.Overlaps, v.Stale, v.Bound, v.InDoubt, v.Cuts, v.Unknown, v.Lost, len(v.Problems))
}

// claimPeriod is the time of one worker with one job: from the claim's reply to the ack's reply or the
// worker's death.
type claimPeriod struct {
	claim    Record
	end      int64
	sent     bool // an ack was sent
	acked    bool
	answered bool // the last ack was answered with success or lease_lost
	open     bool // an ack was sent and has no reply yet
	doubt    bool // an earlier ack may have been carried out
	sentAt   int64
}

// checkState collects the problems.
type checkState struct {
	outcome
	Verdict
	kills   map[string][]Record // by victim, in ascending order
	byJob   map[string][]*claimPeriod
	current map[[2]string]*claimPeriod // by worker and job
	watch
}

// check checks the guarantees: every job was settled, a successful ack is final, no job is left,
// and a job is delivered to a second worker only because of a kill.
func check(r outcome) Verdict {
	j := checkState{
		outcome: r, kills: map[string][]Record{},
		byJob: map[string][]*claimPeriod{}, current: map[[2]string]*claimPeriod{},
		watch: watch{enqueued: map[string]Record{}, commits: map[string][]int64{}},
	}
	j.Errors, j.BySidecar = map[string]int{}, map[string]int{}
	j.Jobs = len(r.Enqueued)
	for _, rec := range r.Records {
		j.read(rec)
	}
	left := map[string]bool{}
	for _, id := range r.Left {
		left[id] = true
		j.problem("job %s is still in the table", id)
	}
	for id := range r.Enqueued {
		j.judgeJob(id, j.byJob[id], left[id])
	}
	return j.Verdict
}

func (c *checkState) problem(format string, args ...any) {
	c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
}

// read adds one record to the holdings.
func (c *checkState) read(rec Record) {
	if c.watchFailovers(rec) {
		return
	}
	if rec.What == Killed {
		if rec.Who == Connections {
			c.Cuts++
		} else {
			c.Kills++
		}
		c.kills[rec.Who] = append(c.kills[rec.Who], rec)
		return
	}
	key := [2]string{rec.Who, rec.Job}
	if rec.What == claimed {
		c.readClaim(key, rec)
		return
	}
	h := c.current[key]
	if h == nil {
		c.problem("job %s: %s has it %s without having claimed it", rec.Job, rec.Who, rec.What)
		return
	}
	switch rec.What {
	case sending:
		h.doubt = h.doubt || h.open // the previous ack got no reply
		h.sent, h.open, h.sentAt = true, true, rec.At
	case acked, lost:
		h.end, h.answered, h.acked = rec.At, true, rec.What == acked
		delete(c.current, key)
		c.judgeLost(h, rec)
	case bound:
		c.Bound++
	case failed: // the worker tries again
		c.judgeFailed(h, rec)
	default:
		c.problem("unknown record %q", rec.What)
	}
}

// judgeLost looks for the cause of a lease_lost: an earlier ack that may have succeeded, or a kill.
func (c *checkState) judgeLost(h *claimPeriod, rec Record) {
	if rec.What != lost {
		return
	}
	c.Lost++
	if !h.doubt && !c.killBetween(h.claim, rec.At) {
		c.problem("job %s: %s got lease_lost (fence %d) without a reason", rec.Job, rec.Who, rec.Fence)
	}
}

// judgeFailed looks for the cause of an unknown outcome: a break during the ack, or a database that
// took too long.
func (c *checkState) judgeFailed(h *claimPeriod, rec Record) {
	h.open = false
	if rec.Code != "unknown_outcome" {
		return
	}
	c.Unknown++
	h.doubt = true
	for _, victim := range []string{h.claim.Via, everything, Connections, Failover} {
		for _, kill := range c.kills[victim] {
			if max(kill.At, kill.Until) >= h.sentAt && kill.At <= rec.At {
				return
			}
		}
	}
	if c.Waits > 0 && time.Duration(rec.At-h.sentAt) >= c.Waits {
		return // the database took longer than a settle waits
	}
	c.problem("job %s: %s got unknown_outcome (fence %d) and nothing had broken", rec.Job, rec.Who, rec.Fence)
}

func (c *checkState) readClaim(key [2]string, rec Record) {
	payload, known := c.Enqueued[rec.Job]
	if c.Lossy {
		payload, known = c.Enqueued[rec.Payload]
	}
	switch {
	case !known:
		c.problem("job %s was delivered and never enqueued", rec.Job)
	case payload != rec.Payload:
		c.problem("job %s: the payload %q came back as %q", rec.Job, payload, rec.Payload)
	case c.current[key] != nil:
		c.problem("job %s was delivered to %s, who had it already", rec.Job, rec.Who)
	}
	h := &claimPeriod{claim: rec, end: math.MaxInt64}
	c.current[key] = h
	job := rec.Job
	if c.Lossy {
		job = rec.Payload
	}
	c.judgeUnseen(job, rec.At)
	c.byJob[job] = append(c.byJob[job], h)
	c.Deliveries++
	c.BySidecar[rec.Via]++
}

// judgeJob checks all holdings of one job.
func (c *checkState) judgeJob(id string, all []*claimPeriod, left bool) {
	settled, doubtful := 0, false
	for _, h := range all {
		if h.acked {
			settled++
		}
		doubtful = doubtful || h.sent
		if at := c.kills[h.claim.Who]; len(at) > 0 && !h.answered {
			h.end = max(h.claim.At, at[0].At) // its ack may have raced with its death
		}
	}
	switch {
	case settled > 1 && !c.Lossy: // judgePair checks each of them
		c.problem("job %s: %d acks were answered ok", id, settled)
	case settled == 1 && left:
		c.problem("job %s: its ack was answered ok and it is still in the table", id)
	case settled == 0 && !doubtful && !left && c.lost(c.enqueued[id]):
		c.LostJobs++
	case settled == 0 && !doubtful && !left:
		c.problem("job %s was deleted without an ack", id)
	case settled == 0:
		c.InDoubt++
	}
	c.Acked += settled
	c.Redelivered += max(len(all)-1, 0)
	slices.SortStableFunc(all, func(a, b *claimPeriod) int { return cmp.Compare(a.claim.Fence, b.claim.Fence) })
	for i, newer := range all {
		for _, older := range all[:i] {
			c.judgePair(id, older, newer)
		}
	}
}

// judgePair checks two deliveries of one job, in the order of their fences, which is the order of
// their claims. Their replies can arrive in another order.
func (c *checkState) judgePair(id string, older, newer *claimPeriod) {
	who := fmt.Sprintf("job %s: %s (fence %d) and then %s (fence %d)",
		id, older.claim.Who, older.claim.Fence, newer.claim.Who, newer.claim.Fence)
	switch {
	case older.claim.Fence == newer.claim.Fence:
		c.problem("%s: the same fence twice", who)
	case older.claim.Asked > newer.claim.At:
		c.problem("%s: the fence went back", who)
	}
	switch {
	case older.acked && c.Lossy && older.sentAt > newer.claim.At:
		c.problem("%s: the old lease was acked after the newer claim", who)
	case older.acked && c.lost(Record{Asked: older.sentAt, At: older.end}):
		c.LostAcks++
		return
	case older.acked:
		c.problem("%s: delivered again though its ack was answered ok", who)
	}
	overlap := older.claim.At < newer.end && newer.claim.At < older.end
	if !c.killBetween(older.claim, newer.claim.At) {
		c.problem("%s: delivered again without a kill (overlap: %v)", who, overlap)
	} else if overlap {
		c.Overlaps++
	}
	if older.claim.At > newer.claim.At {
		c.Stale++
	}
}

// killBetween reports whether the worker or the sidecar of a claim was killed between the request
// of the claim and an instant. It starts at the request, because the reply can be in the socket's
// buffer when the sidecar dies. It ends at the kill's end, because a victim still runs for a moment
// after the killer reads the clock.
func (c *checkState) killBetween(claim Record, before int64) bool {
	for _, victim := range []string{claim.Who, claim.Via, everything} {
		for _, kill := range c.kills[victim] {
			if claim.Asked <= max(kill.At, kill.Until) && kill.At <= before {
				return true
			}
		}
	}
	return c.lostClaim(claim)
}

// Summary returns at most n problems.
func (v Verdict) Summary(n int) string {
	more := ""
	if len(v.Problems) > n {
		more = fmt.Sprintf("\n… and %d more", len(v.Problems)-n)
	}
	return strings.Join(v.Problems[:min(n, len(v.Problems))], "\n") + more
}
