package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
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

const workHelp = `Claim jobs from the queues, and run CMD for each. The payload is on its stdin, and its
exit code settles the job. A payload that is a JSON string, as clients store a text, is
given as the text: hello, not "hello". Any other payload, and with --raw each one, is
given as it is.

Several queues take turns. With --order strict, jobs of a queue come only if the queues
before it are empty: a full queue starves those behind it. With --weights mail=3,bulk=1,
mail has three turns for each one of bulk.

  exit 0          done
  exit 75         not now (EX_TEMPFAIL): the job is ready again after --snooze-delay, or
                  else after the queue's back-off, which doubles with each 75 in a row.
                  This run does not count as an attempt
  --dead-on CODE  dead: not tried again
  anything else   failed, with the end of its stderr as the error: ready again after the
                  back-off, and dead after its last attempt. A signal and --timeout
                  count as failures too

The environment of CMD has QSIDECAR_JOB (the id), QSIDECAR_QUEUE, QSIDECAR_ATTEMPT,
QSIDECAR_MAX_ATTEMPTS, QSIDECAR_FENCE, QSIDECAR_PRIORITY, QSIDECAR_KEY,
QSIDECAR_HEADERS (JSON), QSIDECAR_LAST_ERROR and QSIDECAR_SOCKET, so that CMD can run
"qsidecar enqueue", and QSIDECAR_LEASE, so that it can run "qsidecar progress". What an
earlier attempt reported last is in QSIDECAR_PROGRESS_DONE, QSIDECAR_PROGRESS_TOTAL and
QSIDECAR_PROGRESS_DATA, which are empty otherwise. A header x-kind is in
QSIDECAR_HEADER_X_KIND: capitals, and _ for any character other than letters and digits.
TRACEPARENT and TRACESTATE are the job's headers traceparent and tracestate, if it has
them. QSIDECAR_DATABASE is not passed on. CMD need not read its stdin. Its stdout and
stderr are those of "qsidecar work", unless --result uses stdout.

Each CMD is a process group of its own. At --timeout, or if the job's lease is lost (by
the timeout of its queue, or by an operator's reclaim), the group gets SIGTERM, and
SIGKILL after --kill-after. If CMD exits by itself, the processes that it leaves behind
continue, and their output is ignored. "qsidecar work" reaps them if it is the first
process of a container.

SIGTERM or SIGINT: it claims no more jobs, lets the commands finish, settles their jobs,
and exits with 0. A second signal kills the commands and gives their jobs back without
counting the attempt, exit code 130. If "qsidecar work" itself is killed, its jobs are
ready again at once, and a second process kills each CMD with its group. Files of
--payload-file stay in TMPDIR. (systemd: set KillMode=mixed, or the commands get SIGTERM
too.)

A next job can begin while the acks of up to 32 jobs (or twice -j, if that is more) are
under way, for up to a second. If "qsidecar work" is killed, these jobs can be delivered
again. With --ack sync, the next job begins after the ack.

If the working folder is deleted, "qsidecar work" gives its next job back, without counting
the attempt, and ends.

You can restart the sidecar at any time: commands continue and keep their jobs. Failures
are reported on stderr, a line for each job.

With --persistent, each of the -j commands is started once, and reads one job per line as a
JSON object (the fields of a claim's answer, without the lease). It answers each job with
one line on stdout, {"op":"ack","id":"7"} or {"op":"nack","id":"7"}, with the id of the
job. Further fields are those of the protocol, such as "result" (or "result_b64") and
"enqueue", or "error", "delay_ms", "dead", "snooze". At the end of its stdin CMD must
exit. If CMD exits during a job, its exit code counts as above, and it is restarted for
the next job. If an answer is invalid or for another job, the job fails and CMD is
restarted.

`

const workExitCodes = `Exit codes:
  0    stopped by a signal, in order; --once: a job was run, with any outcome;
       --drain: no job is ready
  1    it cannot continue; the message has the reason, and no attempt was counted
  2    wrong arguments; CMD does not exist
  3    --once: no job was ready
  5    no sidecar answers; with --once and --drain also: it is unavailable; try later.
       At the end: acks are unanswered for a minute, so their jobs are delivered again
  130  ended by a second signal`

// workFlags are the options of a worker, and the flags that need parsing.
type workFlags struct {
	worker.Options
	timeout, killAfter, snoozeDelay durationFlag
	deadOn, ack, order, weights     string
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
  qsidecar work mail --persistent -j 2 -- python3 send.py`,
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
	fl.BoolVar(&f.Raw, "raw", false, "give the payload as it is stored, also a JSON string")
	fl.BoolVar(&f.Result, "result", false, "CMD's stdout is the job's result (see retention in the config)")
	fl.Var(&f.timeout, "timeout", "stop a CMD that takes longer; its job has failed (default: never)")
	fl.Var(&f.killAfter, "kill-after", "what a CMD has from SIGTERM to SIGKILL")
	fl.Var(&f.snoozeDelay, "snooze-delay", "a job comes again this long after exit 75 (default: back-off)")
	fl.StringVar(&f.deadOn, "dead-on", "", "exit `codes` that make a job dead, as 65,66")
	fl.BoolVar(&f.Once, "once", false, "work one job and end; exit code 3 where none is ready")
	fl.BoolVar(&f.Drain, "drain", false, "end when nothing is ready and all that was claimed is settled")
	fl.StringVar(&f.ack, "ack", "behind", "`sync`: begin the next job after the ack")
	fl.StringVar(&f.order, "order", string(protocol.OrderRotate), "`how` to choose between queues: rotate or strict")
	fl.StringVar(&f.weights, "weights", "", weightsUsage)
	fl.BoolVar(&f.Persistent, "persistent", false, "start CMD once: one job a line in, one answer a line out (JSON)")
	return cmd
}

// read parses and checks the arguments. It also checks that the command exists.
func (w *workFlags) read(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	if dash < 1 || dash == len(args) {
		return usagef("work takes queues, then -- and the command with its arguments, as in: qsidecar work mail -- ./send.sh\n" +
			"Run `qsidecar work --help` to see more")
	}
	w.Queues, w.Command = args[:dash], args[dash:]
	var err error
	if w.DeadOn, err = parseExitCodes(w.deadOn); err != nil {
		return err
	}
	switch w.ack {
	case "behind":
	case "sync":
		w.SyncAck = true
	default:
		return usagef("--ack: %q is neither behind nor sync", w.ack)
	}
	switch w.Order = protocol.Order(w.order); w.Order {
	case protocol.OrderRotate, protocol.OrderStrict:
	default:
		return usagef("--order: %q is neither rotate nor strict", w.order)
	}
	if w.Weights, err = parseWeights(w.weights, w.Order, w.Queues); err != nil {
		return err
	}
	if len(w.Queues) == 1 {
		w.Order, w.Weights = "", nil
	}
	switch {
	case w.Jobs < 1 || w.Jobs > maxAtOnce:
		return usagef("-j: %d is outside 1 to %d", w.Jobs, maxAtOnce)
	case w.Once && w.Drain:
		return usagef("--once works one job and --drain all that are ready: leave one of them out")
	case w.Once && w.Jobs > 1:
		return usagef("--once works one job: leave -j out")
	case w.PayloadArg && w.PayloadFile:
		return usagef("--payload-arg and --payload-file exclude each other: leave one of them out")
	case w.Persistent && w.Raw:
		return usagef("--persistent gives each payload as it is stored: leave --raw out")
	case w.Persistent && (w.PayloadArg || w.PayloadFile || w.Result):
		return usagef("--persistent has payload and result in its lines: leave --payload-arg, --payload-file and --result out")
	}
	w.Timeout, w.KillAfter = w.timeout.d, w.killAfter.d
	if w.snoozeDelay.set {
		w.SnoozeDelay = &w.snoozeDelay.d
	}
	if w.Program, err = exec.LookPath(w.Command[0]); err != nil {
		return usagef("%s cannot be run: %w; no job was claimed", w.Command[0], textfmt.RootCause(err))
	}
	return nil
}

const weightsUsage = "`turns` of queues beside 1 of the others, as mail=3,bulk=1"

// parseWeights reads a list such as mail=3,bulk=1.
func parseWeights(text string, order protocol.Order, queues []string) (map[string]int64, error) {
	if text == "" {
		return nil, nil
	}
	if order != protocol.OrderRotate {
		return nil, usagef("--weights goes with --order rotate: with strict, the first queue comes first")
	}
	weights := map[string]int64{}
	for item := range strings.SplitSeq(text, ",") {
		queue, number, _ := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.ParseInt(number, 10, 64)
		switch _, twice := weights[queue]; {
		case err != nil || n < 1 || n > protocol.MaxWeight:
			return nil, usagef("--weights: %q isn't a queue with a number from 1 to %d; write several as mail=3,bulk=1", item, protocol.MaxWeight)
		case !slices.Contains(queues, queue):
			return nil, usagef("--weights: %q isn't one of the queues %s", queue, strings.Join(queues, ", "))
		case twice:
			return nil, usagef("--weights: %q is named twice", queue)
		}
		weights[queue] = n
	}
	return weights, nil
}

// parseExitCodes reads a list such as 65,66.
func parseExitCodes(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var codes []int
	for item := range strings.SplitSeq(text, ",") {
		code, err := strconv.Atoi(strings.TrimSpace(item))
		switch {
		case err != nil || code < 1 || code > 255:
			return nil, usagef("--dead-on: %q is not an exit code from 1 to 255; write several as 65,66", item)
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
	o.TryAgain = func(err error) bool {
		wire, ok := errors.AsType[*protocol.Error](err)
		return exitCode(err) == exitUnavailable || ok && wire.Code == protocol.CodeInternal
	}
	w := worker.New(o)
	c, socket, err := a.dialWith(stop, qsidecar.Options{
		Worker: workerName("work"), Retry: settlePatience, OnLost: w.LostLeases,
	})
	if err != nil {
		return err
	}
	a.noteQueues(stop, c, f.Queues)
	err = w.Run(stop, abort, c, socket)
	bye, cancel := withAnswerTimeout(context.WithoutCancel(parent), leaveTimeout)
	defer cancel()
	_, unanswered := errors.AsType[*qsidecar.UnansweredError](err)
	if e := c.Bye(bye); e != nil && !unanswered {
		err = errors.Join(err, fmt.Errorf("leaving the sidecar: %w", e))
	}
	if errors.Is(err, worker.ErrNoJob) {
		err = &codeError{code: exitNoJob}
	}
	return err
}

// noteQueues prints why a worker possibly gets no jobs: a queue is paused, or has no jobs and a name like that of another one.
func (a *app) noteQueues(ctx context.Context, c *qsidecar.Client, queues []string) {
	ctx, cancel := withAnswerTimeout(ctx, 2*time.Second) // the jobs must not wait long for it
	defer cancel()
	for _, queue := range queues {
		rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStats, Queue: queue})
		if err != nil {
			return // the user may have no right to it, or the first claim reports the error
		}
		if rep.Unknown && a.likeQueue(ctx, c, queue) != "" {
			a.noteUnknown(ctx, c, queue)
		}
		if len(rep.Queues) == 1 && rep.Queues[0].Paused {
			fmt.Fprintf(a.errOut, "qsidecar: the queue %s is paused: `qsidecar resume %s` ends that\n", queue, queue)
		}
	}
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
