package protocol

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// jsonSource reads a JSON message by tokens. The tokenizer rejects invalid UTF-8 and lone
// surrogates. It allows duplicate names, because otherwise it would remember every name of a
// hostile line. The tables of fields reject duplicates of known fields, and requests reject unknown
// fields.
type jsonSource struct {
	buf     bytes.Buffer // the tokenizer reads a bytes.Buffer in place
	dec     *jsontext.Decoder
	scratch []byte // a text with escapes, decoded
	err     *Error
}

// maxScratch is the largest scratch buffer that is kept between messages.
const maxScratch = 16 << 10

var jsonOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

func (j *jsonSource) init() { j.dec = jsontext.NewDecoder(&j.buf, jsonOptions...) }

func (j *jsonSource) open(b []byte) {
	j.buf = *bytes.NewBuffer(b)
	j.dec.Reset(&j.buf, jsonOptions...)
	j.err = nil
}

func (j *jsonSource) close() {
	if j.buf.Cap() > 0 {
		j.buf = bytes.Buffer{}
		j.dec.Reset(&j.buf, jsonOptions...)
	}
	if cap(j.scratch) > maxScratch {
		j.scratch = nil
	}
	j.err = nil
}

func (j *jsonSource) note(err error) {
	if err == nil || j.err != nil {
		return
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		j.err = Errorf(CodeBadRequest, "the line is not one JSON object: it ends inside of it")
		return
	}
	text := strings.TrimPrefix(err.Error(), "jsontext: ")
	if strings.Contains(text, `'\''`) {
		text += `; JSON has double quotes, as in {"op":"ping"}`
	}
	if strings.Contains(text, `invalid character ','`) {
		text += "; is a comma too many?"
	}
	j.err = Errorf(CodeBadRequest, "the line is not one JSON object: %s", text)
}

func (j *jsonSource) fault() *Error { return j.err }

func (j *jsonSource) end() *Error {
	if j.err != nil {
		return j.err
	}
	if _, err := j.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Errorf(CodeBadRequest, "the line is not one JSON object: something follows it; end each message with a newline")
	}
	return nil
}

func (j *jsonSource) kind() kind {
	if j.err != nil {
		return kindNone
	}
	switch j.dec.PeekKind() {
	case 'n':
		return kindNull
	case 't', 'f':
		return kindBool
	case '0':
		return kindNumber
	case '"':
		return kindText
	case '[':
		return kindList
	case '{':
		return kindMap
	}
	j.token() // returns the error that PeekKind found
	if j.err == nil {
		j.note(errors.New("a value is missing"))
	}
	return kindNone
}

func (j *jsonSource) token() jsontext.Token {
	t, err := j.dec.ReadToken()
	j.note(err)
	return t
}

func (j *jsonSource) scalar() []byte {
	v, err := j.dec.ReadValue()
	j.note(err)
	return v
}

func (j *jsonSource) null() { j.token() }

func (j *jsonSource) boolean() bool {
	t := j.token()
	return j.err == nil && t.Bool()
}

// integer accepts only integer literals. It rejects 1.0 and 1e3, so that no client depends on how a
// double is rounded.
func (j *jsonSource) integer() (int64, intFault) {
	v := j.scalar()
	negative := len(v) > 0 && v[0] == '-'
	if negative {
		v = v[1:]
	}
	var n int64
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, intNotWhole
		}
		if n <= MaxSafeInt { // larger values are rejected anyway
			n = n*10 + int64(c-'0')
		}
	}
	if n > MaxSafeInt {
		return 0, intTooLarge
	}
	if negative {
		n = -n
	}
	return n, intOK
}

func (j *jsonSource) view() []byte {
	v := j.scalar()
	if j.err != nil || len(v) < 2 {
		return nil
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1]
	}
	var err error
	j.scratch, err = jsontext.AppendUnquote(j.scratch[:0], v)
	j.note(err)
	return j.scratch
}

func (j *jsonSource) start() int {
	j.token()
	return -1
}

func (j *jsonSource) next(i, _ int) bool {
	if j.err != nil || i == math.MaxInt {
		return false
	}
	switch j.dec.PeekKind() {
	case '}', ']':
		j.token()
		return false
	case 0:
		j.token()
		return false
	}
	return true
}

func (j *jsonSource) name() ([]byte, bool) {
	if j.kind() != kindText {
		return nil, false
	}
	return j.view(), true
}

// skip skips one value by tokens. The tokenizer's SkipValue recurses, up to ten thousand levels
// deep.
func (j *jsonSource) skip() {
	base := j.dec.StackDepth()
	for j.err == nil {
		switch j.dec.PeekKind() {
		case '{', '[', '}', ']', 0:
			j.token()
		default:
			j.scalar()
		}
		if j.dec.StackDepth() > maxDepth {
			j.note(errTooDeep)
		}
		if j.dec.StackDepth() <= base {
			return
		}
	}
}

func (j *jsonSource) mark() int { return j.dec.StackDepth() }

func (j *jsonSource) resume(mark int) {
	for j.err == nil && j.dec.StackDepth() > mark {
		if k := j.dec.PeekKind(); k == '}' || k == ']' {
			j.token()
		} else {
			j.skip()
		}
	}
	if j.err != nil {
		return
	}
	if _, n := j.dec.StackIndex(mark); n%2 == 1 { // the key was read, but not its value
		j.skip()
	}
}
