package qsidecar_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

// TestTranscripts replays the protocol's conversations with this client. The client sends the C
// lines, and the test answers with the S lines. It skips messages that the client sends by itself
// (hello, bye, cancel) and invalid messages that the client can't send.
func TestTranscripts(t *testing.T) {
	all, err := transcript.Load("../../protocol/testdata/transcripts")
	if err != nil {
		t.Fatal(err)
	}
	replayed := make(map[protocol.Op]int)
	for _, tr := range all {
		if slices.ContainsFunc(tr.Steps, func(s transcript.Step) bool {
			return s.Kind == transcript.SendRaw || s.Kind == transcript.Shutdown || s.Message["op"] == "cancel_claim" || s.Message["op"] == "bye"
		}) {
			continue
		}
		t.Run(tr.Name, func(t *testing.T) {
			p := &replay{t: t, vars: map[string]any{"q": "q", "q2": "q2", "q3": "q3"}, ends: make(map[int]*end), ops: replayed}
			for _, s := range tr.Steps {
				p.line = s.Line
				p.step(s)
			}
		})
	}
	for _, op := range []protocol.Op{
		protocol.OpEnqueue, protocol.OpClaim, protocol.OpAck, protocol.OpNack, protocol.OpExtend, protocol.OpStats,
		protocol.OpPeek, protocol.OpRetry, protocol.OpChange, protocol.OpDelete, protocol.OpReclaim, protocol.OpPurge, protocol.OpPause,
		protocol.OpResume, protocol.OpPing,
	} {
		if replayed[op] == 0 {
			t.Errorf("no transcript sent a %s", op)
		}
	}
}

type replay struct {
	t    *testing.T
	line int
	vars map[string]any
	ends map[int]*end
	ops  map[protocol.Op]int
}

// end is one connection of the transcript: the client's and the server's side.
type end struct {
	client *qsidecar.Client
	peer   *peer
	open   []openCall
}

type openCall struct {
	id      string // as in the transcript; empty if there is none
	request *protocol.Request
	call    *pending[*protocol.Reply]
}

func (r *replay) end(n int) *end {
	e := r.ends[n]
	if e == nil {
		_, c, peer := connected(r.t, qsidecar.Options{Retry: -1})
		e = &end{client: c, peer: peer}
		r.ends[n] = e
	}
	return e
}

func (r *replay) step(s transcript.Step) {
	r.t.Helper()
	e := r.end(s.Conn)
	switch s.Kind {
	case transcript.HangUp:
		if err := e.client.Close(); err != nil {
			r.t.Errorf("line %d: %v", r.line, err)
		}
	case transcript.ServerClose:
		e.peer.close()
	case transcript.Send:
		r.send(e, s.Message)
	case transcript.Receive:
		r.receive(e, s.Message)
	}
}

// send lets the client send a message and reads it, unless the test skips the message.
func (r *replay) send(e *end, m map[string]any) {
	r.t.Helper()
	body, err := transcript.ToMsgpack(r.concrete("", m).(map[string]any))
	if err != nil {
		r.t.Fatalf("line %d: %v", r.line, err)
	}
	want := new(protocol.Request)
	if err := protocol.Msgpack.DecodeRequest(body, protocol.NewLimits(1<<20), want); err != nil || want.Op == protocol.OpHello {
		return
	}
	r.ops[want.Op]++
	c := call(r.t.Context(), e.client, *want)
	got := e.peer.expect(want.Op)
	sent := *got
	sent.ID = want.ID
	if d := cmp.Diff(*want, sent, cmp.AllowUnexported(protocol.RequestID{})); d != "" {
		r.t.Fatalf("line %d: the client sent another message (-transcript +sent):\n%s", r.line, d)
	}
	e.open = append(e.open, openCall{idText(m), got, c})
}

func idText(m map[string]any) string {
	if id, ok := m["id"]; ok {
		return fmt.Sprint(id)
	}
	return ""
}

// receive answers a call as in the transcript and checks the result.
func (r *replay) receive(e *end, m map[string]any) {
	r.t.Helper()
	var frame map[string]any
	i := slices.IndexFunc(e.open, func(o openCall) bool { return o.id == idText(m) })
	if _, event := m["event"]; !event && i < 0 {
		return // the request was skipped
	}
	frame = r.concrete("", m).(map[string]any)
	delete(frame, "id")
	body, err := transcript.ToMsgpack(frame)
	if err != nil {
		r.t.Fatalf("line %d: %v", r.line, err)
	}
	rep := new(protocol.Reply)
	if err := protocol.Msgpack.DecodeReply(body, rep); err != nil {
		r.t.Fatalf("line %d: %v", r.line, err)
	}
	if rep.Event != "" {
		e.peer.send(rep)
		return
	}
	o := e.open[i]
	e.open = slices.Delete(e.open, i, i+1)
	rep.ID = o.request.ID
	r.write(e, body, rep)
	got, err := o.call.wait(r.t)
	var pe *protocol.Error
	switch {
	case rep.Error != nil:
		if !errors.As(err, &pe) || pe.Code != rep.Error.Code {
			r.t.Errorf("line %d: the call returned %v, want %v", r.line, err, rep.Error)
		}
	case err != nil:
		r.t.Errorf("line %d: the call returned %v", r.line, err)
	default:
		if d := cmp.Diff(rep, got, cmp.AllowUnexported(protocol.RequestID{})); d != "" {
			r.t.Errorf("line %d: the caller got another answer (-transcript +got):\n%s", r.line, d)
		}
	}
}

// write sends the body that the transcript's own encoder created. It adds the id of the client's
// request as the last entry of the map.
func (r *replay) write(e *end, body []byte, rep *protocol.Reply) {
	r.t.Helper()
	if body[0]&0xf0 != 0x80 || body[0] == 0x8f {
		r.t.Fatalf("line %d: the reply is no small map", r.line)
	}
	id := protocol.Msgpack.AppendReply(nil, &protocol.Reply{ID: rep.ID, OK: true})
	// frame: length, fixmap of 2, then "id" and its value, then "ok": true
	entry, ok := strings.CutSuffix(string(id[5:]), "\xa2ok\xc3")
	if !ok || !strings.HasPrefix(entry, "\xa2id") {
		r.t.Fatalf("the codec writes a reply as %x, which this test does not know", id)
	}
	frame := append([]byte{body[0] + 1}, body[1:]...)
	frame = append(frame, entry...)
	out := append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
	if _, err := e.peer.conn.Write(out); err != nil {
		r.t.Fatal(err)
	}
}

// numbers are the fields that contain a number if the transcript has a pattern for them.
var numbers = []string{"generation", "uptime_ms", "failed_at", "start_before",
	"attempt", "max_attempts", "fence", "priority", "enqueued_at", "run_at", "claimed_at", "finished_at", "at",
	"retry_ms", "oldest_ready_ms", "oldest_claimed_ms", "timeout_ms", "ready", "scheduled", "claimed", "dead", "done", "count", "index",
	"heartbeat_age_ms", "since", "next_at", "last_at", "blocked",
}

// concrete replaces the patterns of a message by values.
func (r *replay) concrete(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any)
		for k, e := range v {
			if k == "..." || e == "$?" {
				continue
			}
			out[k] = r.concrete(k, e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = r.concrete(key, e)
		}
		return out
	case string:
		return r.value(key, v)
	}
	return v
}

func (r *replay) value(key, s string) any {
	name, ok := strings.CutPrefix(s, "$")
	if !ok {
		return s
	}
	if rest, ok := strings.CutPrefix(name, "$"); ok {
		return "$" + rest
	}
	if v, ok := r.vars[name]; ok {
		return v
	}
	var v any = "some-" + strings.TrimLeft(name, "_>")
	switch {
	case slices.Contains(numbers, key):
		v = json.Number(strconv.Itoa(len(r.vars) + 1))
	case key == "queues" || key == "history":
		v = []any{}
	case key == "job" || key == "jobs": // if only the reply to an enqueue has a pattern
		v = map[string]any{"id": v}
	}
	if name != "_" && name[0] != '>' {
		r.vars[name] = v
	}
	return v
}
