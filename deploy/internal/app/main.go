// Command app is an application in a container, for tests. It claims one job of a queue, prints
// that, waits for a line on stdin, and acks the job.
//
//	app QUEUE
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
)

func main() {
	if err := work(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

func work(ctx context.Context, queue string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c, err := qsidecar.Dial(ctx, qsidecar.Options{Socket: os.Getenv("QSIDECAR_SOCKET"), Worker: "app"})
	if err != nil {
		return err
	}
	jobs, err := c.Claim(ctx, qsidecar.Claim{Queues: []string{queue}, Wait: time.Minute})
	if err != nil {
		return err
	}
	for _, job := range jobs {
		var payload any
		if err := qsidecar.Decode(&job, &payload); err != nil {
			return err
		}
		fmt.Printf("working on: %v\n", payload)
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return fmt.Errorf("waiting for a line: %w", err)
		}
		if err := c.Ack(ctx, job.Lease); err != nil {
			return err
		}
		fmt.Println("acked")
	}
	return c.Bye(ctx)
}
