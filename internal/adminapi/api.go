package adminapi

import (
	"bytes"
	"cmp"
	_ "embed" // openapi.json
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

//go:embed openapi.json
var document []byte

func serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document) // the client can be gone
}

// statuses are the HTTP status codes of the wire's errors.
var statuses = map[protocol.Code]int{
	protocol.CodeBadFrame:       http.StatusBadRequest,
	protocol.CodeBadRequest:     http.StatusBadRequest,
	protocol.CodeForbidden:      http.StatusForbidden,
	protocol.CodeUnknownOp:      http.StatusNotFound,
	protocol.CodeUnknownQueue:   http.StatusNotFound,
	protocol.CodeLeaseLost:      http.StatusConflict,
	protocol.CodeTooLarge:       http.StatusRequestEntityTooLarge,
	protocol.CodeUnsupported:    http.StatusUnprocessableEntity,
	protocol.CodeBusy:           http.StatusTooManyRequests,
	protocol.CodeInternal:       http.StatusInternalServerError,
	protocol.CodeUnavailable:    http.StatusServiceUnavailable,
	protocol.CodeDraining:       http.StatusServiceUnavailable,
	protocol.CodeUnknownOutcome: http.StatusGatewayTimeout,
}

// StatusOf returns the HTTP status of an error. A code that it doesn't know is treated like internal.
func StatusOf(code protocol.Code) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// serveRead carries out an operation that doesn't change anything, with its fields in the query.
func (s *Server) serveRead(w http.ResponseWriter, r *http.Request) {
	op := protocol.Op(r.PathValue("op"))
	if changes, known := ops[op]; known && changes {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, r, http.StatusMethodNotAllowed, protocol.Errorf(protocol.CodeBadRequest, "%s changes something: send it by POST, with its fields as a JSON object in the body", op))
		return
	}
	req, e := requestOf(op, r.URL.Query())
	if e != nil {
		refuse(w, r, 0, e)
		return
	}
	s.answer(w, r, req)
}

// queryFields are the fields that an operation has in the query of a GET.
var queryFields = map[protocol.Op][]string{
	protocol.OpStats:     {"queue"},
	protocol.OpHistory:   {"queue"},
	protocol.OpPeek:      {"queue", "state", "max", "ids", "after", "after_queue", "key", "text", "error", "newest"},
	protocol.OpSchedules: {"queue", "max", "after"},
	protocol.OpBatches:   {"queue", "max", "after", "batch", "all"},
}

// requestOf returns the request of a query. The sidecar checks the values.
func requestOf(op protocol.Op, query url.Values) (*protocol.Request, *protocol.Error) {
	req := &protocol.Request{Op: op}
	known := queryFields[op]
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			hint := cmp.Or(protocol.DidYouMean(name, known), ": it takes "+cmp.Or(strings.Join(known, ", "), "no fields"))
			return nil, protocol.BadField(name, "%s takes no field %q in the query%s", op, name, hint)
		case name == "ids":
			req.IDs = values
			continue
		case len(values) != 1:
			return nil, protocol.BadField(name, "%s is in the query twice", name)
		}
		switch value := values[0]; name {
		case "queue":
			req.Queue = value
		case "state":
			req.State = protocol.State(value)
		case "after":
			req.After = value
		case "after_queue":
			req.AfterQueue = value
		case "key":
			req.Key = value
		case "text":
			req.Text = value
		case "error":
			req.Error = value
		case "batch":
			req.Batch = value
		case "all", "newest":
			set, err := strconv.ParseBool(value)
			if err != nil {
				return nil, protocol.BadField(name, "%s must be true or false", name)
			}
			req.All, req.Newest = set && name == "all", set && name == "newest"
		case "max":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil {
				return nil, protocol.BadField(name, "max must be an integer from 1 to %d", protocol.MaxList)
			}
			req.Max = protocol.Some(n)
		}
	}
	return req, nil
}

// serveOp carries out an operation, with its fields as a JSON object in the body.
func (s *Server) serveOp(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		refuse(w, r, 0, bodyError(err))
		return
	}
	if r.URL.RawQuery != "" {
		refuse(w, r, 0, protocol.Errorf(protocol.CodeBadRequest, "a POST has its fields as a JSON object in the body, and this one has them in the query: move them"))
		return
	}
	req := new(protocol.Request)
	if e := decode(protocol.Op(r.PathValue("op")), body, s.rules.Load().MaxFrame, req); e != nil {
		writeReply(w, 0, &protocol.Reply{ID: req.ID, Error: e})
		return
	}
	s.answer(w, r, req)
}

// unknownOp is the error for an operation that the API doesn't have.
func unknownOp(op protocol.Op) *protocol.Error {
	if protocol.Known(op) {
		return protocol.Errorf(protocol.CodeUnknownOp, "the HTTP API has no operation %q: workers use the socket", op)
	}
	return protocol.Errorf(protocol.CodeUnknownOp, "%s (see /api/v1/openapi.json)", protocol.NoSuchOp(op))
}

// decode reads the body of a request as the wire's message of an operation. An empty body has no fields.
func decode(op protocol.Op, body []byte, maxFrame int, req *protocol.Request) *protocol.Error {
	if _, known := ops[op]; !known {
		return unknownOp(op)
	}
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		body = []byte("{}")
	}
	if body[0] != '{' {
		hint := ""
		if name, _, isForm := bytes.Cut(body, []byte("=")); isForm && bytes.IndexByte(name, '"') < 0 {
			hint = ", and this looks like a form"
		}
		return protocol.Errorf(protocol.CodeBadRequest, `the body is not one JSON object, such as {"queue":"mail"}%s`, hint)
	}
	fields := bytes.TrimLeft(body[1:], " \t\r\n")
	message := append([]byte(`{"op":"`), op...)
	message = append(message, '"')
	if len(fields) > 0 && fields[0] != '}' {
		message = append(message, ',')
	}
	e := protocol.JSON.DecodeRequest(append(message, fields...), protocol.NewLimits(maxFrame), req)
	switch {
	case e == nil:
	case e.Field == "op":
		e.Message = "the operation is in the address: leave op out of the body"
	default:
		e.Message = strings.Replace(e.Message, "the line is not one JSON object", "the body is not one JSON object", 1)
		e.Message = strings.Replace(e.Message, `as in {"op":"ping"}`, `as in {"queue":"mail"}`, 1)
	}
	return e
}

// answer carries out a request and writes its reply.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, req *protocol.Request) {
	id := req.ID
	reply, err := s.Do(r.Context(), req)
	if err != nil {
		reply = &protocol.Reply{Error: wireError(err)}
	} else if slices.Contains([]protocol.Op{protocol.OpPeek, protocol.OpSchedules, protocol.OpSchedule, protocol.OpBatches}, req.Op) && s.PayloadsHidden() {
		w.Header().Set("Qsidecar-Payloads", "hidden")
	}
	reply.ID = id
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(replyTimeout))
	writeReply(w, 0, reply)
}

// writeReply writes the wire's JSON. code 0 is the status of the reply.
func writeReply(w http.ResponseWriter, code int, reply *protocol.Reply) {
	if code == 0 {
		code = http.StatusOK
		if reply.Error != nil {
			code = StatusOf(reply.Error.Code)
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	setRetryAfter(h, reply.Error)
	w.WriteHeader(code)
	_, _ = w.Write(protocol.JSON.AppendReply(nil, reply)) //nolint:gosec // JSON with nosniff; the client can be gone
}

// setRetryAfter sets the header with the time to wait before a request is repeated, if the error has one. e can be nil.
func setRetryAfter(h http.Header, e *protocol.Error) {
	if e != nil && e.RetryMS.Set {
		h.Set("Retry-After", strconv.FormatInt((e.RetryMS.Value+999)/1000, 10))
	}
}
