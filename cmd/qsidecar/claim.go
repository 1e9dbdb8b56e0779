package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/worker"
	"github.com/qsidecar/qsidecar/protocol"
)

const defaultLease = 5 * time.Minute

func (a *app) claimCommand() *cobra.Command {
	lease := durationFlag{d: defaultLease, set: true, min: protocol.MinLeaseMS * time.Millisecond, max: protocol.MaxLeaseMS * time.Millisecond}
	wait := durationFlag{max: protocol.MaxWaitMS * time.Millisecond}
	var most int
	var env, raw bool
	var order, weights string
	cmd := &cobra.Command{
		Use:   "claim QUEUE…",
		Short: "Claim a job: print it with the lease that settles it",
		Long: `Claim ready jobs from the queues, and print one JSON line for each. The queues are asked
in their order; with --order rotate they take turns. The job is yours for the time of
--lease: settle it by then with "qsidecar ack LEASE" or "qsidecar nack LEASE", or renew it
with "qsidecar extend LEASE"; otherwise another worker gets it, and that counts as a
failed attempt.

With --env it prints shell variables, quoted for eval: QSIDECAR_LEASE, QSIDECAR_PAYLOAD,
QSIDECAR_JOB (the id), QSIDECAR_QUEUE, QSIDECAR_ATTEMPT, QSIDECAR_MAX_ATTEMPTS,
QSIDECAR_FENCE, QSIDECAR_PRIORITY, QSIDECAR_KEY, QSIDECAR_HEADERS (JSON),
QSIDECAR_LAST_ERROR, QSIDECAR_PROGRESS_DONE, QSIDECAR_PROGRESS_TOTAL,
QSIDECAR_PROGRESS_DATA, QSIDECAR_PAYLOAD_B64. A payload that is a JSON string, as clients
store a text, is given as the text: hello, not "hello". Any other payload, and with --raw
each one, is given as it is. A shell variable cannot hold a NUL byte: a payload with one
is in QSIDECAR_PAYLOAD_B64 only. Run "set -a" before the eval to export them to commands.
The JSON lines have the payload as it is stored, in the form of the protocol.

` + exitCodes,
		Example: `  qsidecar claim mail sms --wait 1m
  job=$(qsidecar claim mail --env) && eval "$job" &&
    send-mail "$QSIDECAR_PAYLOAD" && qsidecar ack "$QSIDECAR_LEASE"`,
		Args: argCount(1, -1, "one queue or several"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 1 || most > protocol.MaxList {
				return usagef("--max: %d is outside 1 to %d", most, protocol.MaxList)
			}
			if env && most != 1 {
				return usagef("--env prints one job: leave --max out")
			}
			if raw && !env {
				return usagef("--raw goes with --env: the JSON lines have the payload as it is stored")
			}
			req := &protocol.Request{
				Op: protocol.OpClaim, Max: protocol.Some(int64(most)),
				WaitMS: wait.d.Milliseconds(), LeaseMS: protocol.Some(lease.d.Milliseconds()),
				Order: protocol.Order(order),
			}
			if req.Order != protocol.OrderStrict && req.Order != protocol.OrderRotate {
				return usagef("--order: %q is neither strict nor rotate", order)
			}
			var err error
			if req.Weights, err = parseWeights(weights, req.Order, args); err != nil {
				return err
			}
			if len(args) == 1 {
				req.Queue = args[0]
			} else {
				req.Queues = args
			}
			return a.claim(cmd, req, env, raw)
		},
	}
	cmd.Flags().Var(&lease, "lease", "how long the job is yours, 1s to 24h")
	cmd.Flags().Var(&wait, "wait", "wait up to this long for a job, at most 1h (default: not at all)")
	cmd.Flags().IntVar(&most, "max", 1, "claim up to so many jobs")
	cmd.Flags().StringVar(&order, "order", string(protocol.OrderStrict), "`how` to choose between queues: strict or rotate")
	cmd.Flags().StringVar(&weights, "weights", "", weightsUsage)
	cmd.Flags().BoolVar(&env, "env", false, "print shell variables for eval")
	cmd.Flags().BoolVar(&raw, "raw", false, "with --env: the payload as it is stored, also a JSON string")
	cmd.Flags().Bool("json", true, "answer in JSON lines, as it always does without --env")
	return cmd
}

func (a *app) claim(cmd *cobra.Command, req *protocol.Request, env, raw bool) error {
	return a.withClient(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		most := answerTimeout + time.Duration(req.WaitMS)*time.Millisecond
		ctx, cancel := withAnswerTimeout(ctx, most)
		defer cancel()
		rep, err := c.Call(ctx, req)
		if errors.Is(err, errInterrupted) {
			return errInterrupted // a job that arrived is given back
		}
		if err != nil {
			return err
		}
		if len(rep.Jobs) == 0 {
			return &codeError{code: exitNoJob}
		}
		if env {
			_, err = a.out.Write(shellVariables(rep.Jobs[0], raw))
		} else {
			err = a.printEach(rep, "jobs")
		}
		if err != nil {
			return errors.Join(fmt.Errorf("the job could not be printed: %w", err), a.giveBack(ctx, c, rep.Jobs))
		}
		return nil
	})
}

// giveBack returns jobs that could not be printed.
func (a *app) giveBack(ctx context.Context, c *qsidecar.Client, jobs []protocol.Job) error {
	ctx, cancel := withAnswerTimeout(context.WithoutCancel(ctx), cmp.Or(a.byeTimeout, leaveTimeout))
	defer cancel() // a signal that ended the printing does not end this
	return worker.GiveBack(ctx, c, jobs)
}

// shellVariables returns a job as assignments for a POSIX shell. It always sets all
// variables, so that none of an earlier job remains.
func shellVariables(j protocol.Job, raw bool) []byte {
	stored := j.Payload
	if !raw {
		stored = worker.PayloadText(stored)
	}
	payload, b64 := string(stored), ""
	if strings.ContainsRune(payload, 0) {
		payload, b64 = "", base64.StdEncoding.EncodeToString(stored)
	}
	var out []byte
	for _, v := range append(worker.JobVariables(j), [][2]string{
		{"LEASE", j.Lease}, {"PAYLOAD", payload}, {"PAYLOAD_B64", b64},
	}...) {
		out = append(out, "QSIDECAR_"+v[0]+"="+shellQuote(v[1])+"\n"...)
	}
	return out
}
