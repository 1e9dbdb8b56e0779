package dispatch

import (
	"errors"
	"fmt"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

var errLate = errors.New("the heartbeat is late")

// TestQueuesOfOneCommit shows that claims that name very many queues do not share one transaction, which would take
// so long that all of them fail. Claims behind them come next.
func TestQueuesOfOneCommit(t *testing.T) {
	k := newKit()
	for i := range 10 {
		var queues []string
		for n := range 1000 {
			queues = append(queues, fmt.Sprintf("q%d-%d", i, n))
		}
		k.queued(t, false, queues...)
	}
	k.queued(t, false, "one")
	var asked []string
	for len(asked) < 11 {
		groups := k.gather()
		names := 0
		for _, g := range groups {
			names += len(g.Queues())
			asked = append(asked, g.queue.key)
		}
		if len(groups) == 0 || names > maxNames {
			t.Fatalf("one commit asks for %d queues in %d claims", names, len(groups))
		}
	}
	if asked[0][:3] != "q0-" || asked[10] != "one" {
		t.Errorf("asked for in the order %.10q", asked)
	}
}

// TestWaitEndsWhileTheHeartbeatIsLate shows that a claim whose wait ended during a commit that had too little memory for
// its job gets an answer if no later commit can include it, because the heartbeat is late.
func TestWaitEndsWhileTheHeartbeatIsLate(t *testing.T) {
	k := newKit()
	r := k.queued(t, false, "q")
	groups, _ := k.Gather(host, k.number, &Budget{Left: quota.MinClaim, Whole: 1 << 30})
	if len(groups) != 1 || groups[0].Bytes == 0 {
		t.Fatalf("the claim groups are %+v, want one with little memory", groups)
	}
	k.leave(r)
	k.Deliver(groups[0], backends.ClaimResult{More: true})
	if len(r.answer) != 0 {
		t.Fatal("answered although the database has a job")
	}
	k.FailOnce(errLate)
	if len(r.answer) != 1 {
		t.Error("the claim has no answer")
	}
}

// TestNothingIsKeptOfClaimsThatFailWhileTheHeartbeatIsLate shows that the dispatcher does not grow with the claims that
// clients send while the database is unreachable.
func TestNothingIsKeptOfClaimsThatFailWhileTheHeartbeatIsLate(t *testing.T) {
	k := newKit()
	for i := range 1000 {
		r := k.queued(t, i%2 == 0, "q")
		k.FailOnce(errLate)
		k.leave(r)
		if a := <-r.answer; a.Err == nil {
			t.Fatal("answered without the reason")
		}
	}
	if n := k.matcher.due.Len(); n != 0 || len(k.matcher.queues) != 0 {
		t.Errorf("%d wait queues are due, %d are known, want none", n, len(k.matcher.queues))
	}
}
