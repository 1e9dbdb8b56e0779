package protocol

import (
	"errors"
	"sync"
)

// Codec is one of the two encodings of the same maps. A connection's first byte
// chooses it.
type Codec uint8

// The codecs. The zero value stands for a connection on which nothing was read
// yet; messages appended with it are JSON, so that a person sees the error.
const (
	Msgpack Codec = iota + 1 // 4-byte big-endian length, then one msgpack map
	JSON                     // one JSON object and \n
)

// String names the codec as the documentation does.
func (c Codec) String() string {
	switch c {
	case Msgpack:
		return "msgpack"
	case JSON:
		return "json"
	default:
		return "no codec yet"
	}
}

// DecodeRequest reads one request from the body b (without its framing) into r,
// which it resets first. All that PROTOCOL.md says of a request alone is checked:
// shape, types, ranges, which fields the op takes and needs.
//
// r.ID, and r.Op as it was sent, are set where they can be read even if an error
// is returned, so that the error's reply carries the id. The rest of r is then
// not to be used. r keeps nothing of b.
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

// DecodeReply reads one message of a server from the body b (without its
// framing) into r, which it resets first. Unknown fields are ignored. r keeps
// nothing of b.
//
// The list "jobs" becomes r.Jobs, r.Views or r.EnqueuedAll by what its elements
// hold; an empty one is both r.Jobs and r.Views, empty and not nil.
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

// AppendRequest appends r as one complete message with its framing to dst. Only
// the fields that r.Op takes are written, and of those only what differs from
// absence. It checks no ranges and no text: the server does.
func (c Codec) AppendRequest(dst []byte, r *Request) []byte {
	e := getEncoder(c, dst)
	defer e.release()
	e.asIs = true
	e.open()
	writeRequest(e, r)
	return e.close()
}

// AppendReply appends r as one complete message with its framing to dst. What is
// not valid UTF-8 or NUL in a text becomes U+FFFD, so that every client can read
// it. It checks no size: see Limits.MaxReply.
func (c Codec) AppendReply(dst []byte, r *Reply) []byte {
	e := getEncoder(c, dst)
	defer e.release()
	e.open()
	replyMessage.write(e, r, everything)
	return e.close()
}

// decoder is one message being read.
type decoder struct {
	src     source
	limits  Limits
	json    bool
	lenient bool // a reply: unknown fields are skipped and nothing has a limit
	b64     bool // the field being read stands in its _b64 form
	mp      mpSource
	js      jsonSource
	job     anyJob // the element of "jobs" being read; here so that it is not allocated for each
}

var decoders = sync.Pool{New: func() any {
	d := new(decoder)
	d.mp.init()
	d.js.init()
	return d
}}

func getDecoder() *decoder { return decoders.Get().(*decoder) }

// release gives d back without what it read, which may be large.
func (d *decoder) release() {
	if d.lenient {
		d.job = anyJob{}
	}
	d.src, d.limits, d.json, d.lenient, d.b64 = nil, Limits{}, false, false, false
	d.mp.close()
	d.js.close()
	decoders.Put(d)
}

// open checks the shape of b and makes it the message to read.
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
