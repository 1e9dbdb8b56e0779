package bridge

import (
	order "cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/jobevents"
)

// received returns the events in the buffer of a subscription, and fails the test if an event is incomplete.
func receivedEvents(t *testing.T, events *jobevents.Subscription) (all []jobevents.Event) {
	t.Helper()
	synctest.Wait()
	for {
		select {
		case e := <-events.Events:
			if e.Time.IsZero() || e.Database != "main" || (e.Session == "") != (e.Worker == "") || (e.Job != "" && e.Jobs != 1) {
				t.Errorf("the event is incomplete: %+v", e)
			}
			all = append(all, e)
		default:
			return all
		}
	}
}

// sameEvents compares events without their times, sessions and databases.
func sameEvents(t *testing.T, got []jobevents.Event, want ...jobevents.Event) {
	t.Helper()
	for i := range want {
		if want[i].Jobs == 0 {
			want[i].Jobs = 1
		}
	}
	ignore := cmpopts.IgnoreFields(jobevents.Event{}, "Time", "Database", "Session", "EnqueuedAt", "ReceivedAt", "ClaimedAt", "RunAt")
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("the events differ (-want +got):\n%s", diff)
	}
}

// TestEachChangeIsOneEvent shows that each change of a job is one event, in the order of its life, with its client.
func TestEachChangeIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		events := s.Events().Subscribe(64, func(e *jobevents.Event) bool { return e.Queue != "other" })
		defer events.Close()
		c := s.dial(t)
		c.call(`{"op":"hello","worker":"w1"}`)
		id := c.enqueueTraced(2)
		c.call(`{"op":"enqueue","queue":"other"}`)
		c.call(`{"op":"nack","lease":%q,"snooze":true,"delay_ms":0}`, c.claim1("q").Lease)
		c.call(`{"op":"nack","lease":%q,"error":"421","delay_ms":0}`, c.claim1("q").Lease)
		c.call(`{"op":"nack","lease":%q,"error":"550"}`, c.claim1("q").Lease)
		c.call(`{"op":"retry","queue":"q","ids":[%q]}`, id)
		j := c.claim1("q")
		c.call(`{"op":"extend","lease":%q}`, j.Lease)
		next := c.call(`{"op":"ack","lease":%q,"enqueue":[{"queue":"q","max_attempts":2,"key":"k","delay_ms":3600000},{"queue":"q","key":"k"}]}`, j.Lease).Enqueued[0].ID
		c.call(`{"op":"delete","queue":"q","ids":[%q]}`, next)

		of := func(kind jobevents.Kind, attempt int) jobevents.Event {
			return jobevents.Event{Kind: kind, Queue: "q", Job: id, Attempt: attempt, MaxAttempts: 2, Worker: "w1", TraceParent: traceparent}
		}
		why := func(e jobevents.Event, cause, message string) jobevents.Event {
			e.Cause, e.Error = cause, message
			return e
		}
		got := receivedEvents(t, events)
		sameEvents(t, got,
			of(jobevents.Enqueued, 0),
			of(jobevents.Claimed, 1), why(of(jobevents.Snoozed, 1), "nacked", ""),
			of(jobevents.Claimed, 1), why(of(jobevents.Failed, 1), "nacked", "421"),
			of(jobevents.Claimed, 2), why(of(jobevents.Dead, 2), "nacked", "550"),
			jobevents.Event{Kind: jobevents.Retried, Queue: "q", Job: id, Cause: "operator"},
			of(jobevents.Claimed, 1),
			jobevents.Event{Kind: jobevents.Enqueued, Queue: "q", Job: next, MaxAttempts: 2, Worker: "w1"},
			of(jobevents.Acked, 1),
			jobevents.Event{Kind: jobevents.Deleted, Queue: "q", Job: next, Cause: "operator"},
		)
		for _, e := range got {
			if known := e.Kind == jobevents.Claimed || e.Kind == jobevents.Acked || e.Kind == jobevents.Failed; known && (e.EnqueuedAt.IsZero() || e.ClaimedAt.IsZero()) {
				t.Errorf("an event without times: %+v", e)
			}
		}
		if e := got[0]; e.ReceivedAt.IsZero() || e.ReceivedAt.After(e.Time) {
			t.Errorf("a stored job without the time of its request: %+v", e)
		}
		if e := got[9]; e.RunAt.Sub(e.Time) != time.Hour {
			t.Errorf("a job with a delay: %+v", e)
		}
		if n := events.Missed(); n > 0 {
			t.Errorf("%d events were missed", n)
		}
	})
}

// TestPendingJobIsAnEventOfItsOwn shows the events of pending jobs: none while they wait, and one when they become jobs of their own.
func TestPendingJobIsAnEventOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		events := s.Events().Subscribe(64, func(e *jobevents.Event) bool { return e.Kind == jobevents.Enqueued })
		defer events.Close()
		c := s.dial(t)
		c.call(`{"op":"hello","worker":"w1"}`)
		batch := c.call(`{"op":"open_batch","queue":"reports","on":"finish"}`).Batch.ID
		for name, end := range map[string]func(j job){
			"ack":          func(j job) { c.call(`{"op":"ack","lease":%q}`, j.Lease) },
			"cancel":       func(j job) { c.call(`{"op":"cancel","queue":"q","ids":[%q]}`, j.ID) },
			"cancel_batch": func(job) { c.call(`{"op":"cancel_batch","queue":"reports","batch":%q}`, batch) },
			"maintenance": func(j job) {
				c.call(`{"op":"extend","lease":%q,"lease_ms":1000}`, j.Lease)
				time.Sleep(time.Minute)
			},
		} {
			first := c.call(`{"op":"enqueue","queue":"q","key":%q,"max_attempts":1%s}`, name, map[string]string{"cancel_batch": `,"batch":"` + batch + `"`}[name]).Job.ID
			j := c.claim1("q")
			c.call(`{"op":"enqueue","queue":"q","key":%q,"on_conflict":"replace","max_attempts":2,"headers":{"traceparent":%q}}`, name, traceparent)
			before := receivedEvents(t, events)
			end(j)
			own := c.claim1("q")
			sameEvents(t, append(before, receivedEvents(t, events)...),
				jobevents.Event{Kind: jobevents.Enqueued, Queue: "q", Job: first, MaxAttempts: 1, Worker: "w1"},
				jobevents.Event{Kind: jobevents.Enqueued, Queue: "q", Job: own.ID, MaxAttempts: 2, TraceParent: traceparent})
			c.call(`{"op":"ack","lease":%q}`, own.Lease)
		}
	})
}

// TestCancelledBatchIsEventsOfItsJobs cancels jobs, then a batch of the same jobs. The events are the same.
func TestCancelledBatchIsEventsOfItsJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		events := s.Events().Subscribe(64, func(e *jobevents.Event) bool {
			return e.Kind != jobevents.Enqueued && e.Kind != jobevents.Claimed && e.Kind != jobevents.Acked
		})
		defer events.Close()
		c := s.dial(t)
		c.call(`{"op":"hello","worker":"w1"}`)
		cancelled := func(cancel func(batch string, ids []string)) []jobevents.Event {
			t.Helper()
			batch := c.call(`{"op":"open_batch","queue":"reports","on":"finish"}`).Batch.ID
			var ids []string
			for _, queue := range []string{"q", "q", "q", "other"} {
				ids = append(ids, c.call(`{"op":"enqueue","queue":%q,"batch":%q}`, queue, batch).Job.ID)
			}
			c.call(`{"op":"ack","lease":%q}`, c.claim1("q").Lease)
			c.claim1("q")
			cancel(batch, ids)
			all := receivedEvents(t, events)
			for i := range all {
				if all[i].Job = fmt.Sprint(slices.Index(ids, all[i].Job)); all[i].Time.IsZero() {
					t.Errorf("an event without a time: %+v", all[i])
				}
			}
			slices.SortFunc(all, func(a, b jobevents.Event) int {
				return order.Or(order.Compare(a.Kind, b.Kind), order.Compare(a.Job, b.Job))
			})
			return all
		}
		want := cancelled(func(_ string, ids []string) {
			c.call(`{"op":"cancel","queue":"q","ids":[%q,%q]}`, ids[1], ids[2])
			c.call(`{"op":"cancel","queue":"other","ids":[%q]}`, ids[3])
		})
		if len(want) != 4 { // three are dead, of which a worker lost one
			t.Errorf("the events of cancelled jobs are %+v", want)
		}
		sameEvents(t, cancelled(func(batch string, _ []string) {
			if n := c.call(`{"op":"cancel_batch","queue":"reports","batch":%q}`, batch).Count; n != 3 {
				t.Errorf("%d jobs were cancelled, want 3", n)
			}
		}), want...)
	})
}

// TestLostWorkersAreEvents shows the events of jobs whose workers disappear, are too slow, or return them.
func TestLostWorkersAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		events := s.Events().Subscribe(64, func(e *jobevents.Event) bool { return e.Kind != jobevents.Enqueued && e.Kind != jobevents.Claimed })
		defer events.Close()
		worker := func() *client {
			c := s.dial(t)
			c.call(`{"op":"hello","worker":"w1"}`)
			return c
		}
		of := func(kind jobevents.Kind, attempt int) jobevents.Event {
			return jobevents.Event{Kind: kind, Queue: "q", Job: "1", Attempt: attempt, MaxAttempts: 2, Worker: "w1", TraceParent: traceparent}
		}
		why := func(e jobevents.Event, cause, message string) jobevents.Event {
			e.Cause, e.Error = cause, message
			return e
		}
		c := worker()
		c.enqueueTraced(2)
		c.claim1("q")
		c.call(`{"op":"bye"}`)
		sameEvents(t, receivedEvents(t, events), of(jobevents.Released, 1))

		c = worker()
		j := c.claim1("q")
		c.call(`{"op":"reclaim","queue":"q","ids":["1"]}`)
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, j.Lease)
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, j.Lease)
		sameEvents(t, receivedEvents(t, events),
			jobevents.Event{Kind: jobevents.Released, Queue: "q", Job: "1", Cause: "operator"}, of(jobevents.Lost, 1))

		c.claim1("q")
		c.close()
		sameEvents(t, receivedEvents(t, events), why(of(jobevents.Failed, 1), "disconnected", ErrHangUp.Error()))

		c = worker()
		c.claim1("q")
		c.close()
		sameEvents(t, receivedEvents(t, events), why(of(jobevents.Dead, 2), "disconnected", ErrHangUp.Error()))

		c = worker()
		late := c.call(`{"op":"enqueue","queue":"late","timeout_ms":10,"max_attempts":1}`).Job.ID
		c.claim1("late")
		time.Sleep(time.Minute) // by the virtual clock
		sameEvents(t, receivedEvents(t, events),
			jobevents.Event{Kind: jobevents.Dead, Queue: "late", Cause: "timed_out"},
			jobevents.Event{Kind: jobevents.Lost, Queue: "late", Job: late, Attempt: 1, MaxAttempts: 1, Worker: "w1"})
	})
}
