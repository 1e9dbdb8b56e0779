package kit

import (
	"strconv"
	"testing"
)

// WorkerJobs is how many jobs each of ClientWorkers runs at once.
const WorkerJobs = 8

// ClientWorkers are the workers with acks behind, by their names.
var ClientWorkers = map[string]func(*testing.T, *Sidecar) *ClientWorker{
	"Go":     func(t *testing.T, sc *Sidecar) *ClientWorker { return GoWorker(t, sc) },
	"Python": func(t *testing.T, sc *Sidecar) *ClientWorker { return PythonWorker(t, sc, nil) },
	"Ruby": func(t *testing.T, sc *Sidecar) *ClientWorker {
		return RubyWorker(t, sc, nil, "-c", strconv.Itoa(WorkerJobs))
	},
	"work": WorkCommand,
}

// WorkCommand runs `qsidecar work` on the queue quick, with a shell command for each job.
func WorkCommand(t *testing.T, sc *Sidecar) *ClientWorker {
	t.Helper()
	return NewClientWorker(t, sc, nil, Binary, "work", "quick", "-j", strconv.Itoa(WorkerJobs), "--payload-arg", "--",
		"sh", "-c", `echo "$1 $QSIDECAR_ATTEMPT" >>"$WORKER_LOG"`, "sh")
}
