package protocol

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
)

// encoder appends one message to dst.
type encoder struct {
	dst  []byte
	json bool
	asIs bool             // for requests: send invalid text as it is, so that the server rejects it
	at   int              // start of the message in dst
	mp   *msgpack.Encoder // writes to dst through Write and WriteByte
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.mp = msgpack.NewEncoder(e)
	return e
}}

func getEncoder(c Codec, dst []byte) *encoder {
	e := encoders.Get().(*encoder)
	e.dst, e.json, e.asIs, e.at = dst, c != Msgpack, false, len(dst)
	return e
}

func (e *encoder) release() {
	e.dst = nil
	encoders.Put(e)
}

// Write implements io.Writer for the library's encoder. It never fails.
func (e *encoder) Write(p []byte) (int, error) {
	e.dst = append(e.dst, p...)
	return len(p), nil
}

// WriteByte implements io.ByteWriter for the library's encoder. It never fails.
func (e *encoder) WriteByte(b byte) error {
	e.dst = append(e.dst, b)
	return nil
}

// must panics on an error of the library's encoder, which writes to memory and can't fail.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("protocol: encoding into memory failed: %v", err))
	}
}

// open reserves space for the frame's length.
func (e *encoder) open() {
	if !e.json {
		e.dst = append(e.dst, 0, 0, 0, 0)
	}
}

// close finishes the framing and returns dst.
func (e *encoder) close() []byte {
	if e.json {
		return append(e.dst, '\n')
	}
	binary.BigEndian.PutUint32(e.dst[e.at:], uint32(len(e.dst)-e.at-4))
	return e.dst
}

func (e *encoder) startMap(n int) {
	if e.json {
		e.dst = append(e.dst, '{')
		return
	}
	must(e.mp.EncodeMapLen(n))
}

func (e *encoder) endMap() {
	if e.json {
		e.dst = append(e.dst, '}')
	}
}

func (e *encoder) startList(n int) {
	if e.json {
		e.dst = append(e.dst, '[')
		return
	}
	must(e.mp.EncodeArrayLen(n))
}

func (e *encoder) endList() {
	if e.json {
		e.dst = append(e.dst, ']')
	}
}

// element goes before each element of a list.
func (e *encoder) element() { e.comma('[') }

// comma writes a separator, unless open was written last and starts the map or list. No value ends
// with an opening bracket.
func (e *encoder) comma(open byte) {
	if e.json && e.dst[len(e.dst)-1] != open {
		e.dst = append(e.dst, ',')
	}
}

func (e *encoder) name(n *name) {
	e.comma('{')
	if e.json {
		e.dst = append(e.dst, n.json...)
	} else {
		e.dst = append(e.dst, n.msgpack...)
	}
}

// text writes s. In a reply it replaces what the wire does not allow, because a database's error
// text can contain anything. It writes a request's text unchanged, because a changed key would be
// another key.
func (e *encoder) text(s string) {
	valid := utf8.ValidString(s)
	if !e.asIs && (!valid || strings.IndexByte(s, 0) >= 0) {
		s, valid = strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd"), true
	}
	switch {
	case !e.json:
		must(e.mp.EncodeString(s))
	case valid:
		e.dst = appendQuoted(e.dst, s)
	default:
		e.dst = appendInvalid(e.dst, s)
	}
}

func appendQuoted[T ~string | ~[]byte](dst []byte, valid T) []byte {
	dst, err := jsontext.AppendQuote(dst, valid)
	must(err)
	return dst
}

// appendInvalid quotes s and keeps its bytes that are not UTF-8.
func appendInvalid(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[0])
		} else {
			quoted := appendQuoted(nil, s[:n])
			dst = append(dst, quoted[1:len(quoted)-1]...)
		}
		s = s[n:]
	}
	return append(dst, '"')
}

func (e *encoder) integer(n int64) {
	if e.json {
		e.dst = strconv.AppendInt(e.dst, n, 10)
		return
	}
	must(e.mp.EncodeInt(n))
}

func (e *encoder) boolean(v bool) {
	if e.json {
		e.dst = strconv.AppendBool(e.dst, v)
		return
	}
	must(e.mp.EncodeBool(v))
}

// bytes writes name and value. In JSON the value is a string if the bytes are text. Otherwise the
// field is X_b64.
func (e *encoder) bytes(n *name, b []byte) {
	if !e.json {
		e.name(n)
		must(e.mp.EncodeBytesLen(len(b)))
		e.dst = append(e.dst, b...)
		return
	}
	e.comma('{')
	if utf8.Valid(b) {
		e.dst = append(e.dst, n.json...)
		e.dst = appendQuoted(e.dst, b)
		return
	}
	e.dst = append(e.dst, n.jsonB64...)
	e.dst = append(e.dst, '"')
	e.dst = base64.StdEncoding.AppendEncode(e.dst, b)
	e.dst = append(e.dst, '"')
}

// headers writes the keys in order, so that equal messages have equal bytes.
func (e *encoder) headers(h map[string]string) {
	e.startMap(len(h))
	for _, k := range slices.Sorted(maps.Keys(h)) {
		e.comma('{')
		e.text(k)
		if e.json {
			e.dst = append(e.dst, ':')
		}
		e.text(h[k])
	}
	e.endMap()
}

// weights writes the queues in order, so that equal messages have equal bytes.
func (e *encoder) weights(w map[string]int64) {
	e.startMap(len(w))
	for _, q := range slices.Sorted(maps.Keys(w)) {
		e.comma('{')
		e.text(q)
		if e.json {
			e.dst = append(e.dst, ':')
		}
		e.integer(w[q])
	}
	e.endMap()
}

func (e *encoder) requestID(id RequestID) {
	switch {
	case id.kind == idText:
		e.text(id.text)
	case e.json:
		e.dst = strconv.AppendUint(e.dst, id.num, 10)
	default:
		must(e.mp.EncodeUint(id.num))
	}
}
