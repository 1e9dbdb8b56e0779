package pipeline

import (
	"fmt"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// TestQueuesOfOneCommit shows that claims that name very many queues do not share one transaction, which would take
// so long that all of them fail. Claims behind them come next.
func TestQueuesOfOneCommit(t *testing.T) {
	b := newDispatcher(func() {})
	add := func(queues ...string) {
		w := &ClaimRequest{Session: &quota.Session{}, Slots: 1, Template: backends.Slot{Lease: 1}}
		if _, answered := b.add(w, queues); answered {
			t.Fatal("answered at once")
		}
	}
	for i := range 10 {
		var queues []string
		for n := range 1000 {
			queues = append(queues, fmt.Sprintf("q%d-%d", i, n))
		}
		add(queues...)
	}
	add("one")
	var asked []string
	for number := uint64(0); len(asked) < 11; {
		groups := b.gather(1, func() uint64 { number++; return number }, &claimBudget{left: 1 << 30, whole: 1})
		names := 0
		for _, a := range groups {
			names += len(a.queue.queues)
			asked = append(asked, a.queue.key)
		}
		if len(groups) == 0 || names > maxNames {
			t.Fatalf("one commit groups for %d queues in %d claims", names, len(groups))
		}
	}
	if asked[0][:3] != "q0-" || asked[10] != "one" {
		t.Errorf("asked for in the order %.10q", asked)
	}
}

// TestWaitEndsWhileTheHeartbeatIsLate shows that a claim whose wait ended during a commit that had too little memory for
// its job gets an answer if no later commit can include it, because the heartbeat is late.
func TestWaitEndsWhileTheHeartbeatIsLate(t *testing.T) {
	b := newDispatcher(func() {})
	w := &ClaimRequest{Session: &newWorker(nil).Session, Slots: 1}
	b.add(w, []string{"q"})
	groups := b.gather(1, func() uint64 { return 1 }, &claimBudget{left: quota.MinClaim, whole: 1 << 30})
	if len(groups) != 1 || groups[0].bytes == 0 {
		t.Fatalf("the claim groups are %+v, want one with little memory", groups)
	}
	b.leave(w)
	b.deliver(groups[0], backends.ClaimResult{More: true})
	if len(w.answer) != 0 {
		t.Fatal("answered although the database has a job")
	}
	b.failOnce(errHeartbeatLate)
	if len(w.answer) != 1 {
		t.Error("the claim has no answer")
	}
}
