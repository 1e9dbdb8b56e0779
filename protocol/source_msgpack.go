package protocol

import (
	"io"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// mpSource reads a msgpack message whose shape was checked. The library's decoder reads heads and
// numbers from it. mpSource is the decoder's io.ByteScanner, so that the decoder does not buffer
// beyond i. Text and bytes are views of b, so that the library never allocates by a declared
// length.
type mpSource struct {
	b   []byte
	i   int
	dec *msgpack.Decoder
	err *Error
}

func (s *mpSource) init()         { s.dec = msgpack.NewDecoder(s) }
func (s *mpSource) open(b []byte) { s.b, s.i, s.err = b, 0, nil }
func (s *mpSource) close()        { s.b, s.i, s.err = nil, 0, nil }

// Read implements io.Reader for the library's decoder.
func (s *mpSource) Read(p []byte) (int, error) {
	if s.i >= len(s.b) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b[s.i:])
	s.i += n
	return n, nil
}

// ReadByte implements io.ByteReader for the library's decoder.
func (s *mpSource) ReadByte() (byte, error) {
	if s.i >= len(s.b) {
		return 0, io.EOF
	}
	s.i++
	return s.b[s.i-1], nil
}

// UnreadByte implements io.ByteScanner for the library's decoder.
func (s *mpSource) UnreadByte() error {
	s.i--
	return nil
}

// note keeps the first error of the library. After the shape check there is none, unless the two
// disagree about a byte. Such an error must not be lost.
func (s *mpSource) note(err error) {
	if err != nil && s.err == nil {
		s.err = Errorf(CodeBadFrame, "the frame's body cannot be decoded at byte %d: %v", s.i, err)
	}
}

func (s *mpSource) fault() *Error { return s.err }

func (s *mpSource) end() *Error { return s.err } // checkShape found that nothing follows

func (s *mpSource) kind() kind {
	if s.err != nil || s.i >= len(s.b) {
		return kindNone
	}
	c := s.b[s.i]
	switch {
	case msgpcode.IsFixedNum(c):
		return kindNumber
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		return kindMap
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		return kindList
	case msgpcode.IsString(c):
		return kindText
	case msgpcode.IsBin(c):
		return kindBytes
	case c == msgpcode.Nil:
		return kindNull
	case c == msgpcode.False, c == msgpcode.True:
		return kindBool
	case c >= msgpcode.Float && c <= msgpcode.Int64:
		return kindNumber
	default:
		return kindExt
	}
}

func (s *mpSource) null() { s.note(s.dec.DecodeNil()) }

func (s *mpSource) boolean() bool {
	v, err := s.dec.DecodeBool()
	s.note(err)
	return v
}

func (s *mpSource) integer() (int64, intFault) {
	switch s.b[s.i] {
	case msgpcode.Float, msgpcode.Double:
		s.skip()
		return 0, intNotWhole
	case msgpcode.Uint64: // DecodeInt64 would return negative values for the upper half
		u, err := s.dec.DecodeUint64()
		s.note(err)
		if u > MaxSafeInt {
			return 0, intTooLarge
		}
		return int64(u), intOK
	}
	n, err := s.dec.DecodeInt64()
	s.note(err)
	if n > MaxSafeInt || n < -MaxSafeInt {
		return 0, intTooLarge
	}
	return n, intOK
}

func (s *mpSource) view() []byte {
	n, err := s.dec.DecodeBytesLen()
	s.note(err)
	if err != nil || n < 0 || n > len(s.b)-s.i {
		return nil
	}
	v := s.b[s.i : s.i+n : s.i+n]
	s.i += n
	return v
}

func (s *mpSource) start() (n int) {
	var err error
	if s.kind() == kindMap {
		n, err = s.dec.DecodeMapLen()
	} else {
		n, err = s.dec.DecodeArrayLen()
	}
	s.note(err)
	return n
}

func (s *mpSource) next(i, n int) bool { return i < n && s.err == nil }

func (s *mpSource) name() ([]byte, bool) {
	if s.kind() != kindText {
		return nil, false
	}
	return s.view(), true
}

// skip skips one value with the walk of the shape check. The library's Skip recurses.
func (s *mpSource) skip() {
	for left := uint64(1); left > 0; left-- {
		size, children, err := measure(s.b[s.i:])
		if err != nil {
			s.note(err)
			return
		}
		s.i += size
		left += children
	}
}

func (s *mpSource) mark() int { return s.i }

func (s *mpSource) resume(mark int) {
	s.i = mark
	s.skip()
	s.skip()
}
