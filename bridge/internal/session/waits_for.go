package session

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// explained is how many ids a peek can have if the reply shows what each job waits for. Each can cost a query.
	explained = 20
	// maxBehind is how many jobs are named that have the slots of a group.
	maxBehind = 10
)

// explain sets what each job waits for.
func explain(ctx context.Context, in *plan.Plan, jobs []protocol.JobView) error {
	stats := map[string]protocol.WaitsFor{}
	for i := range jobs {
		v := &jobs[i]
		db, wire := in.Inspectable(v.Queue)
		if wire != nil {
			return wire
		}
		switch v.State {
		case protocol.StateScheduled:
			v.WaitsFor = protocol.WaitsForTime
		case protocol.StateBlocked:
			v.WaitsFor = protocol.WaitsForGroup
			slots, err := db.GroupSlots(ctx, backends.Group{Queue: v.Queue, Name: v.Group}, maxBehind)
			if err != nil {
				return err
			}
			for _, j := range slots {
				v.Behind = append(v.Behind, protocol.Unchanged{ID: j.ID, State: protocol.State(j.State)})
			}
		case protocol.StateReady:
			if _, known := stats[v.Queue]; !known {
				all, err := statsOf(ctx, in, v.Queue, (*pipeline.Pipeline).Stats)
				if err != nil {
					return err
				}
				for j := range all {
					stats[v.Queue] = protocol.WaitsFor(all[j].Limited)
					if all[j].Paused {
						stats[v.Queue] = protocol.WaitsForPause
					}
				}
			}
			if v.WaitsFor = stats[v.Queue]; v.WaitsFor == "" && !db.HasWorkers(v.Queue) {
				v.WaitsFor = protocol.WaitsForWorker
			}
		}
	}
	return nil
}
