package protocol

import (
	"bytes"
	"errors"
	"io"
	"math"

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

func (s *jsonSource) init() { s.dec = jsontext.NewDecoder(&s.buf, jsonOptions...) }

func (s *jsonSource) open(b []byte) {
	s.buf = *bytes.NewBuffer(b)
	s.dec.Reset(&s.buf, jsonOptions...)
	s.err = nil
}

func (s *jsonSource) close() {
	if s.buf.Cap() > 0 {
		s.buf = bytes.Buffer{}
		s.dec.Reset(&s.buf, jsonOptions...)
	}
	if cap(s.scratch) > maxScratch {
		s.scratch = nil
	}
	s.err = nil
}

func (s *jsonSource) note(err error) {
	if err == nil || s.err != nil {
		return
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		s.err = Errorf(CodeBadRequest, "the line is not one JSON object: it ends inside of it")
		return
	}
	s.err = Errorf(CodeBadRequest, "the line is not one JSON object: %v", err)
}

func (s *jsonSource) fault() *Error { return s.err }

func (s *jsonSource) end() *Error {
	if s.err != nil {
		return s.err
	}
	if _, err := s.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Errorf(CodeBadRequest, "the line is not one JSON object: something follows it; end each message with a newline")
	}
	return nil
}

func (s *jsonSource) kind() kind {
	if s.err != nil {
		return kindNone
	}
	switch s.dec.PeekKind() {
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
	s.token() // returns the error that PeekKind found
	if s.err == nil {
		s.note(errors.New("a value is missing"))
	}
	return kindNone
}

func (s *jsonSource) token() jsontext.Token {
	t, err := s.dec.ReadToken()
	s.note(err)
	return t
}

func (s *jsonSource) scalar() []byte {
	v, err := s.dec.ReadValue()
	s.note(err)
	return v
}

func (s *jsonSource) null() { s.token() }

func (s *jsonSource) boolean() bool {
	t := s.token()
	return s.err == nil && t.Bool()
}

// integer accepts only integer literals. It rejects 1.0 and 1e3, so that no client depends on how a
// double is rounded.
func (s *jsonSource) integer() (int64, intFault) {
	v := s.scalar()
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

func (s *jsonSource) view() []byte {
	v := s.scalar()
	if s.err != nil || len(v) < 2 {
		return nil
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1]
	}
	var err error
	s.scratch, err = jsontext.AppendUnquote(s.scratch[:0], v)
	s.note(err)
	return s.scratch
}

func (s *jsonSource) start() int {
	s.token()
	return -1
}

func (s *jsonSource) next(i, _ int) bool {
	if s.err != nil || i == math.MaxInt {
		return false
	}
	switch s.dec.PeekKind() {
	case '}', ']':
		s.token()
		return false
	case 0:
		s.token()
		return false
	}
	return true
}

func (s *jsonSource) name() ([]byte, bool) {
	if s.kind() != kindText {
		return nil, false
	}
	return s.view(), true
}

// skip skips one value by tokens. The tokenizer's SkipValue recurses, up to ten thousand levels
// deep.
func (s *jsonSource) skip() {
	base := s.dec.StackDepth()
	for s.err == nil {
		switch s.dec.PeekKind() {
		case '{', '[', '}', ']', 0:
			s.token()
		default:
			s.scalar()
		}
		if s.dec.StackDepth() > maxDepth {
			s.note(errTooDeep)
		}
		if s.dec.StackDepth() <= base {
			return
		}
	}
}

func (s *jsonSource) mark() int { return s.dec.StackDepth() }

func (s *jsonSource) resume(mark int) {
	for s.err == nil && s.dec.StackDepth() > mark {
		if k := s.dec.PeekKind(); k == '}' || k == ']' {
			s.token()
		} else {
			s.skip()
		}
	}
	if s.err != nil {
		return
	}
	if _, n := s.dec.StackIndex(mark); n%2 == 1 { // the key was read, but not its value
		s.skip()
	}
}
