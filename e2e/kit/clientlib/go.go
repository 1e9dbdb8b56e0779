package clientlib

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	client "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/child"
)

// goWorker is a worker with the Go client library.
var goWorker = child.NewMode("client-go", runGoWorker)

func runGoWorker(struct{}, <-chan struct{}) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log, err := os.OpenFile(os.Getenv("WORKER_LOG"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	queues := strings.Split(cmp.Or(os.Getenv("WORKER_QUEUES"), "quick,long"), ",")
	w := &client.Worker{Queues: queues, Concurrency: 8}
	w.Handler = func(ctx context.Context, job *client.Job) error {
		if _, err := fmt.Fprintf(log, "%s %d\n", job.Payload, job.Attempt); err != nil || job.Queue == "quick" {
			return err
		}
		if job.Queue == "folder" {
			dir, err := os.Getwd()
			if err != nil {
				return err
			}
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			_, err = os.ReadFile("late")
			return err
		}
		gate, err := os.Open(os.Getenv("WORKER_GATE"))
		if err != nil {
			return err
		}
		return gate.Close()
	}
	return w.Run(ctx)
}

// GoWorker runs runGoWorker as a process.
func GoWorker(t *testing.T, sc *kit.Sidecar, env ...string) *Worker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mode, err := goWorker.Env(struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	return NewWorker(t, sc, append(env, mode...), self)
}
