package journeys

import (
	"encoding/json"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// readClaimedJob reads the output of a worker in kit.ModeHold.
func readClaimedJob(p *kit.WorkerProcess, t testing.TB) kit.Job {
	t.Helper()
	var job kit.Job
	if err := json.NewDecoder(p.Stdout).Decode(&job); err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	return job
}

// startHolder starts a worker process that holds a job of the queue.
func startHolder(sc *kit.Sidecar, queue string) (*kit.WorkerProcess, kit.Job) {
	sc.T.Helper()
	p := kit.StartWorker(sc.T, kit.ModeHold, kit.WorkerTask{Name: "holder", Socket: sc.Socket, Queue: queue}, nil)
	return p, readClaimedJob(p, sc.T)
}
