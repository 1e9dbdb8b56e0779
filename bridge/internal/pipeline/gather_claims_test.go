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
