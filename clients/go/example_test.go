package qsidecar_test

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// A program that works on two queues until it is interrupted.
func ExampleWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	worker := &qsidecar.Worker{
		Queues:      []string{"mail", "resize"},
		Concurrency: 8,
		Grace:       time.Minute,
		Handler: func(ctx context.Context, job *qsidecar.Job) error {
			switch {
			case job.Queue == "mail":
				return &qsidecar.RetryError{Err: errors.New("421 try again later"), Delay: time.Minute}
			case len(job.Payload) == 0:
				return &qsidecar.DeadError{Err: errors.New("no picture")}
			}
			fmt.Printf("%s, attempt %d\n", job.Payload, job.Attempt)
			job.Then = []protocol.NewJob{{Queue: "publish", Payload: job.Payload}}
			return ctx.Err() // ends when another worker can have the job
		},
	}
	if err := worker.Run(ctx); err != nil {
		fmt.Println(err)
	}
}
