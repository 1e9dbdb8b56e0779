package bridge

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// obstructedDB is a database of which one part of maintenance always fails, and that has an obstacle.
type obstructedDB struct{ *memory.Backend }

func (o obstructedDB) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r, err := o.Backend.Maintain(ctx, w)
	r.Next = 0 // what failed is still due
	return r, errors.Join(err, backends.Refused(errors.New("index u")))
}

func (o obstructedDB) Obstacles() []backends.Obstacle {
	return []backends.Obstacle{{Queue: "q", Table: "t", Job: "7", Doing: backends.DoingGiveBack, Err: errors.New("index u"), Since: time.Now(), NextTry: time.Now().Add(time.Second)}}
}

// TestFailedPartOfMaintenanceStopsNoOther shows that delayed jobs and plain INSERTs are delivered although another part of
// maintenance fails, and that the status shows what the database refuses.
func TestFailedPartOfMaintenanceStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := obstructedDB{memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q","delay_ms":500}`)
		began := time.Now()
		if r := c.call(`{"op":"claim","queues":["q"],"wait_ms":20000}`); len(r.Jobs) != 1 || time.Since(began) > 3*time.Second {
			t.Errorf("a claim for a delayed job: %+v after %v", r, time.Since(began))
		}
		insert := backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}
		time.AfterFunc(time.Second, func() { _, _ = db.Backend.Commit(context.Background(), insert) }) // as another program does
		if r := c.call(`{"op":"claim","queues":["q"],"wait_ms":20000}`); len(r.Jobs) != 1 {
			t.Errorf("a claim for a job of another program: %+v", r)
		}
		d := s.Bridge.status().Databases[0]
		if d.ObstacleCount != 1 || len(d.Obstacles) != 1 || d.Obstacles[0].Job != "7" || d.Obstacles[0].Error != "index u" || d.Obstacles[0].NextTryMS != 1000 {
			t.Errorf("the status: %+v", d)
		}
	})
}
