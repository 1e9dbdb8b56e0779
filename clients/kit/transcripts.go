package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

// transcriptScenarios returns the scenario of the protocol's conversations, as far as the adapter's
// commands can express them.
func transcriptScenarios(dir string) ([]scenario, error) {
	all, err := transcript.Load(dir)
	if err != nil {
		return nil, err
	}
	return []scenario{{"transcripts", 0, "the protocol's own conversations, as far as the commands can say them",
		func(s *stage) { playTranscripts(s, all) }}}, nil
}

func playTranscripts(s *stage, all []*transcript.Transcript) {
	p, sent := s.open(), 0
	for i, tr := range all {
		if len(tr.Needs) > 0 || len(tr.Codecs()) == 1 {
			continue
		}
		t := &replay{stage: s, peer: p, vars: map[string]any{}, lease: map[string]string{}}
		for _, q := range []string{"q", "q2", "q3"} {
			t.vars[q] = fmt.Sprintf("%s-%d", q, i)
		}
		for j := range len(tr.Steps) - 1 {
			c, r := tr.Steps[j], tr.Steps[j+1]
			happy := c.Kind == transcript.Send && r.Kind == transcript.Receive && c.Conn == 1 && r.Conn == 1 &&
				c.Message["id"] == r.Message["id"] && r.Message["ok"] == true
			if happy && t.playRequest(c.Message, r.Message) {
				sent++
			}
		}
	}
	s.note("kit: replayed %d requests of the transcripts", sent)
	must(atLeast(sent, 40))
}

// atLeast returns an error if the transcripts have fewer usable requests than expected.
func atLeast(sent, want int) error {
	if sent >= want {
		return nil
	}
	return fmt.Errorf("the commands cover %d requests of the transcripts, want %d", sent, want)
}

// replay is the replay of one transcript.
type replay struct {
	stage *stage
	peer  *peer
	vars  map[string]any    // captured values
	lease map[string]string // job id → lease, for jobs that the adapter holds
	made  int
}

// fieldsOf are the fields that each command supports.
var fieldsOf = map[string][]string{
	"enqueue": {"queue", "payload", "payload_b64", "key", "group", "start_within_ms", "on_expiry", "on_conflict"},
	"claim":   {"queue", "max", "wait_ms"},
	"ack":     {"lease", "result", "result_b64"},
	"nack":    {"lease", "error", "delay_ms", "dead"},
	"extend":  {"lease", "lease_ms"},

	"progress": {"lease", "done", "total", "data"},
}

// playRequest sends the command for a request, answers it, and checks the adapter's answer. It does nothing
// if no command matches the request.
func (t *replay) playRequest(request, reply map[string]any) bool {
	op, _ := request["op"].(string)
	asked := fields{}
	for k, v := range request {
		if name, ok := v.(string); ok && strings.HasPrefix(name, "$") {
			if v, ok = t.vars[name[1:]]; !ok {
				return false // captured in a step that was skipped
			}
		}
		asked[k] = v
	}
	delete(asked, "id")
	delete(asked, "op")
	if notText(asked) || notText(reply) {
		return false
	}
	can := maps.Clone(asked)
	for _, f := range fieldsOf[op] {
		delete(can, f)
	}
	if len(can) > 0 {
		return false
	}
	switch op {
	case "enqueue":
		return t.enqueue(asked, reply)
	case "claim":
		return t.claim(asked, reply)
	case "ack", "nack", "extend", "progress":
		return t.settle(protocol.Op(op), asked)
	}
	return false
}

func (t *replay) enqueue(asked fields, reply map[string]any) bool {
	sent, ok := reply["job"].(map[string]any)
	payload, has := asked.content("payload")
	if !ok || !has {
		return false
	}
	c := command{"do": "enqueue", "queue": asked["queue"], "payload_b64": base64.StdEncoding.EncodeToString(payload)}
	for _, f := range []string{"key", "group", "start_within_ms", "on_expiry", "on_conflict"} {
		if asked[f] != nil {
			c[f] = asked[f]
		}
	}
	call := t.stage.command(c)
	req := t.peer.expect(protocol.OpEnqueue)
	got := newJob(req)
	need(got.Queue == asked["queue"] && bytes.Equal(got.Payload, payload) && got.Key == text(asked["key"]) && got.Group == text(asked["group"]) &&
		got.StartWithinMS.Or(0) == orElse(asked["start_within_ms"], 0) && got.OnExpiry == text(asked["on_expiry"]) && got.OnConflict == text(asked["on_conflict"]),
		fmt.Sprintf("an enqueue of %v", asked), "%s", t.peer.text(req))
	job := t.fill(sent)
	t.peer.answerEnqueue(req, job)
	a := t.stage.succeeds(call)
	need(a.ID == job["id"] && a.Duplicate == (job["duplicate"] == true) && a.Outcome == text(job["outcome"]), fmt.Sprintf("the answer %v", job), "%s", cut(a.line))
	return true
}

func (t *replay) claim(asked fields, reply map[string]any) bool {
	sent, ok := reply["jobs"].([]any)
	if !ok {
		return false
	}
	most := int64(1)
	if asked["max"] != nil {
		most = number(asked["max"])
	}
	call := t.stage.command(command{"do": "claim", "queue": asked["queue"], "max": most, "wait_ms": orElse(asked["wait_ms"], 0)})
	req := t.peer.expect(protocol.OpClaim)
	need(queueOf(req) == asked["queue"] && req.Max.Or(1) == most, fmt.Sprintf("a claim of %v", asked), "%s", t.peer.text(req))
	var jobs []fields
	for _, j := range sent {
		pattern, _ := j.(map[string]any) // nil for "$_", which matches any job
		job := t.stage.job(nil)
		delete(job, "payload")
		maps.Copy(job, t.fill(pattern))
		if _, has := job.content("payload"); !has {
			job.bytes("payload", []byte("any"))
		}
		if last, has := pattern["progress"].(map[string]any); has {
			job["progress"] = with(t.fill(last), fields{"at": 1_800_000_000_000})
		}
		jobs = append(jobs, job)
		t.lease[id(job)] = lease(job)
	}
	t.peer.answerClaim(req, jobs...)
	a := t.stage.succeeds(call)
	need(len(a.Jobs) == len(jobs), fmt.Sprintf("%d jobs", len(jobs)), "%s", cut(a.line))
	for i, got := range a.Jobs {
		want, _ := jobs[i].content("payload")
		need(got.ID == id(jobs[i]) && bytes.Equal(got.PayloadB64, want) && got.Attempt == number(jobs[i]["attempt"]) && got.Fence == number(jobs[i]["fence"]),
			fmt.Sprintf("the job %v", jobs[i]), "%+v", got)
		last, has := jobs[i]["progress"].(fields)
		need(has == (got.Progress != nil) && (!has || got.Progress.is(number(last["done"]), number(last["total"]), []byte(text(last["data"])))),
			fmt.Sprintf("the job %v", jobs[i]), "%s", cut(a.line))
	}
	return true
}

func (t *replay) settle(op protocol.Op, asked fields) bool {
	job := ""
	for id, l := range t.lease {
		if l == asked["lease"] {
			job = id
		}
	}
	if job == "" || op == protocol.OpExtend && asked["lease_ms"] == nil {
		return false
	}
	c := command{"do": string(op), "id": job}
	for _, f := range []string{"error", "delay_ms", "dead", "lease_ms", "done", "total"} {
		if asked[f] != nil {
			c[f] = asked[f]
		}
	}
	result, has := asked.content("result")
	if has {
		c["result_b64"] = base64.StdEncoding.EncodeToString(result)
	}
	data, has := asked.content("data")
	if has {
		c["data_b64"] = base64.StdEncoding.EncodeToString(data)
	}
	call := t.stage.command(c)
	req := t.peer.expect(op)
	need(req.leases()[0] == asked["lease"] && req.Error == text(asked["error"]) && req.Dead == (asked["dead"] == true) &&
		req.DelayMS.Or(-1) == orElse(asked["delay_ms"], -1) && req.LeaseMS.Or(-1) == orElse(asked["lease_ms"], -1) &&
		bytes.Equal(req.Result, result) && req.Done.Or(-1) == orElse(asked["done"], -1) && req.Total.Or(-1) == orElse(asked["total"], -1) && bytes.Equal(req.Data, data),
		fmt.Sprintf("%s of %v", op, asked), "%s", t.peer.text(req))
	t.peer.answerSettle(req)
	t.stage.succeeds(call)
	if op == protocol.OpAck || op == protocol.OpNack {
		delete(t.lease, job)
	}
	return true
}

// fill returns a message for a pattern, without the fields that the pattern leaves open.
func (t *replay) fill(pattern map[string]any) fields {
	out := fields{}
	for k, v := range pattern {
		name, ok := v.(string)
		switch {
		case k == "..." || v == "$_" || v == "$?":
		case ok && strings.HasPrefix(name, "$>"):
			out[k] = number(t.vars[name[2:]]) + 1
		case ok && strings.HasPrefix(name, "$$"):
			out[k] = name[1:]
		case ok && strings.HasPrefix(name, "$"):
			out[k] = t.capture(name[1:], k)
		default:
			out[k] = v
		}
	}
	return out
}

// capture returns a variable's value. A new variable gets a value that the field allows.
func (t *replay) capture(name, field string) any {
	if v, ok := t.vars[name]; ok {
		return v
	}
	t.made++
	switch field {
	case "id":
		t.vars[name] = t.vars["q"].(string) + "-" + name
	case "lease":
		t.vars[name] = "1.kit." + t.vars["q"].(string) + "." + name
	default:
		t.vars[name] = int64(100 * t.made)
	}
	return t.vars[name]
}

// notText reports bytes that are not text. The scenario bytes covers them.
func notText(v any) bool {
	switch v := v.(type) {
	case fields:
		return notText(map[string]any(v))
	case map[string]any:
		for k, x := range v {
			if strings.HasSuffix(k, "_b64") || notText(x) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, notText)
	}
	return false
}

// content returns the value of a bytes field in either form.
func (f fields) content(name string) (b []byte, has bool) {
	if s, ok := f[name].(string); ok {
		return []byte(s), true
	}
	s, ok := f[name+"_b64"].(string)
	if !ok {
		return nil, false
	}
	b, err := base64.StdEncoding.DecodeString(s)
	must(err)
	return b, true
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func orElse(v any, otherwise int64) int64 {
	if v == nil {
		return otherwise
	}
	return number(v)
}

// number converts any form of an integer in a message.
func number(v any) int64 {
	n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
	must(err)
	return n
}
