package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) progressCommand() *cobra.Command {
	var lease, data string
	cmd := &cobra.Command{
		Use:   "progress [DONE [TOTAL]]",
		Short: "Report how far a claimed job is",
		Long: `Report how far a claimed job is, in any unit: integers from 0 on, and with --data a text of
at most 4 KiB. A report replaces the last one as a whole. The sidecar stores the last report
of a job about once a second, and "qsidecar show" shows it. The next attempt of the job gets
it as QSIDECAR_PROGRESS_DONE, QSIDECAR_PROGRESS_TOTAL and QSIDECAR_PROGRESS_DATA.

The job is that of --lease, or else of QSIDECAR_LEASE, which commands of "qsidecar work"
have.

` + exitCodes,
		Example: `  qsidecar progress 60 100 --data "page 60"`,
		Args:    argCount(0, 2, "how much is done, and of how much"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p protocol.Progress
			for i, to := range []*protocol.Opt[int64]{&p.Done, &p.Total}[:len(args)] {
				n, err := strconv.ParseInt(args[i], 10, 64)
				if err != nil || n < 0 {
					return usagef("%q is not an integer from 0 on%s", args[i], progressHint(args[i]))
				}
				*to = protocol.Some(n)
			}
			if cmd.Flags().Changed("data") {
				p.Data = []byte(data)
			} else if len(args) == 0 {
				return usagef("name how much is done, or --data")
			}
			if !cmd.Flags().Changed("lease") {
				lease, _ = a.env("QSIDECAR_LEASE")
			}
			if lease == "" {
				return usagef("which job? QSIDECAR_LEASE is empty, and there is no --lease")
			}
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error { return c.ReportProgress(ctx, lease, p) })
		},
	}
	cmd.Flags().StringVar(&lease, "lease", "", "the `LEASE` of the job (default: that of QSIDECAR_LEASE)")
	cmd.Flags().StringVar(&data, "data", "", "a `TEXT` with more about it")
	return a.jsonFlag(cmd)
}

// progressHint is what to do about an argument that isn't a number.
func progressHint(arg string) string {
	switch {
	case strings.HasSuffix(arg, "%"):
		return fmt.Sprintf(": write it as DONE and TOTAL, such as %s 100", strings.TrimSuffix(arg, "%"))
	case strings.Count(arg, ".") > 1:
		return ": a lease is named with --lease"
	}
	return ""
}
