package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// jobFlags are the flags that describe the jobs of one enqueue.
type jobFlags struct {
	priority    int16
	delay       durationFlag
	runAt       instantFlag
	key         string
	group       string
	batch       string
	headers     []string
	maxAttempts int
	timeout     durationFlag
	startBefore instantFlag
	startWithin durationFlag
	onExpiry    string
	retain      durationFlag
	keyUntil    string
	onConflict  string
	debounceMax durationFlag
}

func (j *jobFlags) add(cmd *cobra.Command) {
	j.delay.max = protocol.MaxDelayMS * time.Millisecond
	j.startWithin.min, j.startWithin.max = time.Millisecond, protocol.MaxDelayMS*time.Millisecond
	j.retain.min, j.retain.max = time.Millisecond, protocol.MaxDelayMS*time.Millisecond
	cmd.Flags().Var(&j.delay, "delay", "ready only after this long (10s, 5m, 2h, 7d)")
	cmd.Flags().Var(&j.runAt, "run-at", "ready at this time (2027-01-31 18:30 or 2027-01-31T18:30Z)")
	cmd.Flags().StringVar(&j.key, "key", "", "store nothing if a job has this key, or had it within key_ttl (10m)")
	cmd.Flags().StringVar(&j.batch, "batch", "", "the `id` of an open batch of which it is a job")
	cmd.Flags().Var(&j.startBefore, "start-before", "no attempt starts at this time or later")
	cmd.Flags().Var(&j.startWithin, "start-within", "the same, as the time after it is ready first")
	cmd.Flags().StringVar(&j.onExpiry, "on-expiry", "", "what becomes of a job that did not start in time: dead or delete")
	cmd.Flags().Var(&j.retain, "retain", "keep the done job at least so long, for its result")
	j.debounceMax.min, j.debounceMax.max = time.Millisecond, protocol.MaxDelayMS*time.Millisecond
	cmd.Flags().StringVar(&j.keyUntil, "key-until", "", "how long the key counts: until start or finish (default)")
	cmd.Flags().StringVar(&j.onConflict, "on-conflict", "", "if a job has the key: keep (default), replace or debounce that one")
	cmd.Flags().Var(&j.debounceMax, "debounce-max", "with debounce: ready at most so long after the first enqueue")
	j.addCommon(cmd)
}

// addCallback adds the flags of a batch.
func (j *jobFlags) addCallback(cmd *cobra.Command) {
	cmd.Flags().StringVar(&j.key, "key", "", "open no batch if one of the queue has this key")
	cmd.Flags().StringVar(&j.batch, "batch", "", "the `id` of an open batch of which the callback is a job")
	j.addCommon(cmd)
}

func (j *jobFlags) addCommon(cmd *cobra.Command) {
	j.timeout.min, j.timeout.max = time.Millisecond, protocol.MaxTimeoutMS*time.Millisecond
	cmd.Flags().Int16Var(&j.priority, "priority", 0, "higher goes first (-32768 to 32767)")
	cmd.Flags().StringVar(&j.group, "group", "", "its jobs run one at a time, or as many as the queue's group limit")
	cmd.Flags().StringArrayVar(&j.headers, "header", nil, "`name=value` to go with the job; repeatable")
	cmd.Flags().IntVar(&j.maxAttempts, "max-attempts", 0, "dead after so many (default: the queue's)")
	cmd.Flags().Var(&j.timeout, "timeout", "time limit of one run (default: the queue's)")
}

// job returns the job that the flags describe, without a payload.
func (j *jobFlags) job(cmd *cobra.Command, queue string, env func(string) string) (protocol.NewJob, error) {
	job := protocol.NewJob{Queue: queue, Priority: int64(j.priority), Key: j.key, Group: j.group, Batch: j.batch}
	if j.delay.set {
		job.DelayMS = protocol.Some(j.delay.d.Milliseconds())
	}
	if j.runAt.set {
		if j.delay.set {
			return job, usagef("--delay and --run-at exclude each other: leave one of them out")
		}
		job.RunAt = protocol.Some(j.runAt.at.UnixMilli())
	}
	if j.timeout.set {
		job.TimeoutMS = protocol.Some(j.timeout.d.Milliseconds())
	}
	if cmd.Flags().Changed("max-attempts") {
		if j.maxAttempts < 1 || j.maxAttempts > protocol.MaxMaxAttempt {
			return job, usagef("--max-attempts: %d is outside 1 to %d", j.maxAttempts, protocol.MaxMaxAttempt)
		}
		job.MaxAttempts = protocol.Some(int64(j.maxAttempts))
	}
	if cmd.Flags().Changed("key") && j.key == "" {
		return job, usagef("--key: the key must not be empty: leave the flag out, or give one")
	}
	if !utf8.ValidString(j.key) {
		return job, usagef("--key: %q is not valid UTF-8", j.key)
	}
	if j.startBefore.set {
		if j.startWithin.set {
			return job, usagef("--start-before and --start-within exclude each other: leave one of them out")
		}
		job.StartBefore = protocol.Some(j.startBefore.at.UnixMilli())
	}
	if j.startWithin.set {
		job.StartWithinMS = protocol.Some(j.startWithin.d.Milliseconds())
	}
	if j.retain.set {
		job.RetainMS = protocol.Some(j.retain.d.Milliseconds())
	}
	if job.OnExpiry = j.onExpiry; cmd.Flags().Changed("on-expiry") && j.onExpiry != protocol.ExpireDead && j.onExpiry != protocol.ExpireDelete {
		return job, usagef("--on-expiry: %q is neither %s nor %s", j.onExpiry, protocol.ExpireDead, protocol.ExpireDelete)
	}
	if err := j.unique(cmd, &job); err != nil {
		return job, err
	}
	if cmd.Flags().Changed("group") && (j.group == "" || !utf8.ValidString(j.group)) {
		return job, usagef("--group: the group must be text, and not empty: leave the flag out for none")
	}
	if cmd.Flags().Changed("batch") && j.batch == "" {
		return job, usagef("--batch: the id must not be empty: leave the flag out for no batch")
	}
	var err error
	if job.Headers, err = parseHeaders(j.headers); err != nil {
		return job, err
	}
	return withTrace(job, env), nil
}

// parseHeaders returns the headers of --header. It returns nil if there are none.
func parseHeaders(flags []string) (headers map[string]string, err error) {
	for _, h := range flags {
		name, value, ok := strings.Cut(h, "=")
		switch {
		case !utf8.ValidString(h):
			return nil, usagef("--header: %q is not valid UTF-8", h)
		case !ok || name == "":
			return nil, usagef("--header %q: write it as name=value", h)
		}
		if headers == nil {
			headers = make(map[string]string)
		}
		if _, twice := headers[name]; twice {
			return nil, usagef("--header %q: this name was given before", h)
		}
		headers[name] = value
	}
	return headers, nil
}

// withTrace returns the job with the trace of the environment (TRACEPARENT, TRACESTATE). It
// ignores an invalid trace, as W3C Trace Context requires. A header of the job takes
// precedence.
func withTrace(job protocol.NewJob, env func(string) string) protocol.NewJob {
	parent, state := env("TRACEPARENT"), env("TRACESTATE")
	if _, ok := protocol.TraceID(parent); !ok || job.Headers[protocol.HeaderTraceParent] != "" {
		return job
	}
	if job.Headers == nil {
		job.Headers = make(map[string]string)
	}
	job.Headers[protocol.HeaderTraceParent] = parent
	if _, given := job.Headers[protocol.HeaderTraceState]; !given && state != "" && len(state) <= protocol.MaxTraceState && utf8.ValidString(state) {
		job.Headers[protocol.HeaderTraceState] = state
	}
	return job
}

const enqueueHelp = `Store a job and print its id, once it is durable. The payload is the argument, or with -
all of stdin. Without one it is empty, which clients read as null.

Clients store and read payloads as JSON. So enqueue stores a payload that is JSON, such as
{"to":"ada"} or 17, as it is, and any other text as a JSON string: "hello, world". On a
terminal it reports on stderr what it stored. In a script, use a flag:

  --json  it must be JSON; other text is an error (exit code 2)
  --text  it is a text, which is stored as a JSON string, also if it is JSON
  --raw   it is any bytes, which are stored as they are, such as a picture

--json also prints the answer as JSON, and with --raw or --text it does only that. In
this answer, "stored" is the JSON type and the size of the payload. "qsidecar work" and
"qsidecar claim --env" return a JSON string as its text.

With --lines each line of stdin becomes a job (without its newline), in batches, and
the number of jobs is printed. When a batch fails, the lines before it are stored and
the error has their number.

A trace that the environment names (TRACEPARENT, TRACESTATE) goes with the job as the
headers traceparent and tracestate; "qsidecar work" gives it to its CMD.

`

func (a *app) enqueueCommand() *cobra.Command {
	var f jobFlags
	var format payloadFormat
	var lines bool
	cmd := &cobra.Command{
		Use:   "enqueue QUEUE [PAYLOAD|-]",
		Short: "Store a job, or with --lines a job for each line of stdin",
		Long:  enqueueHelp + exitCodes,
		Example: `  qsidecar enqueue mail '{"to":"a@example.com"}' --key welcome-17 --delay 5m
  qsidecar enqueue greet --text "$name"
  tar c dir | qsidecar enqueue backups - --raw
  find . -name '*.png' | qsidecar enqueue thumbnails --lines --text`,
		Args: argCount(1, 2, "a queue and at most one payload"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			job, err := f.job(cmd, args[0], a.getenv)
			if err == nil {
				err = format.check(a.json)
			}
			if err != nil {
				return err
			}
			defer func() {
				if err == nil {
					format.warn(a)
				}
			}()
			if lines {
				return a.enqueueLines(cmd, job, &format, args)
			}
			if len(args) == 2 {
				given, err := a.text(cmd.Context(), args[1])
				if err == nil {
					job.Payload, err = format.encode(given)
				}
				if err != nil {
					return err
				}
			}
			return a.enqueueOne(cmd, job, &format)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&lines, "lines", false, "a job for each line of stdin")
	a.payloadFlags(cmd, &format)
	return cmd
}

// text returns an argument's bytes, or all of stdin for "-".
func (a *app) text(ctx context.Context, arg string) ([]byte, error) {
	if arg != "-" {
		return []byte(arg), nil
	}
	var b []byte
	err := a.readInput(ctx, func() (err error) {
		b, err = io.ReadAll(io.LimitReader(a.in, protocol.MaxMaxFrame+1))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading stdin: %w", err)
	}
	if len(b) > protocol.MaxMaxFrame {
		return nil, usagef("stdin has more than 64 MiB, which no sidecar takes as one job")
	}
	return b, nil
}

// unique adds the options of the job's key.
func (j *jobFlags) unique(cmd *cobra.Command, job *protocol.NewJob) error {
	job.KeyUntil, job.OnConflict = j.keyUntil, j.onConflict
	for flag, words := range map[string][]string{
		"key-until":   {protocol.KeyUntilStart, protocol.KeyUntilFinish},
		"on-conflict": {protocol.ConflictKeep, protocol.ConflictReplace, protocol.ConflictDebounce},
	} {
		f := cmd.Flags().Lookup(flag)
		switch {
		case f == nil || !f.Changed:
		case !slices.Contains(words, f.Value.String()):
			return usagef("--%s: %q must be one of %s", flag, f.Value, strings.Join(words, ", "))
		case j.key == "":
			return usagef("--%s needs a --key", flag)
		}
	}
	if j.onConflict == protocol.ConflictDebounce && j.delay.d == 0 {
		return usagef("--on-conflict debounce needs a --delay")
	}
	if j.debounceMax.set {
		if j.onConflict != protocol.ConflictDebounce {
			return usagef("--debounce-max needs --on-conflict debounce")
		}
		if j.debounceMax.d < j.delay.d {
			return usagef("--debounce-max is shorter than --delay: a second enqueue would make the job ready before the delay of the first one")
		}
		job.DebounceMaxMS = protocol.Some(j.debounceMax.d.Milliseconds())
	}
	return nil
}

func (a *app) enqueueOne(cmd *cobra.Command, job protocol.NewJob, format *payloadFormat) error {
	return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpEnqueue, Job: job})
		if err != nil {
			return err
		}
		if rep.Enqueued == nil {
			return errors.New("the sidecar's answer has no job")
		}
		if a.json {
			return a.printEnqueued(rep, format, job)
		}
		if e := rep.Enqueued; e.Duplicate {
			fmt.Fprintf(a.errOut, "qsidecar: nothing was stored: job %s has this key and is %s\n", e.ID, e.State)
		} else if e.Outcome == protocol.OutcomeReplaced {
			fmt.Fprintf(a.errOut, "qsidecar: replaced the content of job %s, which has this key and is %s\n", e.ID, e.State)
		} else if e.Outcome == protocol.OutcomePending {
			fmt.Fprintf(a.errOut, "qsidecar: job %s has this key and runs: this one waits for its end\n", e.ID)
		} else if a.terminal(a.errOut) {
			fmt.Fprintf(a.errOut, "qsidecar: stored in %s: %v\n", job.Queue, format.stored(job))
		}
		return a.printf("%s", rep.Enqueued.ID)
	})
}

// enqueueLines enqueues the lines of stdin. The lines that were read during one commit are
// the next batch. A slow producer's line is stored at once, and a fast producer's lines need
// few transactions.
func (a *app) enqueueLines(cmd *cobra.Command, like protocol.NewJob, format *payloadFormat, args []string) error {
	switch {
	case len(args) == 2 && args[1] != "-":
		return usagef("--lines reads the payloads from stdin: leave the PAYLOAD out")
	case like.Key != "":
		return usagef("--lines and --key do not go together: one key would make all but the first line a duplicate")
	}
	return a.withClient(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		lines := make(chan []byte, protocol.MaxList) // one full batch read ahead
		var readErr error                            // read after lines is closed
		go func() {
			defer close(lines)
			readErr = readLines(ctx, a.in, int(c.Server().MaxPayload), format, lines)
		}()
		// The frame contains the payloads and, for each job, the fields that the flags set.
		maxBytes := int(c.Server().MaxFrame) - 4<<10
		each := 256 + len(like.Queue)
		for k, v := range like.Headers {
			each += len(k) + len(v) + 10
		}
		var stored, duplicates int64
		b := batcher{in: lines, template: like, maxBytes: maxBytes, perJob: each}
		for {
			jobs := b.next(ctx)
			if len(jobs) == 0 {
				break
			}
			callCtx, cancel := withAnswerTimeout(ctx, answerTimeout)
			rep, err := c.Call(callCtx, &protocol.Request{Op: protocol.OpEnqueue, Jobs: jobs})
			cancel()
			if err != nil {
				return fmt.Errorf("%s; %s failed: %w", enqueuedText(stored), linesText(stored+1, stored+int64(len(jobs))), err)
			}
			stored += int64(len(jobs))
			for _, e := range rep.EnqueuedAll {
				if e.Duplicate {
					duplicates++
				}
			}
			if a.json {
				if err := a.printAllEnqueued(rep, format, jobs); err != nil {
					return err
				}
			}
		}
		if err := errors.Join(context.Cause(ctx), readErrOf(ctx, &readErr)); err != nil {
			return fmt.Errorf("%s; %w", enqueuedText(stored), err)
		}
		if a.json {
			return nil
		}
		return a.printf("enqueued %s", textfmt.Plural(stored, "job"))
	})
}

// enqueuedText reports how many lines are stored.
func enqueuedText(stored int64) string {
	switch stored {
	case 0:
		return "nothing is enqueued"
	case 1:
		return "line 1 is enqueued"
	}
	return linesText(1, stored) + " are enqueued"
}

func linesText(first, last int64) string {
	if first == last {
		return fmt.Sprintf("line %d", first)
	}
	return fmt.Sprintf("lines %d to %d", first, last)
}

// readErrOf returns the reader's error, unless the reader can still run.
func readErrOf(ctx context.Context, err *error) error {
	if ctx.Err() != nil {
		return nil
	}
	return *err
}

// readLines sends the payload of each line of r, without its newline, until ctx ends.
func readLines(ctx context.Context, r io.Reader, most int, format *payloadFormat, to chan<- []byte) error {
	if most <= 0 {
		most = math.MaxInt32
	}
	br := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		var line []byte
		for {
			part, err := br.ReadSlice('\n')
			line = append(line, part...)
			if len(line) > most+1 {
				return fmt.Errorf("line %d has more than %d bytes, which is the limit of a payload", n, most)
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("reading stdin: %w", err)
			}
			if err != nil && len(line) == 0 {
				return nil
			}
			break
		}
		if last := len(line) - 1; line[last] == '\n' {
			line = line[:last]
		}
		line, err := format.encode(line)
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if len(line) > most {
			return fmt.Errorf("line %d has more than %d bytes as a JSON string, which is the limit of a payload", n, most)
		}
		select {
		case to <- line:
		case <-ctx.Done():
			return nil
		}
	}
}

// batcher builds lists of jobs that fit into one request.
type batcher struct {
	in       <-chan []byte
	template protocol.NewJob
	maxBytes int // of a list
	perJob   int // bytes of a job besides its payload
	pending  []byte
	hasNext  bool // pending did not fit into the last list
}

// next waits for a line and adds all lines that are available. At the end it returns
// nothing.
func (b *batcher) next(ctx context.Context) []protocol.NewJob {
	var jobs []protocol.NewJob
	size := 0
	for len(jobs) < protocol.MaxList {
		line, ok := b.line(ctx, len(jobs) == 0)
		if !ok {
			break
		}
		if size += len(line) + b.perJob; size > b.maxBytes && len(jobs) > 0 {
			b.pending, b.hasNext = line, true
			break
		}
		job := b.template
		job.Payload = line
		jobs = append(jobs, job)
	}
	return jobs
}

func (b *batcher) line(ctx context.Context, wait bool) (line []byte, ok bool) {
	if b.hasNext {
		b.hasNext = false
		return b.pending, true
	}
	if wait {
		select {
		case line, ok = <-b.in:
		case <-ctx.Done():
		}
		return line, ok
	}
	select {
	case line, ok = <-b.in:
	default:
	}
	return line, ok
}
