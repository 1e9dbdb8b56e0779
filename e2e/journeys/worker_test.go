package journeys

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/child"
)

// claimToHold names a job to claim.
type claimToHold struct{ Socket, Queue string }

// holder claims one job, prints it, and keeps it until the process ends.
var holder = child.NewMode("hold", func(claim claimToHold, stop <-chan struct{}) error {
	w, err := kit.DialWire(claim.Socket)
	if err != nil {
		return err
	}
	defer w.Close()
	r, err := w.Call(kit.Msg{"op": "claim", "queue": claim.Queue, "wait_ms": 60_000})
	if err != nil {
		return err
	}
	if r.Error != nil {
		return r.Error
	}
	if err := json.NewEncoder(os.Stdout).Encode(r.Jobs[0]); err != nil {
		return err
	}
	<-stop
	return nil
})

// readClaimedJob reads the output of a holder.
func readClaimedJob(p *child.Process, t testing.TB) kit.Job {
	t.Helper()
	var job kit.Job
	if err := json.NewDecoder(p.Stdout).Decode(&job); err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	return job
}

// startHolder starts a worker process that holds a job of the queue.
func startHolder(sc *kit.Sidecar, queue string) (*child.Process, kit.Job) {
	sc.T.Helper()
	p := holder.Start(sc.T, child.Options{Name: "holder"}, claimToHold{sc.Socket, queue})
	return p, readClaimedJob(p, sc.T)
}
