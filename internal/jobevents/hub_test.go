package jobevents

import (
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func everything(*Event) bool { return true }

// read returns the ids of the events in the buffer.
func read(s *Subscription) (jobs []string) {
	for {
		select {
		case e := <-s.Events:
			jobs = append(jobs, e.Job)
		default:
			return jobs
		}
	}
}

// TestSubscribersGetWhatTheyWant shows that each subscriber gets the events of its filter in their order, and none after
// its end.
func TestSubscribersGetWhatTheyWant(t *testing.T) {
	var h Hub
	if h.Active() || (*Hub)(nil).Active() {
		t.Error("a hub without subscribers is active")
	}
	h.Publish(&Event{Job: "0"})
	(*Hub)(nil).Publish(&Event{Job: "0"})
	all := h.Subscribe(8, everything)
	mail := h.Subscribe(8, func(e *Event) bool { return e.Queue == "mail" })
	if !h.Active() {
		t.Error("a hub with subscribers is not active")
	}
	h.Publish(&Event{Job: "1", Queue: "mail"})
	h.Publish(&Event{Job: "2", Queue: "other"})
	all.Close()
	all.Close() // does no harm
	h.Publish(&Event{Job: "3", Queue: "mail"})
	if got := fmt.Sprint(read(all), read(mail)); got != "[1 2] [1 3]" {
		t.Errorf("got %v", got)
	}
	if n := all.Missed() + mail.Missed(); n != 0 {
		t.Errorf("%d events were missed", n)
	}
	mail.Close()
	if h.Active() {
		t.Error("the hub is active after the last subscriber")
	}
}

// TestSlowSubscriberMissesEvents shows that a full buffer delays neither publishers nor other subscribers, and that its
// subscriber gets the number of missed events.
func TestSlowSubscriberMissesEvents(t *testing.T) {
	var h Hub
	slow, fast := h.Subscribe(2, everything), h.Subscribe(8, everything)
	for i := range 5 {
		h.Publish(&Event{Job: fmt.Sprint(i)})
	}
	if got := fmt.Sprint(read(slow), slow.Missed(), slow.Missed(), read(fast), fast.Missed()); got != "[0 1] 3 0 [0 1 2 3 4] 0" {
		t.Errorf("got %v", got)
	}
	h.Publish(&Event{Job: "5"})
	if got := read(slow); len(got) != 1 {
		t.Errorf("after it read, a slow subscriber got %v", got)
	}
}

// TestConcurrentSubscribers publishes while subscribers come and go. Each event is received or missed, once.
func TestConcurrentSubscribers(t *testing.T) {
	var h Hub
	const publishers, events = 4, 1000
	all := h.Subscribe(64, everything)
	var publishing, others sync.WaitGroup
	for range publishers {
		publishing.Go(func() {
			for range events {
				h.Publish(&Event{Job: "1"})
			}
		})
		others.Go(func() {
			for range events {
				h.Subscribe(1, everything).Close()
			}
		})
	}
	ended := make(chan struct{})
	go func() { publishing.Wait(); close(ended) }()
	got := 0
	for open := true; open; {
		select {
		case <-all.Events:
			got++
		case <-ended:
			open = false
		}
	}
	got += len(read(all))
	if n := got + int(all.Missed()); n != publishers*events {
		t.Errorf("%d events were received or missed, want %d", n, publishers*events)
	}
	others.Wait()
}

// TestPublishWithoutSubscribers guards the cost for a sidecar that nothing listens to.
func TestPublishWithoutSubscribers(t *testing.T) {
	var h Hub
	if n := testing.AllocsPerRun(100, func() {
		if h.Active() {
			h.Publish(&Event{})
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
