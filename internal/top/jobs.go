package top

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

// maxShown is how many bytes of a job's text are shown.
const maxShown = 64 << 10

// jobColumns returns the columns of the jobs in a state.
func jobColumns(state protocol.State, jobs []protocol.JobView) []column {
	id := 6
	for _, v := range jobs {
		id = max(id, min(len(v.ID), 24))
	}
	columns := []column{{"ID", id, false}, {"ATTEMPT", 7, true}, {"PRIORITY", 8, true}}
	switch state {
	case protocol.StateScheduled:
		return append(columns, column{"DUE IN", 7, true}, column{title: "PAYLOAD"})
	case protocol.StateClaimed:
		return append(columns, column{"SINCE", 7, true}, column{"PROGRESS", 14, false}, column{title: "WORKER"}, column{title: "PAYLOAD"})
	case protocol.StateDead:
		return append(columns, column{"DIED", 7, true}, column{"CAUSE", 12, false}, column{title: "ERROR"})
	case protocol.StateDone:
		return append(columns, column{"DONE", 7, true}, column{title: "PAYLOAD"})
	}
	return append(columns, column{"AGE", 7, true}, column{title: "PAYLOAD"})
}

func (m *model) jobRows() []row {
	now := time.Now()
	if !m.now.IsZero() {
		now = m.now
	}
	since := func(ms int64) string {
		if ms == 0 {
			return "-"
		}
		return wiretext.Age(now.UnixMilli() - ms)
	}
	rows := make([]row, len(m.jobs))
	for i, v := range m.jobs {
		cells := []cell{plain(textfmt.OneLine(v.ID, protocol.MaxJobID)), plain(wiretext.Attempt(v)), plain(fmt.Sprint(v.Priority))}
		payload := plain(payloadLine(v))
		switch m.state {
		case protocol.StateScheduled:
			cells = append(cells, plain(wiretext.Age(v.RunAt.Or(0)-now.UnixMilli())), payload)
		case protocol.StateClaimed:
			cells = append(cells, plain(since(v.ClaimedAt.Or(0))), plain(cmp.Or(wiretext.Progress(v.Progress), "-")), plain(textfmt.OneLine(v.Worker, protocol.MaxWorkerName)), payload)
		case protocol.StateDead:
			last := wiretext.LastFailure(v)
			cells = append(cells, plain(since(v.FinishedAt.Or(last.At))), plain(textfmt.OneLine(last.Cause, 24)), plain(textfmt.OneLine(wiretext.Summary(last.Message), 400)))
		case protocol.StateDone:
			cells = append(cells, plain(since(v.FinishedAt.Or(0))), payload)
		default:
			cells = append(cells, plain(since(v.EnqueuedAt)), payload)
		}
		rows[i] = row{v.ID, cells}
	}
	return rows
}

// payloadLine returns the beginning of a payload.
func payloadLine(v protocol.JobView) string {
	if n, ok := v.LeftOut.Get(); ok {
		return fmt.Sprintf("(%d bytes)", n)
	}
	return textfmt.OneLine(string(v.Payload[:min(len(v.Payload), 1000)]), 400)
}

// jobText describes the job of jobScreen.
func (m *model) jobText() string {
	if len(m.shown) == 0 {
		return fmt.Sprintf("Job %s is gone: it was deleted, or it is done and not kept.", textfmt.OneLine(m.job, protocol.MaxJobID))
	}
	v := m.shown[0]
	v.Payload, v.Result = indented(v.Payload), indented(v.Result)
	text := wiretext.Job(v)
	if len(text) > maxShown {
		text = textfmt.Cut(text, maxShown) + fmt.Sprintf("\n(%d bytes more: see `qsidecar show %s`)", len(text)-maxShown, textfmt.OneLine(m.job, protocol.MaxJobID))
	}
	return strings.ReplaceAll(text, "\t", "    ")
}

// indented returns JSON objects and lists on several lines, and other bytes as they are.
func indented(data []byte) []byte {
	trimmed := bytes.TrimSpace(data)
	if len(trimmed) == 0 || trimmed[0] != '{' && trimmed[0] != '[' {
		return data
	}
	var b bytes.Buffer
	if json.Indent(&b, trimmed, "", "  ") != nil {
		return data
	}
	return b.Bytes()
}
