package protocol

import (
	"errors"
	"fmt"
	"sync"
)

// Codec is an encoding of the same maps. A connection's first byte chooses it.
type Codec uint8

// The codecs. The zero value means that nothing was read from the connection yet. Messages appended
// with it are JSON, so that a person can read the error.
const (
	Msgpack Codec = iota + 1 // 4-byte big-endian length, then one msgpack map
	JSON                     // one JSON object and \n
	HTTP                     // for the error to a client that sends an HTTP request: a response with the JSON as its body
)

// String returns the codec's name as the documentation writes it.
func (c Codec) String() string {
	switch c {
	case Msgpack:
		return "msgpack"
	case JSON:
		return "json"
	case HTTP:
		return "http"
	default:
		return "no codec yet"
	}
}

// DecodeRequest reads one request from the body b (without its framing) into r, which it resets
// first. It checks everything that PROTOCOL.md requires of a single request: shape, types, ranges,
// and which fields the op takes and needs.
//
// If it can read them, DecodeRequest sets r.ID and r.Op even if it returns an error, so that the
// reply to the error carries the id. Do not use the rest of r after an error. r does not reference
// b.
func (c Codec) DecodeRequest(b []byte, l Limits, r *Request) *Error {
	*r = Request{}
	d := getDecoder()
	defer d.release()
	d.limits = l
	if err := d.open(c, b); err != nil {
		return err
	}
	return d.request(r)
}

// DecodeReply reads one message of a server from the body b (without its framing) into r, which it
// resets first. It ignores unknown fields. r does not reference b.
//
// The list "jobs" becomes r.Jobs, r.Views or r.EnqueuedAll, depending on the fields of its
// elements. An empty list becomes both r.Jobs and r.Views, empty and not nil.
func (c Codec) DecodeReply(b []byte, r *Reply) error {
	*r = Reply{}
	d := getDecoder()
	defer d.release()
	d.lenient = true
	if err := d.open(c, b); err != nil {
		return err
	}
	if err := d.reply(r); err != nil {
		return err
	}
	return nil
}

// AppendRequest appends r as one complete message with its framing to dst. It writes only the
// fields that r.Op takes and that are set. It does not check ranges or text. The server does.
func (c Codec) AppendRequest(dst []byte, r *Request) []byte {
	e := getEncoder(c, dst)
	defer e.release()
	e.asIs = true
	e.open()
	writeRequest(e, r)
	return e.close()
}

// AppendReply appends r as one complete message with its framing to dst. It replaces invalid UTF-8
// and NUL in texts by U+FFFD, so that every client can read them. It does not check the size: see
// Limits.MaxReply.
func (c Codec) AppendReply(dst []byte, r *Reply) []byte {
	if c == HTTP {
		body := JSON.AppendReply(nil, r)
		dst = fmt.Appendf(dst, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", len(body))
		return append(dst, body...)
	}
	e := getEncoder(c, dst)
	defer e.release()
	e.open()
	replyMessage.write(e, r, everything)
	return e.close()
}

// decoder reads one message.
type decoder struct {
	src     source
	limits  Limits
	json    bool
	lenient bool // for replies: skip unknown fields and apply no limits
	b64     bool // the current field is in its _b64 form
	mp      mpSource
	js      jsonSource
	given   presence // the fields of the request's schedule
	job     anyJob   // the current element of "jobs"; a field of decoder, so that it is not allocated for each element
}

var decoders = sync.Pool{New: func() any {
	d := new(decoder)
	d.mp.init()
	d.js.init()
	return d
}}

func getDecoder() *decoder { return decoders.Get().(*decoder) }

// release returns d to the pool without the data that it read, which can be large.
func (d *decoder) release() {
	if d.lenient {
		d.job = anyJob{}
	}
	d.src, d.limits, d.json, d.lenient, d.b64 = nil, Limits{}, false, false, false
	d.mp.close()
	d.js.close()
	decoders.Put(d)
}

// open checks the shape of b and starts to read it.
func (d *decoder) open(c Codec, b []byte) *Error {
	if c == Msgpack {
		if err := checkShape(b); err != nil {
			return Errorf(CodeBadFrame, "the frame's body is not one msgpack map: %v", err)
		}
		d.mp.open(b)
		d.src = &d.mp
		if d.src.kind() != kindMap {
			return Errorf(CodeBadFrame, "the frame's body is not one msgpack map: %v", errNotMap)
		}
		return nil
	}
	d.json = true
	d.js.open(b)
	d.src = &d.js
	if d.src.kind() != kindMap {
		if err := d.src.fault(); err != nil {
			return err
		}
		return Errorf(CodeBadRequest, "the line is not one JSON object: a message begins with {")
	}
	return nil
}

var errNotMap = errors.New("its first value is of another type")
