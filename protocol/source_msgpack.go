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

func (m *mpSource) init()         { m.dec = msgpack.NewDecoder(m) }
func (m *mpSource) open(b []byte) { m.b, m.i, m.err = b, 0, nil }
func (m *mpSource) close()        { m.b, m.i, m.err = nil, 0, nil }

// Read implements io.Reader for the library's decoder.
func (m *mpSource) Read(p []byte) (int, error) {
	if m.i >= len(m.b) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, m.b[m.i:])
	m.i += n
	return n, nil
}

// ReadByte implements io.ByteReader for the library's decoder.
func (m *mpSource) ReadByte() (byte, error) {
	if m.i >= len(m.b) {
		return 0, io.EOF
	}
	m.i++
	return m.b[m.i-1], nil
}

// UnreadByte implements io.ByteScanner for the library's decoder.
func (m *mpSource) UnreadByte() error {
	m.i--
	return nil
}

// note keeps the first error of the library. After the shape check there is none, unless the two
// disagree about a byte. Such an error must not be lost.
func (m *mpSource) note(err error) {
	if err != nil && m.err == nil {
		m.err = Errorf(CodeBadFrame, "the frame's body cannot be decoded at byte %d: %v", m.i, err)
	}
}

func (m *mpSource) fault() *Error { return m.err }

func (m *mpSource) end() *Error { return m.err } // checkShape found that nothing follows

func (m *mpSource) kind() kind {
	if m.err != nil || m.i >= len(m.b) {
		return kindNone
	}
	c := m.b[m.i]
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

func (m *mpSource) null() { m.note(m.dec.DecodeNil()) }

func (m *mpSource) boolean() bool {
	v, err := m.dec.DecodeBool()
	m.note(err)
	return v
}

func (m *mpSource) integer() (int64, intFault) {
	switch m.b[m.i] {
	case msgpcode.Float, msgpcode.Double:
		m.skip()
		return 0, intNotWhole
	case msgpcode.Uint64: // DecodeInt64 would return negative values for the upper half
		u, err := m.dec.DecodeUint64()
		m.note(err)
		if u > MaxSafeInt {
			return 0, intTooLarge
		}
		return int64(u), intOK
	}
	n, err := m.dec.DecodeInt64()
	m.note(err)
	if n > MaxSafeInt || n < -MaxSafeInt {
		return 0, intTooLarge
	}
	return n, intOK
}

func (m *mpSource) view() []byte {
	n, err := m.dec.DecodeBytesLen()
	m.note(err)
	if err != nil || n < 0 || n > len(m.b)-m.i {
		return nil
	}
	v := m.b[m.i : m.i+n : m.i+n]
	m.i += n
	return v
}

func (m *mpSource) start() (n int) {
	var err error
	if m.kind() == kindMap {
		n, err = m.dec.DecodeMapLen()
	} else {
		n, err = m.dec.DecodeArrayLen()
	}
	m.note(err)
	return n
}

func (m *mpSource) next(i, n int) bool { return i < n && m.err == nil }

func (m *mpSource) name() ([]byte, bool) {
	if m.kind() != kindText {
		return nil, false
	}
	return m.view(), true
}

// skip skips one value with the walk of the shape check. The library's Skip recurses.
func (m *mpSource) skip() {
	for left := uint64(1); left > 0; left-- {
		size, children, err := measure(m.b[m.i:])
		if err != nil {
			m.note(err)
			return
		}
		m.i += size
		left += children
	}
}

func (m *mpSource) mark() int { return m.i }

func (m *mpSource) resume(mark int) {
	m.i = mark
	m.skip()
	m.skip()
}
