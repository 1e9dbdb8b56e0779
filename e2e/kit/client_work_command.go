package kit

import "testing"

// WorkCommand runs `qsidecar work` on the queue quick, with a shell command for each job.
func WorkCommand(t *testing.T, sc *Sidecar) *ClientWorker {
	t.Helper()
	return NewClientWorker(t, sc, nil, Binary, "work", "quick", "-j", "8", "--payload-arg", "--",
		"sh", "-c", `echo "$1 $QSIDECAR_ATTEMPT" >>"$WORKER_LOG"`, "sh")
}
