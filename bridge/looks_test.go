package bridge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestInspectionsEndWithTheClient shows that a client that requested many reports and died keeps no job because of them.
// The remaining queries are not sent to the database.
func TestInspectionsEndWithTheClient(t *testing.T) {
	for _, op := range []string{`"op":"stats"`, `"op":"peek","queue":"q"`} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &hungLooks{mute: &mute{counting: &counting{faulty: &faulty{Backend: memory.New()}}, hangs: make(chan struct{})}}
				s := start(t, options(db))
				c, worker := s.dial(t), s.dial(t)
				c.call(`{"op":"enqueue","queue":"q"}`)
				c.claim1("q")
				for i := range 100 {
					c.send(`{%s,"id":%d}`, op, i)
				}
				synctest.Wait()
				c.close()
				if r := worker.call(`{"op":"claim","queue":"q","wait_ms":10000}`); len(r.Jobs) != 1 {
					t.Errorf("the job of a dead client isn't free: %+v", r)
				}
				if n := db.stats.Load(); n != 1 {
					t.Errorf("the database was asked %d times", n)
				}
			})
		})
	}
}

// TestInspectionsEndWithTheSidecar shows that reports that can't be sent any more don't delay the end of the sidecar.
func TestInspectionsEndWithTheSidecar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &mute{counting: &counting{faulty: &faulty{Backend: memory.New()}}, hangs: make(chan struct{})}
		o := options(db)
		o.DrainTimeout = time.Second
		s := start(t, o)
		c := s.dial(t)
		for i := range 100 {
			c.send(`{"op":"stats","id":%d}`, i)
		}
		synctest.Wait()
		began := time.Now()
		s.stop()
		if err := s.wait(t); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > o.DrainTimeout+2*lastReplyTimeout {
			t.Errorf("the end took %v", took)
		}
	})
}

// hungLooks also hangs in queries for jobs.
type hungLooks struct{ *mute }

func (h *hungLooks) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	_, err := h.Stats(ctx, p.Queue)
	return nil, err
}

// TestSchedulesEndWithTheSidecar shows that a change of a schedule that the database doesn't answer delays neither the end of the
// sidecar nor that of a client's jobs.
func TestSchedulesEndWithTheSidecar(t *testing.T) {
	for _, request := range []string{
		`{"op":"schedule","queue":"q","schedule":{"name":"s","every_ms":1000},"id":1}`,
		`{"op":"change_schedule","queue":"q","schedule":{"name":"s"},"do":"run","id":1}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			o := options(&hungSchedules{memory.New()})
			o.DrainTimeout = time.Second
			s := start(t, o)
			c, worker, other := s.dial(t), s.dial(t), s.dial(t)
			c.call(`{"op":"enqueue","queue":"q"}`)
			c.claim1("q")
			c.send(request)
			other.send(request)
			synctest.Wait()
			began := time.Now()
			c.close()
			r := worker.call(`{"op":"claim","queue":"q","wait_ms":60000}`)
			if len(r.Jobs) != 1 || time.Since(began) > time.Second {
				t.Fatalf("%s: the job of a dead client isn't free after %v: %+v", request, time.Since(began), r)
			}
			worker.call(`{"op":"ack","lease":%q}`, r.Jobs[0].Lease)
			began = time.Now()
			s.stop()
			if err := s.wait(t); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > o.DrainTimeout+2*lastReplyTimeout {
				t.Errorf("%s: the end took %v", request, took)
			}
		})
	}
}

// hungSchedules hangs in changes of schedules.
type hungSchedules struct{ *memory.Backend }

func (h *hungSchedules) DeclareSchedule(ctx context.Context, _ backends.Schedule, _ bool) (d backends.Declared, err error) {
	<-ctx.Done()
	return d, backends.Unavailable(context.Cause(ctx))
}

func (h *hungSchedules) ChangeSchedule(ctx context.Context, _ backends.ScheduleCommand) (string, error) {
	<-ctx.Done()
	return "", backends.Unavailable(context.Cause(ctx))
}
