package worker

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/protocol"
)

// environment returns the environment of the command for one job.
func (w *Worker) environment(job protocol.Job) []string {
	env := w.commonEnvironment()
	for _, v := range JobVariables(job) {
		env = append(env, "QSIDECAR_"+v[0]+"="+v[1])
	}
	env = append(env, "QSIDECAR_LEASE="+job.Lease) // for `qsidecar progress`
	for name, value := range job.Headers {
		env = append(env, "QSIDECAR_HEADER_"+variableName(name)+"="+value)
	}
	if _, ok := protocol.TraceID(job.Headers[protocol.HeaderTraceParent]); ok {
		env = append(env, "TRACEPARENT="+job.Headers[protocol.HeaderTraceParent])
		if state := job.Headers[protocol.HeaderTraceState]; state != "" {
			env = append(env, "TRACESTATE="+state)
		}
	}
	return env
}

// commonEnvironment returns this process's environment with the sidecar's socket. It leaves
// out the variables of another job, the trace in which this worker was started, and the
// database's URL, which can contain a password.
func (w *Worker) commonEnvironment() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case name == "QSIDECAR_LEASE", strings.HasPrefix(name, "QSIDECAR_PROGRESS_"), name == "QSIDECAR_PAYLOAD", name == "QSIDECAR_PAYLOAD_B64",
			name == "QSIDECAR_PAYLOAD_FILE", name == "QSIDECAR_DATABASE",
			name == "TRACEPARENT", name == "TRACESTATE", strings.HasPrefix(name, "QSIDECAR_HEADER_"):
		case serviceManagers[name]: // for this process only
		default:
			env = append(env, v)
		}
	}
	socket := w.socket
	if abs, err := filepath.Abs(socket); err == nil { // the command can change its directory
		socket = abs
	}
	return append(env, "QSIDECAR_SOCKET="+socket)
}

// JobVariables returns names and values of the environment variables that describe a job,
// without its lease and payload. The names lack the prefix QSIDECAR_.
func JobVariables(j protocol.Job) [][2]string {
	headers := "{}"
	if len(j.Headers) > 0 {
		var buf bytes.Buffer
		e := json.NewEncoder(&buf)
		e.SetEscapeHTML(false)
		if err := e.Encode(j.Headers); err != nil {
			panic(err) // a map of strings always encodes
		}
		headers = strings.TrimSpace(buf.String())
	}
	var done, total, data string
	if p := j.Progress; p != nil {
		if n, ok := p.Done.Get(); ok {
			done = strconv.FormatInt(n, 10)
		}
		if n, ok := p.Total.Get(); ok {
			total = strconv.FormatInt(n, 10)
		}
		data = strings.ReplaceAll(string(p.Data), "\x00", "")
	}
	return [][2]string{
		{"JOB", j.ID},
		{"QUEUE", j.Queue},
		{"ATTEMPT", strconv.FormatInt(j.Attempt, 10)},
		{"MAX_ATTEMPTS", strconv.FormatInt(j.MaxAttempts, 10)},
		{"FENCE", strconv.FormatInt(j.Fence, 10)},
		{"PRIORITY", strconv.FormatInt(j.Priority, 10)},
		{"KEY", j.Key},
		{"HEADERS", headers},
		{"LAST_ERROR", strings.ReplaceAll(j.LastError, "\x00", "")},
		{"PROGRESS_DONE", done},
		{"PROGRESS_TOTAL", total},
		{"PROGRESS_DATA", data},
	}
}

// serviceManagers are the variables by which a service manager talks to the process that it
// started (sd_notify(3), sd_listen_fds(3)).
var serviceManagers = map[string]bool{
	"NOTIFY_SOCKET": true, "WATCHDOG_USEC": true, "WATCHDOG_PID": true, "FDSTORE": true,
	"LISTEN_FDS": true, "LISTEN_PID": true, "LISTEN_FDNAMES": true,
}

// variableName turns the name of a header into the name of a shell variable.
func variableName(header string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, header)
}
