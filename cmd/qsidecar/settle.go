package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) ackCommand() *cobra.Command {
	var result string
	cmd := &cobra.Command{
		Use:   "ack LEASE…",
		Short: "Settle jobs as done",
		Long: `Settle jobs as done, by the leases that claim printed. --result is kept with the job
where the queue keeps done jobs (retention).

` + exitCodes,
		Example: `  qsidecar ack "$QSIDECAR_LEASE" --result "$(date)"`,
		Args:    argCount(1, protocol.MaxList, "one lease or several"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpAck}
			if cmd.Flags().Changed("result") {
				if len(args) > 1 {
					return usagef("--result goes with one lease, and there are %d", len(args))
				}
				b, err := a.text(cmd.Context(), result)
				if err != nil {
					return err
				}
				if req.Result = b; b == nil {
					req.Result = []byte{}
				}
			}
			return a.settle(cmd, req, args)
		},
	}
	cmd.Flags().StringVar(&result, "result", "", "bytes to keep with the job; - takes all of stdin")
	return a.jsonFlag(cmd)
}

func (a *app) nackCommand() *cobra.Command {
	var req protocol.Request
	delay := durationFlag{max: protocol.MaxDelayMS * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "nack LEASE…",
		Short: "Settle jobs as failed, to be tried again later",
		Long: `Settle jobs as failed. They are ready again after --delay or else the queue's back-off,
and dead when they are out of attempts, or at once with --dead.

--snooze means *not now* instead of *failed*: this delivery uses up no attempt.

` + exitCodes,
		Example: `  qsidecar nack "$QSIDECAR_LEASE" --error "mail server: 451" --delay 10m`,
		Args:    argCount(1, protocol.MaxList, "one lease or several"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !utf8.ValidString(req.Error) {
				return usagef("--error is not valid UTF-8")
			}
			if req.Dead && (req.Snooze || delay.set) {
				return usagef("--dead does not go with --delay or --snooze: a dead job is not tried again")
			}
			req.Op = protocol.OpNack
			if delay.set {
				req.DelayMS = protocol.Some(delay.d.Milliseconds())
			}
			return a.settle(cmd, &req, args)
		},
	}
	cmd.Flags().StringVar(&req.Error, "error", "", "what failed, for people; kept with the job")
	cmd.Flags().Var(&delay, "delay", "ready again after this long (default: the queue's back-off)")
	cmd.Flags().BoolVar(&req.Dead, "dead", false, "do not try it again")
	cmd.Flags().BoolVar(&req.Snooze, "snooze", false, "not now: this delivery uses up no attempt")
	return a.jsonFlag(cmd)
}

func (a *app) extendCommand() *cobra.Command {
	lease := durationFlag{min: protocol.MinLeaseMS * time.Millisecond, max: protocol.MaxLeaseMS * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "extend LEASE…",
		Short: "Renew leases before their time ends",
		Long: `Renew leases from now on: for --lease, or else for as long as they were given.

` + exitCodes,
		Example: `  qsidecar extend "$QSIDECAR_LEASE" --lease 1h`,
		Args:    argCount(1, protocol.MaxList, "one lease or several"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpExtend}
			if lease.set {
				req.LeaseMS = protocol.Some(lease.d.Milliseconds())
			}
			return a.settle(cmd, req, args)
		},
	}
	cmd.Flags().Var(&lease, "lease", "how long they are yours from now, 1s to 24h")
	return a.jsonFlag(cmd)
}

// settle sends an ack, nack or extend of any number of leases and reports the lost ones.
func (a *app) settle(cmd *cobra.Command, req *protocol.Request, leases []string) error {
	if slices.Contains(leases, "") {
		return usagef("a lease is empty: was there a job? `qsidecar claim` exits with %d when there is none", exitNoJob)
	}
	for _, lease := range leases {
		if !strings.Contains(lease, ".") {
			return usagef("%q isn't a lease, maybe the id of a job: use the lease that `qsidecar claim` printed", lease)
		}
	}
	if len(leases) == 1 {
		req.Lease = leases[0]
	} else {
		req.Leases = leases
	}
	return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		rep, err := c.Call(ctx, req)
		var twice *qsidecar.SettledOrLostError
		switch {
		case qsidecar.IsLost(err):
			return &codeError{exitLeaseLost, lostText(req.Op, leases, leases)}
		case errors.As(err, &twice):
			// Either the first try settled the job, or the job is delivered again.
			fmt.Fprintf(a.errOut, "qsidecar: %v\n", twice)
			return nil
		case err != nil:
			return err
		case rep.Settled == nil:
			return errors.New("the sidecar's answer has no leases")
		}
		if a.json {
			err = a.printReply(rep)
		} else {
			err = a.printf("%s %d", rep.Settled.Verb, rep.Settled.Count)
		}
		if lost := rep.Settled.Lost; err == nil && len(lost) > 0 {
			err = &codeError{exitLeaseLost, lostText(req.Op, lost, leases)}
		}
		return err
	})
}

func lostText(op protocol.Op, lost, of []string) error {
	short := make([]string, len(lost))
	for i, s := range lost {
		short[i] = shortLease(s)
	}
	which := "the lease " + short[0] + " was lost"
	if len(of) > 1 {
		which = fmt.Sprintf("%d of %d leases were lost (%s)", len(lost), len(of), strings.Join(short, ", "))
	}
	return fmt.Errorf("%s: %s, so nothing was changed: the job is already settled, or the lease expired and another worker can have it", op, which)
}
