package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	minBuffer  = 4 << 10  // an idle connection keeps this much
	keepBuffer = 64 << 10 // what is larger is dropped when it is empty
	frameHead  = 4        // bytes of a frame's length
	maxEmpty   = 100      // reads of nothing before giving up, as package bufio does
)

// Reader splits a stream of bytes into messages. Its memory grows with what was
// received, never with what a length declares. It is not for concurrent use.
type Reader struct {
	// OnPartial, if set, is called with true when reading is about to wait for the
	// rest of a message, and with false when that message is complete: the session
	// puts a deadline on it. It is called once each for a message, and not at all
	// for one that came in one piece. After an error there is no further call.
	OnPartial func(bool)

	// OnBuffer, if set, is called with what a message may take of memory (its announced
	// length, or that of the longest line) before the buffer grows beyond what ordinary ones
	// take, and with 0 when it is small again. It may wait. Its error is Next's.
	OnBuffer func(size int) error

	rd       io.Reader
	maxFrame int
	codec    Codec
	buf      []byte // buf[start:end] was received and not yet given out
	start    int
	end      int
	seen     int // of buf[start:end], how much holds no newline
	partial  bool
	expected int   // what OnBuffer was told last
	err      error // final
}

// NewReader reads messages of at most maxFrame bytes, framing not counted, from rd.
func NewReader(rd io.Reader, maxFrame int) *Reader {
	return &Reader{rd: rd, maxFrame: maxFrame}
}

// Codec is what the first byte chose: 0 before it, JSON after one that chooses
// none, so that the error's reply can be read by a person.
func (r *Reader) Codec() Codec { return r.codec }

// Partial reports whether a part of a message was received and is not given out
// yet. It may be a whole one: call Next.
func (r *Reader) Partial() bool { return r.end > r.start }

// expect tells OnBuffer of a change.
func (r *Reader) expect(bytes int) error {
	if bytes == r.expected || r.OnBuffer == nil {
		return nil
	}
	if err := r.OnBuffer(bytes); err != nil {
		return err
	}
	r.expected = bytes
	return nil
}

// Buffered is how many bytes were received and not given out yet.
func (r *Reader) Buffered() int { return r.end - r.start }

// Next gives the next message without its framing. body is valid until the next
// call.
//
// io.EOF is a clean end between messages. An *Error (bad_frame, too_large) is
// fatal: the stream cannot be trusted from there on, and every later call gives
// it again. Any other error is the reader's own; where it was a deadline Next may
// be called again and goes on where it was.
func (r *Reader) Next() (body []byte, c Codec, err error) {
	if r.err == nil {
		body, r.err = r.next()
	}
	if err = r.err; err == nil {
		if r.partial {
			r.notify(false)
		}
		return body, r.codec, nil
	}
	var final *Error
	if !errors.Is(err, io.EOF) && !errors.As(err, &final) {
		r.err = nil
	}
	return nil, r.codec, err
}

func (r *Reader) notify(partial bool) {
	r.partial = partial
	if r.OnPartial != nil {
		r.OnPartial(partial)
	}
}

func (r *Reader) next() ([]byte, error) {
	if r.codec == 0 {
		if err := r.choose(); err != nil {
			return nil, err
		}
	}
	if r.codec == Msgpack {
		return r.frame()
	}
	return r.line()
}

func (r *Reader) choose() error {
	if err := r.fill(1); err != nil {
		return err
	}
	switch b := r.buf[r.start]; {
	case b <= 0x04:
		r.codec = Msgpack
	case b == '{' || blank(b):
		r.codec = JSON
	default:
		r.codec = JSON
		return Errorf(CodeBadFrame, "the first byte, 0x%02x, begins neither a msgpack frame (0x00 to 0x04) nor a JSON line ({)", b)
	}
	return nil
}

func blank(b byte) bool { return b == '\n' || b == '\r' || b == ' ' || b == '\t' }

// frame gives the next msgpack frame's body.
func (r *Reader) frame() ([]byte, error) {
	if err := r.fill(frameHead); err != nil {
		return nil, r.cutShort(err)
	}
	n := binary.BigEndian.Uint32(r.buf[r.start:])
	if uint64(n) > uint64(r.maxFrame) {
		return nil, Errorf(CodeTooLarge, "a frame of %d bytes is announced; at most %d are allowed (max_frame)", n, r.maxFrame)
	}
	if err := r.fill(frameHead + int(n)); err != nil {
		return nil, r.cutShort(err)
	}
	body := r.buf[r.start+frameHead : r.start+frameHead+int(n)]
	r.start += frameHead + int(n)
	return body, nil
}

// cutShort turns the end of input inside a frame into a bad_frame.
func (r *Reader) cutShort(err error) error {
	if errors.Is(err, io.EOF) && r.end > r.start {
		return Errorf(CodeBadFrame, "the input ended inside a frame, after %d of its bytes", r.end-r.start)
	}
	return err
}

// line gives the next JSON line that is not blank.
func (r *Reader) line() ([]byte, error) {
	for {
		have := r.buf[r.start:r.end]
		if r.seen == 0 && len(have) > 0 && blank(have[0]) {
			r.start++ // before a message nothing blank counts, so that it is not half of one
			continue
		}
		if i := bytes.IndexByte(have[r.seen:], '\n'); i >= 0 {
			line := have[:r.seen+i]
			if len(trimCR(line)) > r.maxFrame {
				return nil, r.lineTooLarge()
			}
			r.start += len(line) + 1
			r.seen = 0
			return trimCR(line), nil
		}
		r.seen = len(have)
		if len(trimCR(have)) > r.maxFrame {
			return nil, r.lineTooLarge()
		}
		if err := r.fill(len(have) + 1); err != nil {
			return r.lastLine(err)
		}
	}
}

func (r *Reader) lineTooLarge() error {
	return Errorf(CodeTooLarge, "a line is longer than %d bytes (max_frame)", r.maxFrame)
}

func trimCR(line []byte) []byte { return bytes.TrimSuffix(line, []byte("\r")) }

// lastLine accepts a whole object that the end of input finishes in place of a
// newline.
func (r *Reader) lastLine(err error) ([]byte, error) {
	have := r.buf[r.start:r.end]
	if !errors.Is(err, io.EOF) || len(have) == 0 {
		return nil, err
	}
	if !jsontext.Value(have).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return nil, Errorf(CodeBadFrame, "the input ended inside a line, after %d of its bytes", len(have))
	}
	r.start, r.seen = r.end, 0
	return have, nil
}

// fill reads until at least n bytes are there.
func (r *Reader) fill(n int) error {
	for r.end-r.start < n {
		if r.end > r.start && !r.partial {
			r.notify(true)
		}
		if err := r.room(n); err != nil {
			return err
		}
		if err := r.receive(); err != nil {
			return err
		}
	}
	return nil
}

// Shrink makes the buffer as small as what it holds allows. It is for a caller that will not
// call Next for long. What Next gave before stays valid.
func (r *Reader) Shrink() error {
	have := r.end - r.start
	size := max(have, minBuffer)
	if len(r.buf) <= keepBuffer || size == len(r.buf) {
		return nil
	}
	buf := make([]byte, size)
	copy(buf, r.buf[r.start:r.end])
	r.buf, r.start, r.end = buf, 0, have
	if size <= keepBuffer {
		size = 0
	}
	return r.expect(size)
}

// receive does one read into the room there is.
func (r *Reader) receive() error {
	for range maxEmpty {
		n, err := r.rd.Read(r.buf[r.end:])
		r.end += n
		if n > 0 {
			return nil // an error comes again with the next read
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// room makes room behind end for a message of n bytes, of which it may take only
// a part: the buffer doubles as bytes arrive.
func (r *Reader) room(n int) error {
	have := r.end - r.start
	if have == 0 {
		r.start, r.end = 0, 0
	}
	switch {
	case have == 0 && (len(r.buf) == 0 || len(r.buf) > keepBuffer):
		r.buf = make([]byte, minBuffer)
		if err := r.expect(0); err != nil {
			return err
		}
	case r.end < len(r.buf) && (r.start == 0 || r.start+n <= len(r.buf)):
		return nil
	case have <= len(r.buf)/2:
		copy(r.buf, r.buf[r.start:r.end])
	default:
		size := min(2*len(r.buf), max(have+minBuffer, r.maxFrame+frameHead+2))
		if size > keepBuffer {
			most := n
			if r.codec != Msgpack {
				most = r.maxFrame
			}
			if err := r.expect(max(most, r.expected)); err != nil {
				return err
			}
		}
		grown := make([]byte, size)
		copy(grown, r.buf[r.start:r.end])
		r.buf = grown
	}
	r.start, r.end = 0, have
	return nil
}
