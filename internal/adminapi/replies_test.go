package adminapi

import (
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestDocumentHasAllReplyFields compares the document with replies that have every field.
func TestDocumentHasAllReplyFields(t *testing.T) {
	n := protocol.Some[int64](1)
	text := []byte("text")
	view := protocol.JobView{
		ID: "1", Queue: "q", State: protocol.StateDead, Payload: text, EnqueuedAt: 1, RunAt: n, ClaimedAt: n, FinishedAt: n, Worker: "w", Key: "k",
		Headers: map[string]string{"a": "b"}, Result: text, LeftOut: n, Errors: []protocol.Failure{{Attempt: 1, Cause: "nacked", Message: "m", At: 1}},
	}
	binary := view
	binary.Payload, binary.Result = []byte{0xff}, []byte{0xff}
	stored := protocol.EnqueuedJob{ID: "1", Duplicate: true, State: protocol.StateDeleted}
	for op, reply := range map[protocol.Op]protocol.Reply{
		protocol.OpPeek:    {Views: []protocol.JobView{view, binary}},
		protocol.OpEnqueue: {Enqueued: &stored, EnqueuedAll: []protocol.EnqueuedJob{stored}},
		protocol.OpReload:  {Changes: []string{"c"}, Why: "w"},
		protocol.OpPurge:   {Count: n},
		protocol.OpStats:   {Queues: []protocol.QueueStat{{Queue: "q", Paused: true, Approx: true, Enqueued: n, Acked: n}}},
		protocol.OpCheck:   {Findings: []protocol.Finding{{Database: "d", Severity: "info", Topic: "t", Text: "t", Fix: "f"}}},
		protocol.OpFleet:   {Sidecars: []protocol.Sidecar{{Database: "d", Sidecar: "1", Name: "n", Version: "v", State: protocol.SidecarLate, Leases: n, StatsLeader: true, Self: true}}},
		protocol.OpHistory: {History: []protocol.QueueHistory{{Queue: "q", Since: 1, Minutes: []protocol.HistoryPoint{{At: 1, Ready: n, Enqueued: 1, Acked: 1, Failed: 1, Runs: 1, RunP50MS: n, RunP95MS: n}},
			Hours: []protocol.HistoryPoint{{At: 1}}}, {Minutes: []protocol.HistoryPoint{}}}},
		protocol.OpConfig: {Config: &protocol.Config{Settings: []string{"a: b"}, Reloads: []protocol.Reload{{At: 1, Generation: 2, Changes: []string{"c"}, Error: "e"}}}},
		protocol.OpStatus: {Status: &protocol.Status{
			ConfigError: "e", FailedAt: n, Admin: "a", Sockets: []protocol.SocketStatus{{Path: "p"}},
			Databases: []protocol.DatabaseStatus{{Name: "n", Cluster: "c", Error: "e", ReplicaError: "r", Draining: true, ObstacleCount: 1,
				Obstacles: []protocol.Obstacle{{Queue: "q", Table: "t", Job: "1", Doing: "claim", Error: "e"}}}},
			Sessions: []protocol.SessionStatus{{
				Session: "s", Worker: "w", Socket: "s", UID: n, PID: n,
				Queues: []protocol.QueueLeases{{Queue: "q", OldestJob: "1"}, {}},
			}},
		}},
	} {
		reply.ID, reply.OK = protocol.NumberID(1), true
		check(t, "a reply to "+string(op), "/paths/~1api~1v1~1"+string(op)+"/post"+replySchema, string(protocol.JSON.AppendReply(nil, &reply)), true)
	}
	e := protocol.Reply{ID: protocol.TextID("t"), Error: &protocol.Error{Code: protocol.CodeBusy, Message: "m", Field: "f", Index: n, RetryMS: n}}
	check(t, "an error", "/components/schemas/ErrorReply", string(protocol.JSON.AppendReply(nil, &e)), true)
	check(t, "a field that isn't in the document", "/components/schemas/ErrorReply", `{"ok":false,"error":{"code":"busy","message":"m","other":1}}`, false)
}
