package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/worker"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	defaultKillAfter = 10 * time.Second

	// maxAtOnce limits -j to the jobs of one claim.
	maxAtOnce = protocol.MaxList
)

const workHelp = `Claim jobs from the queues, in their order of preference, and run CMD for each: the
payload is on its stdin, and how it ends settles the job.

  exit 0          done
  exit 75         not now: the job comes again after --snooze-delay, or else the
                  queue's back-off, which doubles with each 75 in a row; this run does
                  not count as an attempt (EX_TEMPFAIL)
  --dead-on CODE  dead: not to be tried again
  anything else   failed, with the end of its stderr as the error: again after the
                  back-off, and dead when it is out of attempts. So are the end by a
                  signal, and by --timeout

CMD has in its environment QSIDECAR_JOB (the id), QSIDECAR_QUEUE, QSIDECAR_ATTEMPT,
QSIDECAR_MAX_ATTEMPTS, QSIDECAR_FENCE, QSIDECAR_PRIORITY, QSIDECAR_KEY,
QSIDECAR_HEADERS (JSON), QSIDECAR_LAST_ERROR, QSIDECAR_SOCKET (so that its own
"qsidecar enqueue" finds the sidecar), and for each header x-kind QSIDECAR_HEADER_X_KIND
(capitals; what is no letter or digit is _). TRACEPARENT and TRACESTATE are the job's
headers traceparent and tracestate, if it has them; QSIDECAR_DATABASE is not passed on.
CMD need not read its stdin. Its stdout and stderr are those of "qsidecar work", unless
--result takes stdout.

Each CMD is a process group of its own. --timeout sends the group SIGTERM, and after
--kill-after SIGKILL; so does the loss of the job (by its queue's timeout, or an
operator's release). A CMD that ended by itself may leave processes behind: they are let
be, and their output is not waited for.

SIGTERM or SIGINT: it claims no more, lets the commands finish and settles their jobs,
and exits 0. A second one kills the commands and gives their jobs back uncharged, exit
code 130. When "qsidecar work" itself is killed, its jobs are free again at once, and
each CMD is killed with all of its group (a process beside it sees to that); files of
--payload-file stay in TMPDIR. (systemd: set KillMode=mixed, or the commands get SIGTERM too.)

You can restart the sidecar at any time: commands continue and keep their jobs.
Failures are reported on stderr, a line for each job.

With --line, CMD is started once (-j of them) and reads one job a line, as a JSON object
(the fields of a claim's answer, without the lease). It answers each job with one line on
stdout, {"op":"ack","id":"7"} or {"op":"nack","id":"7"}, where the id is the job's. Further
fields are those of the wire, such as "result" (or "result_b64") and "enqueue", or "error",
"delay_ms", "dead", "charge". CMD ends when its stdin does. If it ends in the middle of a
job, its exit code counts as above, and it is started again for the next one. If an answer
is wrong or is for another job, the job fails and CMD is started again.

`

const workExitCodes = `Exit codes:
  0    stopped by a signal, in order; --once: a job was worked, whatever came of it;
       --drain: nothing is ready any more
  1    it cannot continue; the message has the reason, and no attempt was counted
  2    wrong arguments; CMD does not exist
  3    --once: no job was ready
  5    no sidecar answers; with --once and --drain also: it is unavailable; try later
  130  ended by a second signal`

// workFlags are the options of a worker, and the flags that need parsing.
type workFlags struct {
	worker.Options
	timeout, killAfter, snoozeDelay durationFlag
	deadOn                          string
}

func (a *app) workCommand() *cobra.Command {
	var f workFlags
	f.timeout.min, f.timeout.max = time.Millisecond, protocol.MaxTimeoutMS*time.Millisecond
	f.snoozeDelay.max = protocol.MaxDelayMS * time.Millisecond
	f.killAfter = durationFlag{d: defaultKillAfter, set: true, max: time.Hour}
	cmd := &cobra.Command{
		Use:   "work QUEUE… [flags] -- CMD [ARG…]",
		Short: "Run a command for each job",

		DisableFlagsInUseLine: true,
		Long:                  workHelp + workExitCodes,
		Example: `  qsidecar work mail -j 4 --timeout 5m -- ./send.sh
  qsidecar work thumbnails --payload-arg -- convert-one --size 200
  qsidecar work reports --drain --dead-on 65 -- ./report.sh      # from cron
  qsidecar work mail --line -j 2 -- python3 send.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.read(cmd, args); err != nil {
				return err
			}
			return a.work(cmd.Context(), &f)
		},
	}
	fl := cmd.Flags()
	fl.IntVarP(&f.Jobs, "jobs", "j", 1, "work up to so `many` jobs at once")
	fl.BoolVar(&f.PayloadArg, "payload-arg", false, "give the payload as CMD's last argument, and no stdin")
	fl.BoolVar(&f.PayloadFile, "payload-file", false, "the payload in a file: CMD's last argument, QSIDECAR_PAYLOAD_FILE")
	fl.BoolVar(&f.Result, "result", false, "CMD's stdout is the job's result (see keep in the config)")
	fl.Var(&f.timeout, "timeout", "stop a CMD that takes longer; its job has failed (default: never)")
	fl.Var(&f.killAfter, "kill-after", "what a CMD has from SIGTERM to SIGKILL")
	fl.Var(&f.snoozeDelay, "snooze-delay", "a job comes again this long after exit 75 (default: back-off)")
	fl.StringVar(&f.deadOn, "dead-on", "", "exit `codes` that make a job dead, as 65,66")
	fl.BoolVar(&f.Once, "once", false, "work one job and end; exit code 3 where none is ready")
	fl.BoolVar(&f.Drain, "drain", false, "end when nothing is ready and all that was claimed is settled")
	fl.BoolVar(&f.Persistent, "line", false, "start CMD once: one job a line in, one answer a line out (JSON)")
	return cmd
}

// read parses and checks the arguments. It also checks that the command exists.
func (f *workFlags) read(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	if dash < 1 || dash == len(args) {
		return usagef("work takes queues, then -- and the command with its arguments, as in: qsidecar work mail -- ./send.sh\n" +
			"Run `qsidecar work --help` to see more")
	}
	f.Queues, f.Command = args[:dash], args[dash:]
	var err error
	if f.DeadOn, err = parseExitCodes(f.deadOn); err != nil {
		return err
	}
	switch {
	case f.Jobs < 1 || f.Jobs > maxAtOnce:
		return usagef("-j: %d is outside 1 to %d", f.Jobs, maxAtOnce)
	case f.Once && f.Drain:
		return usagef("--once works one job and --drain all that are ready: leave one of them out")
	case f.Once && f.Jobs > 1:
		return usagef("--once works one job: leave -j out")
	case f.PayloadArg && f.PayloadFile:
		return usagef("--payload-arg and --payload-file are two places for one payload: leave one of them out")
	case f.Persistent && (f.PayloadArg || f.PayloadFile || f.Result):
		return usagef("--line has payload and result in its lines: leave --payload-arg, --payload-file and --result out")
	}
	f.Timeout, f.KillAfter = f.timeout.d, f.killAfter.d
	if f.snoozeDelay.set {
		f.SnoozeDelay = &f.snoozeDelay.d
	}
	if f.Program, err = exec.LookPath(f.Command[0]); err != nil {
		return usagef("%s cannot be run: %w; no job was claimed", f.Command[0], textfmt.RootCause(err))
	}
	return nil
}

// parseExitCodes reads a list such as 65,66.
func parseExitCodes(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var codes []int
	for word := range strings.SplitSeq(text, ",") {
		code, err := strconv.Atoi(strings.TrimSpace(word))
		switch {
		case err != nil || code < 1 || code > 255:
			return nil, usagef("--dead-on: %q is no exit code from 1 to 255; write several as 65,66", word)
		case code == worker.ExitSnooze:
			return nil, usagef("--dead-on: %d means *not now*, and cannot mean dead as well", worker.ExitSnooze)
		}
		codes = append(codes, code)
	}
	return codes, nil
}

// settlePatience is how long a settle is repeated while the sidecar is unavailable. It
// exceeds any outage, because the alternative is to run the job again.
const settlePatience = 7 * 24 * time.Hour

// work connects a worker, runs it, and closes its connection in order.
func (a *app) work(parent context.Context, f *workFlags) error {
	// The commands must start with the default action of SIGPIPE. A child inherits an
	// ignored signal, but not a handler.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Ignore(syscall.SIGPIPE)
	defer signal.Stop(pipes)

	stop, abort, end := a.interruptible(parent)
	defer end()
	o := f.Options
	o.Stdout, o.Stderr, o.WithTimeout = a.stdout, a.errOut, withAnswerTimeout
	o.Unavailable = func(err error) bool { return exitCode(err) == exitUnavailable }
	w := worker.New(o)
	c, socket, err := a.dialWith(stop, qsidecar.Options{
		Worker: workerName("work"), Retry: settlePatience, OnLost: w.LostLeases,
	})
	if err != nil {
		return err
	}
	err = w.Run(stop, abort, c, socket)
	bye, cancel := withAnswerTimeout(context.WithoutCancel(parent), leaveTimeout)
	defer cancel()
	if e := c.Bye(bye); e != nil {
		err = errors.Join(err, fmt.Errorf("leaving the sidecar: %w", e))
	}
	if errors.Is(err, worker.ErrNoJob) {
		err = &codeError{code: exitNoJob}
	}
	return err
}

func (a *app) guardCommand() *cobra.Command {
	return &cobra.Command{
		Use: worker.GuardCommand, Hidden: true, Args: argCount(0, 0, ""),
		Short: "End the commands of a `qsidecar work` that was killed (it starts this itself)",
		Long: `Kill the process groups that stdin names as lines of NUMBER, and has not taken back as
-NUMBER, when it ends. "qsidecar work" starts this beside itself.

Exit codes: 0 done, 1 a line or a kill failed, 2 wrong arguments.`,
		RunE: func(*cobra.Command, []string) error { return worker.RunGuard(a.in) },
	}
}
